//! Edits a document by paths: changes only the bytes that must change, and proves the result by reading it again.

mod additions;
mod members;
mod place;

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::Value as Json;

use self::additions::Addition;
use super::Refused;
use super::cut::{self, Cut, column};
use super::emit::{self, Style};
use super::path::{self, Step};
use super::record::{Record, Replaced, Swapped};
use super::tree::{Entry, Node, Tree, Value};
use super::written;

/// Maximum length of a value that is kept in a record, in bytes.
const MAX_WAS: usize = 64 * 1024;

pub(super) struct Editor<'a> {
    tree: &'a Tree<'a>,
    /// The values that the final document must contain.
    wanted: Json,
    style: Style,
    cuts: Vec<Cut>,
    additions: Vec<Addition>,
    /// The object that creates the pods, where the paths in the record start.
    base: usize,
    record: Record,
}

/// Why a part of a scalar cannot be replaced.
fn not_there(value: Option<&Json>, from: &str, to: &str, times: usize) -> String {
    let text = value.and_then(Json::as_str).unwrap_or_default();
    let [shown, new] = [from, to].map(|text| text.replace('\n', "\\n").replace('\t', "\\t"));
    match text.matches(from).count() {
        count if count == times => format!(
            "'{shown}' cannot be changed to '{new}', because the text here is written with escapes: write it as a block (|), or in \
             single quotes; from a cluster, read it with kubectl get -o yaml"
        ),
        _ => format!(
            "'{shown}' must occur here exactly once and literally, so that it can be changed to '{new}'"
        ),
    }
}

impl<'a> Editor<'a> {
    pub fn new(tree: &'a Tree<'a>, json: Json) -> Self {
        Self {
            tree,
            wanted: json,
            style: Style {
                step: 2,
                list: 0,
                newline: cut::newline(tree.text),
            },
            cuts: Vec::new(),
            additions: Vec::new(),
            base: 0,
            record: Record::default(),
        }
    }

    /// Starts editing the pod template of the object at `base`, in the style of the list at `list`.
    pub fn begin(&mut self, base: &[Step], list: &[Step]) -> Result<(), Refused> {
        self.base = base.len();
        self.record = Record::default();
        if let Some((parent, entry)) = self.entry(list)? {
            let key = column(self.tree.text, entry.key_span.start);
            if let Value::List { flow: false, items } = &entry.node.value
                && let Some(first) = items.first()
            {
                let dash = column(self.tree.text, cut::dash(self.tree.text, first.span.start));
                self.style.list = dash.saturating_sub(key);
            }
            let outer = match parent.len() {
                0 => None,
                _ => self
                    .entry(parent)?
                    .map(|(_, entry)| column(self.tree.text, entry.key_span.start)),
            };
            self.style.step = outer
                .map_or(2, |outer| key.saturating_sub(outer))
                .clamp(1, 8);
        }
        Ok(())
    }

    /// The changes since [`Self::begin`].
    pub fn record(&mut self) -> &mut Record {
        &mut self.record
    }

    /// The port that clients connect to, since [`Self::begin`].
    pub fn port(&self) -> u16 {
        self.record.port
    }

    /// The current content of the document.
    pub fn get(&self, path: &[Step]) -> Option<&Json> {
        path::get(&self.wanted, path)
    }

    /// The whole document in its current state.
    pub fn wanted(&self) -> &Json {
        &self.wanted
    }

