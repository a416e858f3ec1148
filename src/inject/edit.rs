//! Edits a document by paths: changes only the bytes that must change, and proves the result by reading it again.

mod members;
mod place;

use std::ops::Range;

use serde_json::{Map, Value as Json};

use super::Refused;
use super::cut::{self, Cut, column};
use super::emit::{self, Style};
use super::path::{self, Path, Step};
use super::record::{Record, Replaced, Swapped};
use super::tree::{Entry, Node, Tree, Value};

/// Longest value that is kept in a record, in bytes.
const MAX_WAS: usize = 64 * 1024;

pub(super) struct Editor<'a> {
    tree: &'a Tree<'a>,
    /// What the document must say in the end.
    wanted: Json,
    style: Style,
    cuts: Vec<Cut>,
    additions: Vec<Addition>,
    /// The object that makes the pods, from which the record's paths go.
    base: usize,
    record: Record,
}

/// A value that joins the mapping or list at `parent`, or takes the place of nothing that is written there under `key`.
struct Addition {
    parent: Path,
    key: Option<String>,
    value: Json,
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

    /// From now on, edits belong to the pods made by the object at `base`, and are written as what is at `list` is.
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

    /// What was changed since [`Self::begin`].
    pub fn record(&mut self) -> &mut Record {
        &mut self.record
    }

    /// Where clients connect, since [`Self::begin`].
    pub fn port(&self) -> u16 {
        self.record.port
    }

    /// What the document says by now.
    pub fn get(&self, path: &[Step]) -> Option<&Json> {
        path::get(&self.wanted, path)
    }

    fn node(&self, path: &[Step]) -> Result<Option<&'a Node>, Refused> {
        path::node(&self.tree.root, path)
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

    fn words(&self, path: &[Step]) -> String {
        path::words(&self.wanted, &path[..self.base], &path[self.base..])
    }

    /// Adds `value` at `path`, which ends with a key and is not there yet, and whatever must be there to hold it.
    pub fn put(&mut self, path: &[Step], value: Json) -> Result<(), Refused> {
        let (key, parent) = key_of(path);
        self.make(parent, Json::Object(Map::new()))?;
        let is_old = self.node(parent)?.is_some_and(|node| !node.is_nothing());
        let holder = path::get_mut(&mut self.wanted, parent).and_then(Json::as_object_mut);
        let Some(holder) = holder else {
            return Err(self.no_place(parent, "a mapping"));
        };
        let was = holder.insert(key.to_owned(), value.clone());
        let words = self.words(path);
        self.record.added.push(words);
        match is_old {
            true => self.join(parent, Some(key), value, was.is_some()),
            false => self.grow(path, value),
        }
    }

    /// Appends `value` to the list at `path`, which is made if it is not there.
    pub fn push(&mut self, path: &[Step], value: Json) -> Result<(), Refused> {
        self.make(path, Json::Array(Vec::new()))?;
        let is_old = self.node(path)?.is_some_and(|node| !node.is_nothing());
        let holder = path::get_mut(&mut self.wanted, path).and_then(Json::as_array_mut);
        let Some(list) = holder else {
            return Err(self.no_place(path, "a list"));
        };
        list.push(value.clone());
        let item = path::below(path, [list.len() - 1]);
        let words = self.words(&item);
        self.record.added.push(words);
        match is_old {
            true => self.join(path, None, value, false),
            false => self.grow(&item, value),
        }
    }

    /// Makes what must hold a value, if it is not there.
    fn make(&mut self, path: &[Step], empty: Json) -> Result<(), Refused> {
        if self.get(path).is_some_and(|json| !json.is_null()) {
            return Ok(());
        }
        let (key, parent) = key_of(path);
        self.make(parent, Json::Object(Map::new()))?;
        let is_old = self.node(parent)?.is_some_and(|node| !node.is_nothing());
        let nothing = self.entry(path)?.map(|(_, entry)| entry);
        let Some(holder) = path::get_mut(&mut self.wanted, parent).and_then(Json::as_object_mut)
        else {
            return Err(self.no_place(parent, "a mapping"));
        };
        holder.insert(key.to_owned(), empty.clone());
        let words = self.words(path);
        match nothing {
            // Nothing is written there, but its key is.
            Some(entry) => {
                let was = self.tree.text[entry.colon..entry.node.span.end].to_owned();
                let column = None;
                self.record.replaced.push(Replaced {
                    path: words,
                    was,
                    column,
                });
            }
            None => self.record.made.push(words),
        }
        match is_old {
            true => self.join(parent, Some(key), empty, nothing.is_some()),
            false => self.grow(path, empty),
        }
    }

    /// Adds to what is in the document.
    fn join(
        &mut self,
        parent: &[Step],
        key: Option<&str>,
        value: Json,
        is_there: bool,
    ) -> Result<(), Refused> {
        if is_there
            && self
                .entry(&path::below(parent, key))?
                .is_none_or(|(_, entry)| !entry.node.is_nothing())
        {
            return Err(self.no_place(parent, "a mapping without that key"));
        }
        self.additions.push(Addition {
            parent: parent.to_vec(),
            key: key.map(str::to_owned),
            value,
        });
        Ok(())
    }

