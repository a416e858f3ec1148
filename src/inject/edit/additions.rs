//! Edits that add values: to the document, or to a value that was added before.

use serde_json::{Map, Value as Json, json};

use super::super::Refused;
use super::super::path::{self, Path, Step};
use super::super::record::Replaced;
use super::super::sidecar::NAME;
use super::Editor;

/// A value that is added to the mapping or list at `parent`, or set for a key that has no value.
pub(super) struct Addition {
    pub parent: Path,
    /// Its key in the mapping, or its index in the list.
    pub step: Step,
    pub value: Json,
}

impl Addition {
    /// `None` in a list.
    pub fn key(&self) -> Option<&str> {
        match &self.step {
            Step::Key(key) => Some(key),
            Step::Item(_) => None,
        }
    }
}

impl Editor<'_> {
    /// Adds `value` at `path`, which ends with a key and does not exist yet, together with missing parents.
    pub fn put(&mut self, path: &[Step], value: Json) -> Result<(), Refused> {
        let (key, parent) = key_of(path);
        self.make(parent, Json::Object(Map::new()))?;
        let is_old = self.node(parent)?.is_some_and(|node| !node.is_nothing());
        let holder = path::get_mut(&mut self.wanted, parent).and_then(Json::as_object_mut);
        let Some(holder) = holder else {
            return Err(self.no_place(parent, "a mapping"));
        };
        let was = holder.insert(key.to_owned(), value.clone());
        let recorded = self.record_path(path);
        match self.entry(path)?.map(|(_, entry)| entry) {
            // The key exists, without a value.
            Some(entry) if was.is_some() => {
                // Later additions by others are recognized by the members that this does not list.
                for (key, member) in value.as_object().into_iter().flatten() {
                    let recorded = self.record_path(&path::below(path, [key.as_str()]));
                    self.added(recorded, member);
                }
                self.record.replaced.push(Replaced {
                    path: recorded,
                    was: self.tree.text[entry.colon..entry.node.span.end].to_owned(),
                    column: None,
                    value: None,
                    new: (!value.is_object()).then(|| value.clone()),
                });
            }
            _ => self.added(recorded, &value),
        }
        match is_old {
            true => self.join(path, value, was.is_some()),
            false => self.grow(path, value),
        }
    }

    /// Appends `value` to the list at `path`, which is created if it does not exist.
    pub fn push(&mut self, path: &[Step], value: Json) -> Result<(), Refused> {
        let recorded = self.append(path, value.clone())?;
        self.added(recorded, &value);
        Ok(())
    }

    fn added(&mut self, recorded: String, value: &Json) {
        if value["name"] != NAME {
            self.record.values.insert(recorded.clone(), value.clone());
        }
        self.record.added.push(recorded);
    }

    /// Appends a mapping that has only a `name` to the list at `path`, for members that are added to it. Uninject removes it only
    /// if no other member has been added.
    pub fn push_named(&mut self, path: &[Step], name: &str) -> Result<(), Refused> {
        let recorded = self.append(path, json!({"name": name}))?;
        self.record.made.push(recorded);
        Ok(())
    }

    /// Returns the path of the new item in the form used in the record.
    fn append(&mut self, path: &[Step], value: Json) -> Result<String, Refused> {
        self.make(path, Json::Array(Vec::new()))?;
        let is_old = self.node(path)?.is_some_and(|node| !node.is_nothing());
        let holder = path::get_mut(&mut self.wanted, path).and_then(Json::as_array_mut);
        let Some(list) = holder else {
            return Err(self.no_place(path, "a list"));
        };
        list.push(value.clone());
        let item = path::below(path, [list.len() - 1]);
        match is_old {
            true => self.join(&item, value, false)?,
            false => self.grow(&item, value)?,
        }
        Ok(self.record_path(&item))
    }

    /// Creates missing parents.
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
        let recorded = self.record_path(path);
        match nothing {
            // The key is written, but not a value.
            Some(entry) => {
                let was = self.tree.text[entry.colon..entry.node.span.end].to_owned();
                let column = None;
                self.record.replaced.push(Replaced {
                    path: recorded,
                    was,
                    column,
                    value: None,
                    new: None,
                });
            }
            None => self.record.made.push(recorded),
        }
        match is_old {
            true => self.join(path, empty, nothing.is_some()),
            false => self.grow(path, empty),
        }
    }

    /// Adds to a value of the document.
    fn join(&mut self, path: &[Step], value: Json, is_there: bool) -> Result<(), Refused> {
        let Some((step, parent)) = path.split_last() else {
            return Err(self.no_place(path, "a part of a mapping or list"));
        };
        if is_there
            && self
                .entry(path)?
                .is_none_or(|(_, entry)| !entry.node.is_nothing())
        {
            return Err(self.no_place(parent, "a mapping without that key"));
        }
        self.additions.push(Addition {
            parent: parent.to_vec(),
            step: step.clone(),
            value,
        });
        Ok(())
    }

    /// Adds to a value that was added.
    fn grow(&mut self, path: &[Step], value: Json) -> Result<(), Refused> {
        let holds = |addition: &&mut Addition| {
            let depth = addition.parent.len();
            path.starts_with(&addition.parent) && path.get(depth) == Some(&addition.step)
        };
        // It was most likely added to the same object.
        let Some(addition) = self.additions.iter_mut().rfind(holds) else {
            return Err(Refused::at(0, "nothing can be added here"));
        };
        let rest = &path[addition.parent.len() + 1..];
        let (last, above) = rest.split_last().unwrap_or((&Step::Item(0), &[]));
        match (path::get_mut(&mut addition.value, above), last) {
            (Some(Json::Object(map)), Step::Key(key)) => {
                map.insert(key.clone(), value);
            }
            (Some(Json::Array(list)), Step::Item(_)) => list.push(value),
            _ => return Err(Refused::at(0, "nothing can be added here")),
        }
        Ok(())
    }

    /// Changes a value that was added before.
    pub fn fill(&mut self, path: &[Step], value: Json) -> Result<(), Refused> {
        if let Some(place) = path::get_mut(&mut self.wanted, path) {
            *place = value.clone();
        }
        let (key, parent) = key_of(path);
        let of =
            |addition: &&mut Addition| addition.parent == parent && addition.key() == Some(key);
        match self.additions.iter_mut().rfind(of) {
            Some(addition) => {
                addition.value = value;
                Ok(())
            }
            None => self.grow(path, value),
        }
    }
}

/// The last key of a path, and the path of its parent.
fn key_of(path: &[Step]) -> (&str, &[Step]) {
    match path.split_last() {
        Some((Step::Key(key), parent)) => (key, parent),
        _ => ("", path),
    }
}
