//! Injects the workloads of a document, some of which may already have a sidecar. What would stay the same is left as it is.

use serde_json::Value as Json;

use super::Run;
use super::lost;
use super::record::{
    Reused, has_label, is_in, is_where_it_was, start, unchanged, with_this_version, without_label,
};
use crate::inject::documents::{Document, Lines};
use crate::inject::pod::PROXY;
use crate::inject::record::Record;
use crate::inject::services::Injected;
use crate::inject::tree::Tree;
use crate::inject::undo::{self, Undo};
use crate::inject::workload::Workload;
use crate::inject::{Error, Note, Options, Refused};

/// What happened to one workload.
struct Outcome {
    /// What its earlier sidecar kept, if it had one that inject added.
    removal: Option<Note>,
    note: Note,
    injected: Option<Injected>,
    /// Whether its pods would stay the same.
    is_same: bool,
}

impl Outcome {
    /// Whether the text of this workload changes.
    fn is_change(&self) -> bool {
        !self.is_same && (self.injected.is_some() || self.removal.is_some())
    }
}

impl Run {
    /// Edits the workloads of a document that change; `None` if none of them does. If an unchanged one were rewritten, it would lose
    /// its style and the defaults of the API server.
    pub(super) fn edit(
        &mut self,
        document: Document<'_>,
        tree: &Tree<'_>,
        json: &Json,
        workloads: &[Workload],
        options: &Options,
        image: Option<&str>,
    ) -> Result<Option<String>, Error> {
        let first = self.notes.len();
        let before = (self.seen.len(), self.present);
        let attempt = self.attempt(document, tree, json, workloads, options, image)?;
        let Some((text, outcomes)) = attempt else {
            return Ok(None);
        };
        let is_mixed =
            outcomes.iter().any(|one| one.is_same) && outcomes.iter().any(Outcome::is_change);
        let is_changed = outcomes.iter().any(Outcome::is_change);
        let mut rest = Vec::new();
        for (workload, outcome) in workloads.iter().zip(outcomes) {
            if is_mixed && !outcome.is_same {
                rest.push(workload.clone());
                continue;
            }
            let removal = outcome.removal.filter(|note| !note.warnings.is_empty());
            self.notes.extend(removal);
            self.notes.push(outcome.note);
            self.injected.extend(outcome.injected);
        }
        if !is_mixed {
            return Ok(is_changed.then_some(text));
        }
        self.seen.truncate(before.0);
        self.present = before.1;
        let text = self.edit(document, tree, json, &rest, options, image)?;
        self.notes[first..].sort_by_key(|note| note.line);
        Ok(text)
    }

    /// Edits all workloads of a document, and compares them with what they were.
    fn attempt(
        &mut self,
        document: Document<'_>,
        tree: &Tree<'_>,
        json: &Json,
        workloads: &[Workload],
        options: &Options,
        image: Option<&str>,
    ) -> Result<Option<(String, Vec<Outcome>)>, Error> {
        let lines = Lines::of(document);
        // An existing sidecar is removed first, and its options are reused.
        let mut earlier = Vec::new();
        let mut removals = Vec::new();
        let mut undo = Undo::new(tree, json);
        for workload in workloads {
            let at = lines.line(start(tree, &workload.base));
            let mut note = Note::new(&workload.name, at, "removed before it is added again");
            let refuse = |refused| self.refused(document, tree, &workload.name, refused);
            let record = undo::record(json, workload).map_err(refuse)?;
            if let Some(record) = &record {
                undo.take_back(workload, record, &mut note)
                    .map_err(refuse)?;
            }
            let reused = Reused::of(json, workload);
            removals.push(record.as_ref().map(|_| note));
            earlier.push(record.map(|mut record| {
                record.options.image = reused.image;
                (record, reused.frontend_port)
            }));
        }
        let clean = undo.finish();
        let clean = Document {
            text: &clean,
            ..document
        };
        let again = self.add_again(clean, workloads, &earlier, options, image)?;
        let Some((text, added)) = again else {
            return Ok(None);
        };
        let notes = self.notes.split_off(self.notes.len() - workloads.len());
        let count = added.iter().filter(|added| **added).count();
        let injected = self.injected.split_off(self.injected.len() - count);
        let mut injected = injected.into_iter();
        let before = with_this_version(json.clone(), workloads);
        let read = Tree::read(&text).ok().flatten();
        let after = read.and_then(|tree| tree.json().ok());
        let after = after.map(|json| with_this_version(json, workloads));
        let mut outcomes = Vec::new();
        for (index, (mut note, removal)) in notes.into_iter().zip(removals).enumerate() {
            let workload = &workloads[index];
            let injected = added[index].then(|| injected.next()).flatten();
            note.line = lines.line(start(tree, &workload.base));
            let has_earlier = removal.is_some() && injected.is_some();
            let is_same = has_earlier
                && after
                    .as_ref()
                    .is_some_and(|after| is_in(&before, after, workload));
            if is_same {
                unchanged(&mut note);
                if !has_label(json, workload)
                    && injected.as_ref().is_some_and(|pods| pods.has_label(PROXY))
                {
                    note.warn(without_label());
                }
            } else if has_earlier && let Some(sidecar) = lost::parts(json, workload) {
                lost::explain(&mut note, &sidecar, &text, workload, options);
            }
            outcomes.push(Outcome {
                removal,
                note,
                injected,
                is_same,
            });
        }
        Ok(Some((text, outcomes)))
    }

    /// Adds crossfade to the workloads of a document from which earlier sidecars have been removed.
    fn add_again(
        &mut self,
        document: Document<'_>,
        workloads: &[Workload],
        earlier: &[Option<(Record, Option<u16>)>],
        options: &Options,
        image: Option<&str>,
    ) -> Result<Option<(String, Vec<bool>)>, Error> {
        let Some((tree, json)) = self.read(document)? else {
            return Ok(None);
        };
        for (workload, earlier) in workloads.iter().zip(earlier) {
            if let Some((earlier, _)) = earlier
                && options.port.is_none()
                && let Err(message) = is_where_it_was(&json, workload, earlier)
            {
                let hint = "undo that change, or set the port for clients with --port";
                let refused = Refused::of(&workload.base, format!("{message}: {hint}"));
                return Err(self.refused(document, &tree, &workload.name, refused));
            }
        }
        self.add(document, &tree, &json, workloads, earlier, options, image)
            .map(Some)
    }
}
