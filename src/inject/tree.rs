//! Reads one YAML document (which includes JSON) into a tree in which each value has its byte range in the text.
//!
//! Does not depend on the meaning of the document.

mod reader;

use std::collections::HashMap;
use std::ops::Range;

use serde_json::{Map, Value as Json};

use self::reader::Reader;

/// Maximum number of values to which a document may expand through aliases.
const MAX_VALUES: usize = 4_000_000;

/// A value and its position.
#[derive(Debug)]
pub(super) struct Node {
    /// The range of the content, without anchor and tag. Empty if nothing is written.
    pub span: Range<usize>,
    pub value: Value,
    anchor: usize,
}

#[derive(Debug)]
pub(super) enum Value {
    /// The text, unescaped, and whether its type follows from it: it has no quotes, or a tag says so.
    Scalar {
        text: String,
        plain: bool,
    },
    List {
        flow: bool,
        items: Vec<Node>,
    },
    Map {
        flow: bool,
        entries: Vec<Entry>,
    },
    /// The value of the anchor with this number.
    Alias(usize),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub key: String,
    pub key_span: Range<usize>,
    /// The position after the colon.
    pub colon: usize,
    pub node: Node,
}

/// Why a text cannot be parsed, and at which byte.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub at: usize,
    pub message: String,
}

/// One document.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    pub text: &'a str,
    pub root: Node,
    /// The first key that occurs twice in one mapping, and its position.
    pub twice: Option<(String, usize)>,
}

impl<'a> Tree<'a> {
    /// The document of `text`; `None` if it contains only comments.
    pub fn read(text: &'a str) -> Result<Option<Self>, Unreadable> {
        let mut reader = Reader::new(text);
        let Some(root) = reader.document()? else {
            return Ok(None);
        };
        let twice = reader.twice;
        Ok(Some(Self { text, root, twice }))
    }

    /// Its value, with every alias expanded.
    pub fn json(&self) -> Result<Json, Unreadable> {
        let mut anchors = HashMap::new();
        let mut left = MAX_VALUES;
        json(&self.root, &mut anchors, &mut left)
    }

    /// The position of an anchor that is used in another place, and whose value one of these ranges changes; preferably of one that a
    /// range is certain to change, because it does not only border on it.
    pub fn shared(&self, changed: &[Range<usize>]) -> Option<usize> {
        let mut nodes = Vec::new();
        flatten(&self.root, &mut nodes);
        let is_used = |anchor: usize| {
            let mut nodes = nodes.iter();
            nodes.any(|node| matches!(node.value, Value::Alias(alias) if alias == anchor))
        };
        let shared: Vec<_> = nodes
            .iter()
            .filter(|node| node.anchor > 0 && is_used(node.anchor))
            .map(|node| &node.span)
            .collect();
        let within = |span: &&&Range<usize>| {
            let mut changed = changed.iter();
            changed.any(|range| range.start < span.end && range.end > span.start)
        };
        // What is added to a block begins on the line after it.
        let beside = |span: &&&Range<usize>| {
            let rest = &self.text[span.end..];
            let end = span.end + rest.len() - rest.trim_start().len();
            let mut changed = changed.iter();
            changed.any(|range| range.start <= end && range.end >= span.start)
        };
        let mut found = shared.iter().find(within);
        if found.is_none() {
            found = shared.iter().find(beside);
        }
        let span = found?;
        self.text[..span.start].rfind('&')
    }
}

/// All nodes below this one, and itself.
fn flatten<'n>(node: &'n Node, nodes: &mut Vec<&'n Node>) {
    nodes.push(node);
    match &node.value {
        Value::Scalar { .. } | Value::Alias(_) => {}
        Value::List { items, .. } => items.iter().for_each(|item| flatten(item, nodes)),
        Value::Map { entries, .. } => {
            entries.iter().for_each(|entry| flatten(&entry.node, nodes));
        }
    }
}

impl Node {
    pub fn has_anchor(&self) -> bool {
        self.anchor > 0
    }

    pub fn is_nothing(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if is_null(text))
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

fn json<'n>(
    node: &'n Node,
    anchors: &mut HashMap<usize, &'n Node>,
    left: &mut usize,
) -> Result<Json, Unreadable> {
    *left = left.checked_sub(1).ok_or_else(|| Unreadable {
        at: node.span.start,
        message: "aliases expand to too many values".to_owned(),
    })?;
    let value = match &node.value {
        Value::Scalar { text, plain } => match plain {
            true => plain_scalar(text),
            false => Json::from(text.as_str()),
        },
        Value::List { items, .. } => {
            let items = items.iter().map(|item| json(item, anchors, left));
            Json::Array(items.collect::<Result<_, _>>()?)
        }
        Value::Map { entries, .. } => {
            let mut map = Map::new();
            for entry in entries {
                map.insert(entry.key.clone(), json(&entry.node, anchors, left)?);
            }
            Json::Object(map)
        }
        // Registered once its value is complete, so that no value contains itself.
        Value::Alias(anchor) => match anchors.get(anchor) {
            Some(&node) => return json(node, anchors, left),
            None => {
                let message = "an alias of an anchor that is not complete at this point";
                return Err(Unreadable {
                    at: node.span.start,
                    message: message.to_owned(),
                });
            }
        },
    };
    if node.anchor > 0 {
        anchors.insert(node.anchor, node);
    }
    Ok(value)
}

/// A number as JSON writes it. Some readers interpret other numbers differently: to kubectl, 010 is 8.
fn decimal(text: &str) -> Option<i64> {
    let is_decimal = |number: &i64| number.to_string() == text;
    text.parse().ok().filter(is_decimal)
}

fn plain_scalar(text: &str) -> Json {
    match text {
        text if is_null(text) => Json::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        text => decimal(text).map_or_else(|| Json::from(text), Json::from),
    }
}
