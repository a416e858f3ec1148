//! Reads one YAML document (JSON is that too) into a tree that knows which bytes of the text each value stands in.
//!
//! Must not know what the document says.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, StrInput, StructureStyle, options};
use serde_json::{Map, Value as Json};

/// Most values that a document may unfold to by its aliases.
const MAX_VALUES: usize = 4_000_000;

/// A value and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    /// From the first to behind the last byte of the content, without anchor and tag. Empty where nothing is written.
    pub span: Range<usize>,
    pub value: Value,
    anchor: usize,
}

#[derive(Debug)]
pub(super) enum Value {
    /// The text that is meant, and whether it is written without quotes.
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
    /// What the anchor with this number stands for.
    Alias(usize),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub key: String,
    pub key_span: Range<usize>,
    /// Just behind the colon.
    pub colon: usize,
    pub node: Node,
}

/// Why a text is no tree, and at which byte.
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
    /// The first key that stands twice in one mapping, and where.
    pub twice: Option<(String, usize)>,
}

impl<'a> Tree<'a> {
    /// The document of `text`; none if it holds comments at most.
    pub fn read(text: &'a str) -> Result<Option<Self>, Unreadable> {
        let options = options! { emit_comments: false };
        let mut reader = Reader {
            text,
            parser: Parser::new_from_str_with_options(text, options),
            twice: None,
        };
        let Some(root) = reader.document()? else {
            return Ok(None);
        };
        let twice = reader.twice;
        Ok(Some(Self { text, root, twice }))
    }

    /// What it says, with every alias unfolded.
    pub fn json(&self) -> Result<Json, Unreadable> {
        let mut anchors = HashMap::new();
        let mut left = MAX_VALUES;
        json(&self.root, &mut anchors, &mut left)
    }
}

impl Node {
    pub fn is_nothing(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if is_null(text))
    }
}

struct Reader<'a> {
    text: &'a str,
    parser: Parser<'a, StrInput<'a>>,
    twice: Option<(String, usize)>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Range<usize>), Unreadable> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.byte_range().unwrap_or_default())),
            Some(Err(error)) => Err(Unreadable {
                at: error.marker().byte_offset().unwrap_or(0),
                message: format!("no valid YAML: {}", error.info()),
            }),
            None => Ok((Event::StreamEnd, self.text.len()..self.text.len())),
        }
    }

    fn document(&mut self) -> Result<Option<Node>, Unreadable> {
        let mut root: Option<Node> = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event if root.is_none() => root = Some(self.node(event, span, 0)?),
                _ => {
                    let message = "a second document without a line '---' before it".to_owned();
                    let at = span.start;
                    return Err(Unreadable { at, message });
                }
            }
        }
        Ok(root.filter(|root| !root.is_nothing()))
    }

    /// `after`: where what is written of this value begins at the earliest.
    fn node(
        &mut self,
        event: Event<'a>,
        span: Range<usize>,
        after: usize,
    ) -> Result<Node, Unreadable> {
        let (value, anchor, span) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let value = scalar(text, style);
                // That of a block scalar goes into the indentation of the next line.
                let head = self.text[..span.end].trim_end_matches(' ');
                let span = match matches!(style, ScalarStyle::Literal | ScalarStyle::Folded)
                    && head.ends_with('\n')
                {
                    true => span.start.min(head.len())..head.len(),
                    false => span,
                };
                let written = match span.is_empty() && style == ScalarStyle::Plain {
                    true => after..after,
                    false => span,
                };
                (value, anchor, written)
            }
            Event::Alias(anchor) => (Value::Alias(anchor), 0, span),
            Event::SequenceStart(style, anchor, _) => {
                let flow = style == StructureStyle::Flow;
                let (items, end) = self.list(flow, span.end)?;
                (Value::List { flow, items }, anchor, span.start..end)
            }
            Event::MappingStart(style, anchor, _) => {
                let flow = style == StructureStyle::Flow;
                let (entries, end) = self.map(flow, span.end)?;
                (Value::Map { flow, entries }, anchor, span.start..end)
            }
            other => {
                let message = format!("no valid YAML: {other:?} in place of a value");
                return Err(Unreadable {
                    at: span.start,
                    message,
                });
            }
        };
        Ok(Node {
            span,
            value,
            anchor,
        })
    }

    fn list(&mut self, flow: bool, start: usize) -> Result<(Vec<Node>, usize), Unreadable> {
        let mut items: Vec<Node> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let last = items.last().map_or(start, |item| item.span.end);
            if matches!(event, Event::SequenceEnd) {
                return Ok((items, if flow { span.end } else { last }));
            }
            let after = self.behind('-', last).unwrap_or(last);
            items.push(self.node(event, span, after)?);
        }
    }

    fn map(&mut self, flow: bool, start: usize) -> Result<(Vec<Entry>, usize), Unreadable> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut known = std::collections::HashSet::new();
        loop {
            let (event, key_span) = self.next()?;
            let key = match event {
                Event::MappingEnd => {
                    let last = entries.last().map_or(start, |entry| entry.node.span.end);
                    return Ok((entries, if flow { key_span.end } else { last }));
                }
                Event::Scalar(text, ..) => text.into_owned(),
                _ => {
                    let message = "a key must be plain text".to_owned();
                    let at = key_span.start;
                    return Err(Unreadable { at, message });
                }
            };
            let colon = self.behind(':', key_span.end).unwrap_or(key_span.end);
            let (event, span) = self.next()?;
            let node = self.node(event, span, colon)?;
            if !known.insert(key.clone()) && self.twice.is_none() {
                self.twice = Some((key.clone(), key_span.start));
            }
            entries.push(Entry {
                key,
                key_span,
                colon,
                node,
            });
        }
    }

    /// Just behind `mark`, if nothing but blanks stands before it.
    fn behind(&self, mark: char, from: usize) -> Option<usize> {
        let rest = self.text.get(from..)?;
        let blanks = rest.len() - rest.trim_start().len();
        rest[blanks..]
            .starts_with(mark)
            .then_some(from + blanks + mark.len_utf8())
    }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle) -> Value {
    Value::Scalar {
        text: text.into_owned(),
        plain: style == ScalarStyle::Plain,
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
        message: "aliases unfold to too much".to_owned(),
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
        // Known once its value is complete, so that nothing holds itself.
        Value::Alias(anchor) => match anchors.get(anchor) {
            Some(&node) => return json(node, anchors, left),
            None => {
                let message = "an alias of something that is no complete value before it";
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

fn plain_scalar(text: &str) -> Json {
    match text {
        text if is_null(text) => Json::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        text => text
            .parse::<i64>()
            .map_or_else(|_| Json::from(text), Json::from),
    }
}
