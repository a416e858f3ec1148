//! Undoes an injection from its record, no matter which tool has rewritten the document since.

mod added;
mod replaced;
mod swapped;

use std::collections::{BTreeMap, BTreeSet};

use serde::de::IgnoredAny;
use serde_json::Value as Json;

pub(super) use self::added::shown;
use super::cut::{self, Cut, line_end, line_start};
use super::defaults::Defaults;
use super::path::{self, Path, Step, below};
use super::record::{ANNOTATION, Record};
use super::tree::{Entry, Node, Tree, Value};
use super::workload::Workload;
use super::{Note, Refused};

/// The record in the pod template of a workload.
///
/// # Errors
/// When there is one that cannot be read.
pub(super) fn record(root: &Json, workload: &Workload) -> Result<Option<Record>, Refused> {
    let path = below(&workload.annotations, [ANNOTATION]);
    let Some(json) = path::get(root, &path) else {
        return Ok(None);
    };
    let record = json
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok());
    match record {
        Some(record) => Ok(Some(record)),
        None => Err(Refused::of(
            &workload.annotations,
            format!("its annotation {ANNOTATION} cannot be read"),
        )),
    }
}

/// Undoes the changes in the records, each with its workload. A value that is not as it was written is kept.
pub(super) struct Undo<'a> {
    tree: &'a Tree<'a>,
    root: &'a Json,
    /// Whether the document is JSON, and must remain so.
    is_json: bool,
    cuts: Vec<Cut>,
}

impl<'a> Undo<'a> {
    pub fn new(tree: &'a Tree<'a>, root: &'a Json) -> Self {
        let is_json = tree.text.trim_start().starts_with('{')
            && serde_json::from_str::<IgnoredAny>(tree.text).is_ok();
        let cuts = Vec::new();
        Self {
            tree,
            root,
            is_json,
            cuts,
        }
    }

    pub fn finish(self) -> String {
        cut::apply(self.tree.text, self.cuts)
    }

    /// What an API server may have added to the values of a pod.
    fn defaults(&self, workload: &Workload) -> Defaults {
        Defaults {
            host_network: workload.is_on_host_network(self.root),
        }
    }

    pub fn take_back(
        &mut self,
        workload: &Workload,
        record: &Record,
        note: &mut Note,
    ) -> Result<(), Refused> {
        let missing = self.missing(workload, record);
        for (container, changes) in &missing {
            note.warn(format!(
                "{container} has been renamed or removed since the injection, so these changes made by inject are not undone: {}",
                changes.join(", ")
            ));
        }
        let is_missing = |recorded: &str| {
            container_of(recorded).is_some_and(|(container, _)| missing.contains_key(container))
        };
        let gone = self.gone(workload, record, note);
        for path in &gone {
            let parent = &path[..path.len().saturating_sub(1)];
            // All removals from one mapping or list are made together, with the first of them.
            let first = gone
                .iter()
                .find(|other| other.len() == path.len() && other.starts_with(parent));
            if first == Some(path) && !gone.contains(parent) {
                self.remove(parent, &gone)?;
            }
        }
        for swapped in &record.swapped {
            if !is_missing(&swapped.path) {
                self.swap_back(workload, swapped, note)?;
            }
        }
        for replaced in &record.replaced {
            if !is_missing(&replaced.path) {
                self.put_back(workload, replaced, &gone, note)?;
            }
        }
        Ok(())
    }

