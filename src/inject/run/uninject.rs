//! Removes crossfade from a document.

use super::Run;
use super::record::{is_where_it_was, start};
use crate::inject::documents::{Document, Lines};
use crate::inject::undo::{self, Undo};
use crate::inject::workload::{Found, find};
use crate::inject::{Error, Note, Refused, live, path};

impl Run {
    pub fn uninject(&mut self, document: Document<'_>) -> Result<Option<String>, Error> {
        let Some((tree, json)) = self.read(document)? else {
            return Ok(None);
        };
        let mut undo = Undo::new(&tree, &json);
        let mut removed = Vec::new();
        let lines = Lines::of(document);
        for found in find(&json) {
            let Found::Workload(workload) = found else {
                continue;
            };
            let refuse = |refused| self.refused(document, &tree, &workload.name, refused);
            let Some(record) = undo::record(&json, &workload).map_err(refuse)? else {
                continue;
            };
            let at = lines.line(start(&tree, &workload.base));
            let mut note = Note::new(
                &workload.name,
                at,
                format!("crossfade {} is removed", record.version),
            );
            undo.take_back(&workload, &record, &mut note)
                .map_err(refuse)?;
            let object = path::get(&json, &workload.object);
            note.warnings.extend(object.and_then(live::before_uninject));
            note.warnings.extend(object.and_then(live::owned));
            removed.push((workload, record, note));
        }
        let text = undo.finish();
        let Ok(clean) = self.read(Document {
            text: &text,
            ..document
        }) else {
            let refused = Refused::at(
                tree.root.span.start,
                "cannot be restored: its aliases and anchors do not match",
            );
            return Err(self.refused(document, &tree, "the document", refused));
        };
        let clean = clean.map(|(_, json)| json).unwrap_or_default();
        for (workload, record, mut note) in removed {
            let port = record.port;
            match is_where_it_was(&clean, &workload, &record) {
                Ok(true) => note.add_detail(format!("the frontend listens on port {port} again")),
                Ok(false) => note.warn(format!(
                    "cannot determine the port on which the frontend would listen without crossfade: clients use port {port}"
                )),
                Err(message) => note.warn(format!("{message}: change the port back")),
            }
            self.notes.push(note);
        }
        Ok(Some(text))
    }
}
