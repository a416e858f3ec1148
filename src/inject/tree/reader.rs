//! Builds the tree from the events of the parser.

use std::borrow::Cow;
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, StrInput, StructureStyle, Tag, options};

use super::{Entry, Node, Unreadable, Value};

pub(super) struct Reader<'a> {
    text: &'a str,
    parser: Parser<'a, StrInput<'a>>,
    /// The first key that occurs twice in one mapping, and its position.
    pub twice: Option<(String, usize)>,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str) -> Self {
        let options = options! { emit_comments: false };
        Self {
            text,
            parser: Parser::new_from_str_with_options(text, options),
            twice: None,
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Range<usize>), Unreadable> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.byte_range().unwrap_or_default())),
            Some(Err(error)) => Err(Unreadable {
                at: error.marker().byte_offset().unwrap_or(0),
                message: format!("not valid YAML: {}", error.info()),
            }),
            None => Ok((Event::StreamEnd, self.text.len()..self.text.len())),
        }
    }

    pub fn document(&mut self) -> Result<Option<Node>, Unreadable> {
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

    /// `after` is the earliest position at which the text of this value can begin.
    fn node(
        &mut self,
        event: Event<'a>,
        span: Range<usize>,
        after: usize,
    ) -> Result<Node, Unreadable> {
        let (value, anchor, span) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(text, style, tag.as_deref());
                // The end of a block scalar reaches into the indentation of the next line.
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
                let message = format!("not valid YAML: {other:?} in place of a value");
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
            let after = self.position_after('-', last).unwrap_or(last);
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
            let colon = self
                .position_after(':', key_span.end)
                .unwrap_or(key_span.end);
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

    /// The position after `mark`, if only blanks precede it.
    fn position_after(&self, mark: char, from: usize) -> Option<usize> {
        let rest = self.text.get(from..)?;
        let blanks = rest.len() - rest.trim_start().len();
        rest[blanks..]
            .starts_with(mark)
            .then_some(from + blanks + mark.len_utf8())
    }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let plain = match tag.and_then(Tag::core_suffix) {
        Some("str") => false,
        // `!!int "8000"` is a number.
        Some("int" | "bool" | "null") => true,
        _ => style == ScalarStyle::Plain,
    };
    let text = text.into_owned();
    Value::Scalar { text, plain }
}
