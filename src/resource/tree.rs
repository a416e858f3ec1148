//! A parsed document as a tree of nodes with line numbers.
//!
//! Does not depend on the syntax or the meaning of the document.

use std::fmt;

use serde_json::Value as Json;

/// A value and its line: the line of its key or, in a list, the line on which it starts. Lines count from 1; a value that is
/// not from a file has none.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub line: Option<usize>,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A field of a map. Keys in a map from a file are unique.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub key: String,
    pub node: Node,
}

impl Node {
    /// The field `key`, if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        let Value::Map(entries) = &self.value else {
            return None;
        };
        let entry = entries.iter().find(|entry| entry.key == key)?;
        Some(&entry.node)
    }

    /// The field `key`, if it is text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The line of the field at `path` or, if that is missing, of its closest existing parent.
    pub fn line_of(&self, path: &str) -> Option<usize> {
        let steps = path.split(['.', '[', ']']).filter(|step| !step.is_empty());
        let mut node = self;
        for step in steps {
            let next = match &node.value {
                Value::List(items) => step.parse().ok().and_then(|index: usize| items.get(index)),
                _ => node.get(step),
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node.line
    }
}

impl From<Json> for Node {
    fn from(json: Json) -> Self {
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(value),
            Json::Number(number) => number
                .as_i64()
                .map(Value::Integer)
                .or(number.as_f64().map(Value::Float))
                .unwrap_or(Value::Null),
            Json::String(text) => Value::Text(text),
            Json::Array(items) => Value::List(items.into_iter().map(Node::from).collect()),
            Json::Object(fields) => Value::Map(
                fields
                    .into_iter()
                    .map(|(key, value)| Entry {
                        key,
                        node: Node::from(value),
                    })
                    .collect(),
            ),
        };
        Node { line: None, value }
    }
}

/// A short description of the value, for messages about what was found instead.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => value.fmt(f),
            Value::Integer(value) => value.fmt(f),
            Value::Float(value) => write!(f, "{value:?}"),
            Value::Text(text) => match text.char_indices().nth(40) {
                Some((end, _)) => write!(f, "the text {:?}…", &text[..end]),
                None => write!(f, "the text {text:?}"),
            },
            Value::List(_) => f.write_str("a list"),
            Value::Map(_) => f.write_str("an object"),
        }
    }
}
