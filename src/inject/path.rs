//! Paths to values: from the root of a document; and for records, where they must remain valid after other tools have rewritten
//! the document.

use serde_json::Value as Json;

use super::tree::{Node, Value};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Key(String),
    Item(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Self::Item(index)
    }
}

pub(super) type Path = Vec<Step>;

/// `path` followed by `steps`.
pub(super) fn below<S: Into<Step>>(path: &[Step], steps: impl IntoIterator<Item = S>) -> Path {
    let mut path = path.to_vec();
    path.extend(steps.into_iter().map(Into::into));
    path
}

pub(super) fn get<'j>(root: &'j Json, path: &[Step]) -> Option<&'j Json> {
    path.iter().try_fold(root, |json, step| match step {
        Step::Key(key) => json.get(key),
        Step::Item(index) => json.get(index),
    })
}

pub(super) fn get_mut<'j>(root: &'j mut Json, path: &[Step]) -> Option<&'j mut Json> {
    path.iter().try_fold(root, |json, step| match step {
        Step::Key(key) => json.get_mut(key),
        Step::Item(index) => json.get_mut(index),
    })
}

/// `path` below `base` in the form used in a record; list items are identified by their name if it is unique.
pub(super) fn record_path(root: &Json, base: &[Step], path: &[Step]) -> String {
    let mut parts = Vec::new();
    let mut at = get(root, base);
    for step in path {
        parts.push(match step {
            Step::Key(key) => key.replace('~', "~0").replace('/', "~1"),
            Step::Item(item) => word_of_item(
                at.and_then(Json::as_array).map_or(&[], Vec::as_slice),
                *item,
            ),
        });
        at = at.and_then(|json| get(json, std::slice::from_ref(step)));
    }
    parts.join("/")
}

fn word_of_item(items: &[Json], index: usize) -> String {
    let name = items.get(index).and_then(|item| item["name"].as_str());
    let is_only = |name: &&str| items.iter().filter(|item| item["name"] == **name).count() == 1;
    match name.filter(is_only) {
        Some(name) => format!("[{name}]"),
        None => format!("[#{index}]"),
    }
}

/// The path below `base` to which the path in a record leads.
pub(super) fn find(root: &Json, base: &[Step], record_path: &str) -> Option<Path> {
    let mut path = base.to_vec();
    for word in record_path.split('/') {
        let json = get(root, &path)?;
        let step = match (
            json,
            word.strip_prefix('[')
                .and_then(|word| word.strip_suffix(']')),
        ) {
            (Json::Array(items), Some(item)) => Step::Item(match item.strip_prefix('#') {
                Some(index) => index.parse().ok()?,
                None => items.iter().position(|json| json["name"] == item)?,
            }),
            _ => Step::Key(word.replace("~1", "/").replace("~0", "~")),
        };
        path.push(step);
    }
    get(root, &path)?;
    Some(path)
}

/// The node at `path`.
///
/// # Errors
/// What prevents an edit there, and at which byte.
pub(super) fn node<'n>(root: &'n Node, path: &[Step]) -> Result<Option<&'n Node>, super::Refused> {
    let mut node = root;
    for step in path {
        let next = match (&node.value, step) {
            (Value::Map { entries, .. }, Step::Key(key)) => {
                if let Some(merge) = entries.iter().find(|entry| entry.key == "<<") {
                    let message = "a merge key (<<) cannot be edited: replace it with the value that it stands for";
                    return Err(super::Refused::at(merge.key_span.start, message));
                }
                entries
                    .iter()
                    .rfind(|entry| entry.key == *key)
                    .map(|entry| &entry.node)
            }
            (Value::List { items, .. }, Step::Item(index)) => items.get(*index),
            _ => None,
        };
        let Some(next) = next else { return Ok(None) };
        if let Value::Alias(_) = next.value {
            let message =
                "an alias (*) cannot be edited: replace it with the value that it stands for";
            return Err(super::Refused::at(next.span.start, message));
        }
        node = next;
    }
    Ok(Some(node))
}
