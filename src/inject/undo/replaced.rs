//! Restores values that an injection replaced as a whole.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::Undo;
use super::added::{is_for_crossfade, shown};
use crate::inject::cut::{self, Cut, column};
use crate::inject::defaults::Defaults;
use crate::inject::emit::{self, Style};
use crate::inject::path::{self, Path, below};
use crate::inject::record::{Replaced, in_block, in_flow};
use crate::inject::tree::Entry;
use crate::inject::workload::Workload;
use crate::inject::{Note, Refused};

impl Undo<'_> {
    pub(super) fn put_back(
        &mut self,
        workload: &Workload,
        replaced: &Replaced,
        gone: &BTreeSet<Path>,
        note: &mut Note,
    ) -> Result<(), Refused> {
        let Some(path) = path::find(self.root, &workload.base, &replaced.path) else {
            note.warn(format!(
                "{} has been removed and is not restored",
                replaced.path
            ));
            return Ok(());
        };
        // A value that was absent before may have been set by others since.
        let was_nothing = replaced.original().is_some_and(|json| json.is_null());
        let others = match path::get(self.root, &path) {
            Some(Json::Object(map)) => map
                .keys()
                .any(|key| !gone.contains(&below(&path, [key.as_str()]))),
            Some(Json::Array(list)) => {
                (0..list.len()).any(|index| !gone.contains(&below(&path, [index])))
            }
            _ => false,
        };
        if was_nothing && others {
            return Ok(());
        }
        let Some((entry, flow)) = self.entry(&path)? else {
            return Ok(());
        };
        let mut extra = Vec::new();
        let defaults = self.defaults(workload);
        let now = path::get(self.root, &path).unwrap_or(&Json::Null);
        if let Some(new) = &replaced.new
            && !defaults.is_unchanged(now, new)
        {
            match added_by_others(defaults, now, new) {
                Some(items) => extra = items,
                None if is_for_crossfade(now, new) => note.warn(format!(
                    "{} has been changed since the injection, but its original value is restored, because it has no effect without crossfade: it was {}",
                    replaced.path,
                    shown(now)
                )),
                None => {
                    note.warn(format!(
                        "{} has been changed since the injection, so its original value is not restored: it was {} before",
                        replaced.path,
                        replaced.original().map_or_else(|| replaced.was.clone(), |json| shown(&json))
                    ));
                    return Ok(());
                }
            }
        }
        let text = self.tree.text;
        let key = column(text, entry.key_span.start);
        let range = entry.colon..entry.node.span.end;
        let newline = cut::newline(text);
        let was = self.after_colon(replaced, entry, flow);
        let new = if let Some(was) = was.filter(|_| extra.is_empty()) {
            was
        } else {
            let Some(mut json) = replaced.original() else {
                return Err(Refused::of(
                    &path,
                    "cannot be restored, because it used an alias",
                ));
            };
            if let Some(items) = json.as_array_mut() {
                items.append(&mut extra);
            }
            let style = Style {
                step: 2,
                list: 0,
                newline,
            };
            match flow {
                true => format!(" {}", emit::flow(&json, None, &style)),
                false => emit::after_colon(&json, key, &style),
            }
        };
        // A block scalar ends after its line break, everything else before it.
        let range = match text[range.clone()].ends_with('\n') && !new.ends_with('\n') {
            true => range.start..range.end - 1,
            false => range,
        };
        // Cuts that begin within it have no effect.
        self.cuts.retain(|cut| !range.contains(&cut.range.start));
        self.cuts.push(Cut {
            range,
            text: new,
            depth: 0,
        });
        Ok(())
    }

    /// The original text for after the colon of `entry`, if it means the same there.
    fn after_colon(&self, replaced: &Replaced, entry: &Entry, flow: bool) -> Option<String> {
        let text = self.tree.text;
        let key = &text[entry.key_span.clone()];
        let is_json_key = flow && key.starts_with('"');
        let mut was = replaced.was.clone();
        // Compact JSON has no space there, and only a quoted key in flow style needs none.
        if !was.is_empty() && !was.starts_with(char::is_whitespace) && !is_json_key {
            was.insert(0, ' ');
        }
        let column = column(text, entry.key_span.start);
        let same_column = match replaced.column {
            Some(recorded) => !flow && recorded == column,
            None => flow || !was.contains('\n'),
        };
        let breaks = was.matches('\n').count();
        let crlf = was.matches("\r\n").count();
        let same_breaks = breaks == 0 || (cut::newline(text) == "\r\n") == (crlf == breaks);
        let read = match flow {
            _ if self.is_json => serde_json::from_str(&was).ok(),
            true => in_flow(&was),
            false => in_block(&was, column),
        };
        let means_the_same = match read {
            Some(read) => replaced.original() == Some(read),
            // It has an alias.
            None => !self.is_json && replaced.value.is_some() && has_anchors(text, &was),
        };
        (same_column && same_breaks && means_the_same).then_some(was)
    }
}

/// The items of a list beyond those that were written, if it still contains them all.
fn added_by_others(defaults: Defaults, now: &Json, written: &Json) -> Option<Vec<Json>> {
    let mut items = now.as_array()?.clone();
    for written in written.as_array()? {
        let at = items
            .iter()
            .position(|item| defaults.is_unchanged(item, written))?;
        items.remove(at);
    }
    Some(items)
}

/// Whether the document contains the anchors of all aliases in `was`.
fn has_anchors(document: &str, was: &str) -> bool {
    let ends = |at: char| at.is_whitespace() || "[]{},".contains(at);
    let mut aliases = was.split(ends).filter_map(|word| word.strip_prefix('*'));
    aliases.all(|alias| {
        let anchors = document
            .split(ends)
            .filter_map(|word| word.strip_prefix('&'));
        anchors.into_iter().any(|anchor| anchor == alias)
    })
}
