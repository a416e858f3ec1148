//! Restores parts of texts and numbers that an injection replaced, unless they have changed since.

use serde_json::Value as Json;

use super::Undo;
use super::added::{item, position};
use crate::inject::cut::{self, Cut, line_start};
use crate::inject::path::{self, Path, below};
use crate::inject::record::Swapped;
use crate::inject::tree::{Node, Value};
use crate::inject::workload::Workload;
use crate::inject::written::{self, Edits};
use crate::inject::{Note, Refused};

impl Undo<'_> {
    pub(super) fn swap_back(
        &mut self,
        workload: &Workload,
        swapped: &Swapped,
        note: &mut Note,
    ) -> Result<(), Refused> {
        let place = self.place_of(workload, swapped);
        let node = match &place {
            Some((path, _)) => path::node(&self.tree.root, path)?,
            None => None,
        };
        let (Some(node), Some((_, is_found))) = (node, place) else {
            note.warn(format!(
                "{} has been removed: it was '{}' before",
                swapped.path, swapped.from
            ));
            return Ok(());
        };
        let written = &self.tree.text[node.span.clone()];
        let edits = written::exactly(written, &swapped.to, &swapped.from, times(swapped));
        let edits = edits.or_else(|| outside_comments(written, swapped));
        let is_unchanged = match &node.value {
            Value::Scalar { text, .. } => is_found && is_as_written(text, swapped),
            _ => false,
        };
        let start = node.span.start;
        match edits.filter(|_| is_unchanged) {
            Some(edits) => self.cuts.extend(edits.into_iter().map(|(range, text)| Cut {
                range: range.start + start..range.end + start,
                text,
                depth: 0,
            })),
            None => match unfolded(written, node, swapped).filter(|_| is_unchanged) {
                // It has been rewritten, with escapes inside.
                Some(text) => self.cuts.push(Cut {
                    range: node.span.clone(),
                    text,
                    depth: 0,
                }),
                None => note.warn(format!(
                    "{} has been changed since the injection and is kept: it was '{}' before",
                    swapped.path, swapped.from
                )),
            },
        }
        Ok(())
    }

    /// The current path of the value, and whether it is the one that was written. An item without a name may have moved within its
    /// list.
    fn place_of(&self, workload: &Workload, swapped: &Swapped) -> Option<(Path, bool)> {
        let recorded = path::find(self.root, &workload.base, &swapped.path);
        let Some((list, index)) = item(&swapped.path) else {
            return Some((recorded?, true));
        };
        let list = path::find(self.root, &workload.base, list)?;
        let items = path::get(self.root, &list)?.as_array()?;
        let text = |at: usize| match items.get(at)? {
            Json::String(text) => Some(text.clone()),
            Json::Number(number) => Some(number.to_string()),
            _ => None,
        };
        // Earlier versions did not record whether it was the whole value.
        let is_whole =
            swapped.whole || (0..items.len()).any(|at| text(at).as_ref() == Some(&swapped.to));
        let is_it = |at: usize| {
            let Some(text) = text(at) else { return false };
            match (is_whole, &swapped.after) {
                (true, Some(after)) => {
                    let before = at.checked_sub(1).and_then(|before| items.get(before));
                    text == swapped.to && before.and_then(Json::as_str) == Some(after)
                }
                (true, None) => text == swapped.to,
                (false, _) => is_as_written(&text, swapped),
            }
        };
        match position(items.len(), index, is_it) {
            Ok(at) => Some((below(&list, [at]), true)),
            Err(_) => Some((recorded?, false)),
        }
    }
}

/// How many occurrences were replaced.
fn times(swapped: &Swapped) -> usize {
    swapped.times.unwrap_or(1)
}

/// Whether a text has the part that was written, as often as it was, and not as a part of a longer word; or is equal to it.
fn is_as_written(text: &str, swapped: &Swapped) -> bool {
    let to = &swapped.to;
    if swapped.whole {
        return text == to;
    }
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let continues = |before: Option<char>, after: Option<char>| is_word(before) && is_word(after);
    let is_alone = |at: usize| {
        !continues(text[..at].chars().next_back(), to.chars().next())
            && !continues(to.chars().next_back(), text[at + to.len()..].chars().next())
    };
    let found = written_in(text, swapped);
    found.is_some_and(|found| found.iter().all(|(range, _)| is_alone(range.start)))
}

/// The edits that restore what was written in a text.
fn written_in(text: &str, swapped: &Swapped) -> Option<Edits> {
    let all = written::literal(text, &swapped.to, &swapped.from);
    let are_all = all.len() == times(swapped);
    are_all
        .then_some(all)
        .or_else(|| outside_comments(text, swapped))
}

/// The same without those in comments of a script, which may describe the change.
fn outside_comments(text: &str, swapped: &Swapped) -> Option<Edits> {
    let mut found = written::literal(text, &swapped.to, &swapped.from);
    found.retain(|(range, _)| !is_in_comment(text, range.start));
    (found.len() == times(swapped)).then_some(found)
}

fn is_in_comment(text: &str, at: usize) -> bool {
    let line = &text[line_start(text, at)..at];
    let mut marks = line.match_indices('#');
    marks.any(|(mark, _)| mark == 0 || line[..mark].ends_with([' ', '\t']))
}

/// The whole scalar with the part restored, unless it is a block scalar.
fn unfolded(written: &str, node: &Node, swapped: &Swapped) -> Option<String> {
    let Value::Scalar { text, plain } = &node.value else {
        return None;
    };
    let is_flow = *plain || written.starts_with(['"', '\'']);
    let edits = written_in(text, swapped).filter(|_| is_flow)?;
    let cuts = edits.into_iter().map(|(range, text)| Cut {
        range,
        text,
        depth: 0,
    });
    Some(Json::from(cut::apply(text, cuts.collect())).to_string())
}
