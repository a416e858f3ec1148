//! Undoes an injection from its record, no matter which tool has rewritten the document since.

mod replaced;

use std::collections::BTreeSet;

use serde_json::Value as Json;

pub(super) use self::replaced::original;

use super::cut::{self, Cut, line_end, line_start};
use super::path::{self, Path, Step, below};
use super::record::{ANNOTATION, Record, Swapped};
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

/// Undoes the changes in the records, each with its workload.
pub(super) struct Undo<'a> {
    tree: &'a Tree<'a>,
    root: &'a Json,
    cuts: Vec<Cut>,
}

impl<'a> Undo<'a> {
    pub fn new(tree: &'a Tree<'a>, root: &'a Json) -> Self {
        let cuts = Vec::new();
        Self { tree, root, cuts }
    }

    pub fn finish(self) -> String {
        cut::apply(self.tree.text, self.cuts)
    }

    pub fn take_back(
        &mut self,
        workload: &Workload,
        record: &Record,
        note: &mut Note,
    ) -> Result<(), Refused> {
        let gone = self.gone(workload, record);
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
            self.swap_back(workload, swapped, note)?;
        }
        for replaced in &record.replaced {
            self.put_back(workload, replaced, &gone, note)?;
        }
        Ok(())
    }

    /// The paths of everything that is removed.
    fn gone(&self, workload: &Workload, record: &Record) -> BTreeSet<Path> {
        let find = |words: &String| path::find(self.root, &workload.base, words);
        let mut gone: BTreeSet<Path> = record.added.iter().filter_map(find).collect();
        let mut made: Vec<Path> = record.made.iter().filter_map(find).collect();
        made.sort_by_key(|path| std::cmp::Reverse(path.len()));
        for path in made {
            // A list item needs its name while it has any other member.
            let is_item = matches!(path.last(), Some(Step::Item(_)));
            let is_empty = match path::get(self.root, &path) {
                Some(Json::Object(map)) => map.keys().all(|key| {
                    gone.contains(&below(&path, [key.as_str()])) || is_item && key == "name"
                }),
                Some(Json::Array(list)) => {
                    (0..list.len()).all(|index| gone.contains(&below(&path, [index])))
                }
                _ => false,
            };
            if is_empty {
                gone.insert(path);
            }
        }
        gone
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

    fn swap_back(
        &mut self,
        workload: &Workload,
        swapped: &Swapped,
        note: &mut Note,
    ) -> Result<(), Refused> {
        let place = path::find(self.root, &workload.base, &swapped.path);
        let node = match &place {
            Some(path) => path::node(&self.tree.root, path)?,
            None => None,
        };
        let Some(node) = node else {
            note.warn(format!(
                "{} has been removed: it was '{}' before",
                swapped.path, swapped.from
            ));
            return Ok(());
        };
        let written = &self.tree.text[node.span.clone()];
        let mut places = written.match_indices(&swapped.to);
        match (places.next(), places.next()) {
            (Some((at, to)), None) => {
                let start = node.span.start + at;
                let text = swapped.from.clone();
                self.cuts.push(Cut {
                    range: start..start + to.len(),
                    text,
                    depth: 0,
                });
            }
            _ => match unfolded(written, node, swapped) {
                // It has been rewritten, with line breaks or escapes inside.
                Some(text) => self.cuts.push(Cut {
                    range: node.span.clone(),
                    text,
                    depth: 0,
                }),
                None => note.warn(format!(
                    "{} has been changed since and is kept: it was '{}' before",
                    swapped.path, swapped.from
                )),
            },
        }
        Ok(())
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

/// The whole scalar with the part restored, unless it is a block scalar.
fn unfolded(written: &str, node: &Node, swapped: &Swapped) -> Option<String> {
    let Value::Scalar { text, plain } = &node.value else {
        return None;
    };
    let is_flow = *plain || written.starts_with(['"', '\'']);
    let once = text.matches(&swapped.to).count() == 1;
    (is_flow && once).then(|| Json::from(text.replacen(&swapped.to, &swapped.from, 1)).to_string())
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
