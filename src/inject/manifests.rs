//! Reads objects from manifests, and writes objects as manifests.

use serde_json::Value as Json;

use super::documents::{content, split};
use super::emit::{Style, entry};
use super::tree::{Tree, Unreadable};
use super::workload::{MAX_LISTS, typed};
use super::{Error, MAX_BYTES};

/// A document of a text.
#[derive(Clone, Debug)]
pub struct Manifest<'a> {
    /// The original text.
    pub text: &'a str,
    /// The number of lines of the text before it.
    pub line: usize,
    /// The objects in it: one, or those of a list.
    pub objects: Vec<Json>,
}

/// The documents of a text that are not empty.
///
/// # Errors
/// When one of them cannot be read.
pub fn manifests(text: &str) -> Result<Vec<Manifest<'_>>, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::TooLarge);
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut manifests = Vec::new();
    for document in split(text) {
        let inner = content(document.text);
        let number = manifests.len() + 1;
        let unreadable = |error: Unreadable| {
            let before = inner.get(..error.at).unwrap_or(inner);
            Error::Unreadable {
                document: number,
                line: document.line + 1 + before.matches('\n').count(),
                message: error.message,
            }
        };
        let Some(tree) = Tree::read(inner).map_err(unreadable)? else {
            continue;
        };
        let json = tree.json().map_err(unreadable)?;
        let mut objects = Vec::new();
        flatten(json, MAX_LISTS, &mut objects);
        manifests.push(Manifest {
            text: inner,
            line: document.line,
            objects,
        });
    }
    Ok(manifests)
}

fn flatten(json: Json, lists: usize, objects: &mut Vec<Json>) {
    let is_list = json["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    match json["items"].as_array() {
        Some(items) if is_list && lists > 0 => {
            for item in items {
                let item = typed(item, &json).unwrap_or_else(|| item.clone());
                flatten(item, lists - 1, objects);
            }
        }
        _ if json.is_null() => {}
        _ => objects.push(json),
    }
}

/// An object as YAML, without a line `---`.
#[must_use]
pub fn yaml(object: &Json) -> String {
    let style = Style {
        step: 2,
        list: 0,
        newline: "\n",
    };
    let fields = object.as_object().into_iter().flatten();
    fields
        .map(|(key, value)| entry(key, value, 0, &style))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_come_from_documents_and_lists_with_the_lines_before_them() {
        let text = "# first\n---\na: 1\n---\n---\nkind: List\nitems:\n- {b: 2}\n- {c: x}\n";
        let read = manifests(text).unwrap();
        let found: Vec<_> = read.iter().map(|one| (one.line, &*one.objects)).collect();
        let list = [json!({"b": 2}), json!({"c": "x"})];
        assert_eq!(found, [(1, &[json!({"a": 1})][..]), (4, &list[..])]);
    }

    #[test]
    fn unreadable_manifests_are_reported_with_their_line() {
        let error = manifests("a: 1\n---\nb: [\n").unwrap_err().to_string();
        assert!(error.starts_with("document 2, line "), "{error}");
    }

    #[test]
    fn written_values_can_be_read_back() {
        let object =
            json!({"a": {"b": ["x: y", 1, true, null, "on", ""]}, "c": [], "d": "two\nlines"});
        let text = yaml(&object);
        assert_eq!(manifests(&text).unwrap()[0].objects, [object], "{text}");
    }
}