    /// Adds to what was added.
    fn grow(&mut self, path: &[Step], value: Json) -> Result<(), Refused> {
        let holds = |addition: &&mut Addition| {
            let depth = addition.parent.len();
            let key = addition.key.as_deref().map(Step::from);
            path.starts_with(&addition.parent) && key.is_some() && path.get(depth) == key.as_ref()
        };
        let Some(addition) = self.additions.iter_mut().find(holds) else {
            return Err(Refused::at(0, "there is no place for what must be added"));
        };
        let rest = &path[addition.parent.len() + 1..];
        let (last, above) = rest.split_last().unwrap_or((&Step::Item(0), &[]));
        match (path::get_mut(&mut addition.value, above), last) {
            (Some(Json::Object(map)), Step::Key(key)) => {
                map.insert(key.clone(), value);
            }
            (Some(Json::Array(list)), Step::Item(_)) => list.push(value),
            _ => return Err(Refused::at(0, "there is no place for what must be added")),
        }
        Ok(())
    }

    /// Gives a value that was added before another content.
    pub fn fill(&mut self, path: &[Step], value: Json) -> Result<(), Refused> {
        if let Some(place) = path::get_mut(&mut self.wanted, path) {
            *place = value.clone();
        }
        let (key, parent) = key_of(path);
        let of = |addition: &&mut Addition| {
            addition.parent == parent && addition.key.as_deref() == Some(key)
        };
        match self.additions.iter_mut().find(of) {
            Some(addition) => {
                addition.value = value;
                Ok(())
            }
            None => self.grow(path, value),
        }
    }

    fn no_place(&self, path: &[Step], what: &str) -> Refused {
        let at = (0..=path.len()).rev().find_map(|depth| {
            let node = self.node(&path[..depth]).ok()??;
            Some(node.span.start)
        });
        let shown = path::words(&self.wanted, &[], path);
        Refused::at(at.unwrap_or(0), format!("{shown} must be {what}"))
    }

    /// Puts `value` in place of what stands at `path`, which ends with a key.
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
            false => emit::behind_colon(&value, key, &self.style),
        };
        let was = text[range.clone()].to_owned();
        if was.ends_with('\n') {
            new.push_str(self.style.newline);
        }
        let column = (!is_flow).then_some(key);
        let words = self.words(path);
        self.record.replaced.push(Replaced {
            path: words,
            was,
            column,
        });
        self.cut(range, new, path.len());
        if let Some(place) = path::get_mut(&mut self.wanted, path) {
            *place = value;
        }
        Ok(())
    }

    /// Exchanges the one `from` in the scalar at `path` for `to`.
    pub fn swap(&mut self, path: &[Step], from: &str, to: &str) -> Result<(), Refused> {
        let Some(node) = self.node(path)? else {
            return Err(self.no_place(path, "there"));
        };
        let written = &self.tree.text[node.span.clone()];
        let mut places = written.match_indices(from);
        let (Some((at, _)), None) = (places.next(), places.next()) else {
            let message =
                format!("'{from}' must stand here once, as it is, to be changed to '{to}'");
            return Err(Refused::at(node.span.start, message));
        };
        let start = node.span.start + at;
        let (from, to) = (from.to_owned(), to.to_owned());
        self.cut(start..start + from.len(), to.clone(), path.len());
        if let Some(place) = path::get_mut(&mut self.wanted, path) {
            *place = match place.as_str() {
                Some(text) => text.replacen(&from, &to, 1).into(),
                None => serde_json::from_str(&to).unwrap_or_default(),
            };
        }
        // As it is called now: a name may have been exchanged.
        let path = self.words(path);
        self.record.swapped.push(Swapped { path, from, to });
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
    /// When the document is written in a way in which they would not mean what they should.
    pub fn finish(mut self) -> Result<String, Refused> {
        let additions = std::mem::take(&mut self.additions);
        for (index, addition) in additions.iter().enumerate() {
            let same = additions[..index]
                .iter()
                .filter(|other| other.parent == addition.parent);
            self.add(addition, same.count())?;
        }
        let text = cut::apply(self.tree.text, self.cuts);
        let read = Tree::read(&text).ok().flatten();
        match read.map(|tree| tree.json()) {
            Some(Ok(json)) if json == self.wanted => Ok(text),
            _ => Err(Refused::at(
                self.tree.root.span.start,
                "is written in a way that cannot be edited safely: an anchor (&) of a part that must change is used in \
                 another place, or the style is unusual; write it without anchors, in plain block style",
            )),
        }
    }
}

/// The last key of a path, and the path to what holds it.
fn key_of(path: &[Step]) -> (&str, &[Step]) {
    match path.split_last() {
        Some((Step::Key(key), parent)) => (key, parent),
        _ => ("", path),
    }
}