    fn node(&self, path: &[Step]) -> Result<Option<&'a Node>, Refused> {
        path::node(&self.tree.root, path)
    }

    /// Whether values can be added at `path` without changing others: it is neither in an alias nor in a value with an anchor.
    pub fn is_alone(&self, path: &[Step]) -> bool {
        (0..=path.len()).all(|depth| {
            let node = self.node(&path[..depth]);
            node.is_ok_and(|node| node.is_some_and(|node| !node.has_anchor()))
        })
    }

    fn entry<'p>(&self, path: &'p [Step]) -> Result<Option<(&'p [Step], &'a Entry)>, Refused> {
        let Some((Step::Key(key), parent)) = path.split_last() else {
            return Ok(None);
        };
        let Some(Node {
            value: Value::Map { entries, .. },
            ..
        }) = self.node(parent)?
        else {
            return Ok(None);
        };
        let entry = entries.iter().rfind(|entry| entry.key == *key);
        Ok(entry.map(|entry| (parent, entry)))
    }

    fn record_path(&self, path: &[Step]) -> String {
        path::record_path(&self.wanted, &path[..self.base], &path[self.base..])
    }

    fn no_place(&self, path: &[Step], what: &str) -> Refused {
        let at = (0..=path.len()).rev().find_map(|depth| {
            let node = self.node(&path[..depth]).ok()??;
            Some(node.span.start)
        });
        let shown = path::record_path(&self.wanted, &[], path);
        Refused::at(at.unwrap_or(0), format!("{shown} must be {what}"))
    }

    /// Replaces the value at `path`, whose last step is a key, with `value`.
    pub fn set(&mut self, path: &[Step], value: Json) -> Result<(), Refused> {
        let (parent, entry) = self.entry_at(path)?;
        let text = self.tree.text;
        let range = entry.colon..entry.node.span.end;
        if range.len() > MAX_WAS {
            return Err(Refused::at(
                range.start,
                "is too long to be kept for uninject",
            ));
        }
        let is_flow = self
            .node(parent)?
            .is_some_and(|node| matches!(node.value, Value::Map { flow: true, .. }));
        let key = column(text, entry.key_span.start);
        let mut new = match is_flow {
            true => format!(" {}", emit::flow(&value, None, &self.style)),
            false => emit::after_colon(&value, key, &self.style),
        };
        let was = text[range.clone()].to_owned();
        if was.ends_with('\n') {
            new.push_str(self.style.newline);
        }
        let column = (!is_flow).then_some(key);
        let recorded = self.record_path(path);
        let mut replaced = Replaced {
            path: recorded,
            was,
            column,
            value: None,
            new: Some(value.clone()),
        };
        if replaced.original().is_none() {
            let value = path::get(&self.wanted, path);
            replaced.value = value
                .filter(|value| value.to_string().len() <= MAX_WAS)
                .cloned();
        }
        self.record.replaced.push(replaced);
        self.cut(range, new, path.len());
        if let Some(place) = path::get_mut(&mut self.wanted, path) {
            *place = value;
        }
        Ok(())
    }

    /// Replaces the only `from` in the scalar at `path` with `to`.
    pub fn swap(&mut self, path: &[Step], from: &str, to: &str) -> Result<(), Refused> {
        self.swap_all(path, from, to, 1)
    }

    /// Replaces every `from` in the scalar at `path`, which must have it so many times.
    pub fn swap_all(
        &mut self,
        path: &[Step],
        from: &str,
        to: &str,
        times: usize,
    ) -> Result<(), Refused> {
        let Some(node) = self.node(path)? else {
            return Err(self.no_place(path, "there"));
        };
        let scalar = &self.tree.text[node.span.clone()];
        let start = node.span.start;
        let Some(edits) = written::exactly(scalar, from, to, times) else {
            let message = not_there(self.get(path), from, to, times);
            return Err(Refused::at(start, message));
        };
        let (from, to) = (from.to_owned(), to.to_owned());
        for (range, new) in edits {
            self.cut(range.start + start..range.end + start, new, path.len());
        }
        let mut whole = true;
        if let Some(place) = path::get_mut(&mut self.wanted, path) {
            *place = match place.as_str() {
                Some(text) => {
                    whole = text == from;
                    text.replacen(&from, &to, times).into()
                }
                None => serde_json::from_str(&to).unwrap_or_default(),
            };
        }
        let before = match path.split_last() {
            Some((Step::Item(index), list)) if *index > 0 => {
                self.get(&path::below(list, [index - 1]))
            }
            _ => None,
        };
        let is_value = whole && !to.starts_with('-');
        let after = before.and_then(Json::as_str).filter(|_| is_value);
        let after = after.map(str::to_owned);
        // Use the current name, which may have been changed.
        let path = self.record_path(path);
        self.record.swapped.push(Swapped {
            path,
            from,
            to,
            times: (times > 1).then_some(times),
            whole,
            after,
        });
        Ok(())
    }

    fn entry_at<'p>(&self, path: &'p [Step]) -> Result<(&'p [Step], &'a Entry), Refused> {
        self.entry(path)?
            .ok_or_else(|| self.no_place(path, "there"))
    }

    fn cut(&mut self, range: Range<usize>, text: String, depth: usize) {
        self.cuts.push(Cut { range, text, depth });
    }

    /// The text with all edits.
    ///
    /// # Errors
    /// When the document is written in a way that would change the meaning of the edits.
    pub fn finish(mut self) -> Result<String, Refused> {
        let additions = std::mem::take(&mut self.additions);
        let mut counts = BTreeMap::new();
        for addition in &additions {
            let before = counts.entry(&addition.parent).or_insert(0);
            self.add(addition, *before)?;
            *before += 1;
        }
        let changed: Vec<_> = self.cuts.iter().map(|cut| cut.range.clone()).collect();
        let text = cut::apply(self.tree.text, self.cuts);
        let read = Tree::read(&text).ok().flatten();
        match read.map(|tree| tree.json()) {
            Some(Ok(json)) if json == self.wanted => Ok(text),
            _ => Err(match self.tree.shared(&changed) {
                Some(anchor) => Refused::at(
                    anchor,
                    "a part with an anchor (&) must change, and the anchor is used in another place: write both parts without the anchor",
                ),
                None => Refused::at(
                    self.tree.root.span.start,
                    "is written in a way that cannot be edited safely: write it without anchors, in plain block style",
                ),
            }),
        }
    }
}