    /// The changes in containers that are no longer there under their name.
    fn missing<'r>(
        &self,
        workload: &Workload,
        record: &'r Record,
    ) -> BTreeMap<&'r str, Vec<&'r str>> {
        let added = record.added.iter();
        let swapped = record.swapped.iter().map(|swapped| &swapped.path);
        let replaced = record.replaced.iter().map(|replaced| &replaced.path);
        let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (container, change) in added
            .chain(swapped)
            .chain(replaced)
            .filter_map(|recorded| container_of(recorded))
        {
            if path::find(self.root, &workload.base, container).is_none() {
                missing.entry(container).or_default().push(change);
            }
        }
        missing
    }

    /// Removes all members of the mapping or list at `parent` that are in `gone`.
    fn remove(&mut self, parent: &[Step], gone: &BTreeSet<Path>) -> Result<(), Refused> {
        let Some(node) = path::node(&self.tree.root, parent)? else {
            return Ok(());
        };
        let (flow, members) = members(self.tree.text, node);
        let is_gone = |index: usize| match &node.value {
            Value::Map { entries, .. } => {
                gone.contains(&below(parent, [entries[index].key.as_str()]))
            }
            _ => gone.contains(&below(parent, [index])),
        };
        if !flow
            && (0..members.len()).all(is_gone)
            && let Some((entry, _)) = self.entry(parent)?
        {
            // It was present and empty, and has been rewritten since.
            let text = match &node.value {
                Value::Map { .. } => " {}",
                _ => " []",
            };
            self.cuts.push(Cut {
                range: entry.colon..entry.node.span.end,
                text: text.to_owned(),
                depth: 0,
            });
            return Ok(());
        }
        let mut index = 0;
        while index < members.len() {
            let run = (index..members.len())
                .take_while(|index| is_gone(*index))
                .count();
            if run == 0 {
                index += 1;
                continue;
            }
            let range = match flow {
                true => flow_range(&members, index, run),
                false => self.block_range(&members, index, run),
            };
            self.cuts.push(Cut {
                range,
                text: String::new(),
                depth: 0,
            });
            index += run;
        }
        Ok(())
    }

    fn block_range(
        &self,
        members: &[(usize, usize)],
        index: usize,
        run: usize,
    ) -> std::ops::Range<usize> {
        let text = self.tree.text;
        let (start, end) = (members[index].0, members[index + run - 1].1);
        let line = line_start(text, start);
        if !text[line..start].trim().is_empty() {
            // It is the first of its mapping, on the line of a dash: the next one moves there.
            return start..members.get(index + run).map_or(end, |next| next.0);
        }
        match text.ends_with('\n') {
            true => line..line_end(text, end),
            // The last line has no line break, so the new last line must not have one either.
            false => {
                let before = line - usize::from(line > 0);
                let before = before - usize::from(text[..before].ends_with('\r'));
                before..end
            }
        }
    }

    fn entry(&self, path: &[Step]) -> Result<Option<(&'a Entry, bool)>, Refused> {
        let Some((Step::Key(key), parent)) = path.split_last() else {
            return Ok(None);
        };
        let Some(Node {
            value: Value::Map { entries, flow },
            ..
        }) = path::node(&self.tree.root, parent)?
        else {
            return Ok(None);
        };
        let entry = entries.iter().rfind(|entry| entry.key == *key);
        Ok(entry.map(|entry| (entry, *flow)))
    }
}

/// The container of a path in a record, and the rest of the path. Crossfade's own is removed wherever it is.
fn container_of(recorded: &str) -> Option<(&str, &str)> {
    let list = recorded.find("ontainers/[")?;
    let end = list + recorded[list..].find("]/")? + 1;
    let (container, change) = (&recorded[..end], &recorded[end + 1..]);
    (!container.ends_with("/[crossfade]")).then_some((container, change))
}

/// Where the members of a mapping or list begin (with the dash in a list in block style) and end, and whether it is in
/// flow style.
fn members(text: &str, node: &Node) -> (bool, Vec<(usize, usize)>) {
    match &node.value {
        Value::Map { flow, entries } => {
            let entries = entries
                .iter()
                .map(|entry| (entry.key_span.start, entry.node.span.end));
            (*flow, entries.collect())
        }
        Value::List { flow, items } => {
            let members = items.iter().map(|item| {
                let start = if *flow {
                    item.span.start
                } else {
                    cut::dash(text, item.span.start)
                };
                (start, item.span.end)
            });
            (*flow, members.collect())
        }
        _ => (true, Vec::new()),
    }
}

fn flow_range(members: &[(usize, usize)], index: usize, run: usize) -> std::ops::Range<usize> {
    let end = members[index + run - 1].1;
    match (index, members.get(index + run)) {
        (0, Some(next)) => members[0].0..next.0,
        (0, None) => members[0].0..end,
        _ => members[index - 1].1..end,
    }
}
