//! Parses YAML 1.2, and so JSON, into a tree with line numbers.
//!
//! Limits the size, the depth and the expansion of aliases.

use std::{borrow::Cow, collections::HashMap};

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag, options};

use super::{
    problems::{Problem, Problems},
    tree::{Entry, Node, Value},
};

/// The largest text that is read, in bytes. An object in a cluster may not be larger.
pub const MAX_BYTES: usize = 1024 * 1024;
/// The maximum nesting depth. A `DynamoUpdateConfig` with its status needs about ten levels.
const MAX_DEPTH: usize = 64;

/// A document of a text, or what was read of it before an error.
pub(super) struct Document {
    pub root: Option<Node>,
    pub problems: Problems,
}

/// Parses the single document in `text`. Recoverable errors, such as a duplicate key, are added to `problems` and the rest is
/// still returned; other errors return `None`.
pub(super) fn parse(text: &str, problems: &mut Problems) -> Option<Node> {
    let mut documents = documents(text).into_iter();
    let first = documents.next()?;
    first
        .problems
        .into_iter()
        .for_each(|problem| problems.push(problem));
    let Some(second) = documents.next() else {
        return first.root;
    };
    // Report syntax errors before the others.
    match second.root {
        Some(root) => {
            let message = "a second document begins here; there must be exactly one";
            problems.push(Problem::new("", message).at(root.line));
        }
        None => second
            .problems
            .into_iter()
            .for_each(|problem| problems.push(problem)),
    }
    None
}

/// Parses all non-empty documents in `text` (an extra `---` creates an empty one); returns at least one. An error from which the
/// parser cannot recover ends the last one.
pub(super) fn documents(text: &str) -> Vec<Document> {
    if text.len() > MAX_BYTES {
        let message = format!(
            "the text is too large: {} bytes, at most {MAX_BYTES}",
            text.len()
        );
        return vec![Document {
            root: None,
            problems: Problems::one("", message),
        }];
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // YAML treats `\r\n` like `\n` (§5.4), but the parser counts it as two lines within `|` and `>`.
    let text = text.replace("\r\n", "\n");
    let mut reader = Reader {
        parser: Parser::new_from_str_with_options(&text, options! { emit_comments: false }),
        anchors: HashMap::new(),
        unfolded: 0,
        path: String::new(),
        problems: Problems::default(),
    };
    let mut documents = Vec::new();
    loop {
        let read = reader.document();
        let mut problems = std::mem::take(&mut reader.problems);
        let root = match read {
            Ok(Some(root)) => Some(root),
            Ok(None) if documents.is_empty() => {
                problems.push(Problem::new("", "contains no document"));
                None
            }
            Ok(None) => return documents,
            Err(problem) => {
                // If something is missing at the end, the parser reports a line beyond it.
                let last = text.lines().count().max(1);
                let line = problem.line.map(|line| line.min(last));
                problems.push(problem.at(line));
                None
            }
        };
        let is_last = root.is_none();
        documents.push(Document { root, problems });
        if is_last {
            return documents;
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// The values of anchors, by the number that the parser gives them.
    anchors: HashMap<usize, Node>,
    /// The size of all copies made for anchors and aliases, in bytes.
    unfolded: usize,
    /// The current position, as in [`Problem::path`].
    path: String,
    /// The anchors of the current document.
    problems: Problems,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Option<usize>), Problem> {
        match self.parser.next_event() {
            Some(Ok((event, Span { start, .. }))) => Ok((event, Some(start.line()))),
            Some(Err(error)) => Err(syntax(&error)),
            None => Ok((Event::StreamEnd, None)),
        }
    }

    /// Returns the next document that is not empty.
    fn document(&mut self) -> Result<Option<Node>, Problem> {
        loop {
            let (event, line) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(None),
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => {
                    let node = self.node(event, line, 0)?;
                    if !matches!(node.value, Value::Null) {
                        return Ok(Some(node));
                    }
                }
            }
        }
    }

    fn node(
        &mut self,
        event: Event<'a>,
        line: Option<usize>,
        depth: usize,
    ) -> Result<Node, Problem> {
        if depth > MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(Problem::new("", message).at(line));
        }
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (scalar(text, style, tag.as_deref()), anchor)
            }
            Event::SequenceStart(_, anchor, _) => (self.list(depth)?, anchor),
            Event::MappingStart(_, anchor, _) => (self.map(depth)?, anchor),
            Event::Alias(anchor) => {
                // An anchor is known once its value is complete. Anchors on keys are never known.
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    let message = "an alias of an anchor that is not complete at this point";
                    return Err(Problem::new("", message).at(line));
                };
                self.unfold(&node, line)?;
                return Ok(Node { line, ..node });
            }
            // Unreachable unless the parser emits unbalanced events.
            other => {
                let message = format!("not valid YAML: {other:?} in place of a value");
                return Err(Problem::new("", message).at(line));
            }
        };
        let node = Node { line, value };
        if anchor > 0 {
            self.unfold(&node, line)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// The value one level below, at `step`.
    fn under(
        &mut self,
        step: &str,
        event: Event<'a>,
        line: Option<usize>,
        depth: usize,
    ) -> Result<Node, Problem> {
        let length = self.path.len();
        self.path.push_str(step);
        let node = self.node(event, line, depth + 1);
        self.path.truncate(length);
        node
    }

    fn list(&mut self, depth: usize) -> Result<Value, Problem> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, line) => {
                    let step = format!("[{}]", items.len());
                    items.push(self.under(&step, event, line, depth)?);
                }
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Problem> {
        let mut entries = Vec::new();
        let mut first_lines = HashMap::new();
        loop {
            let (event, line) = self.next()?;
            let key = match event {
                Event::MappingEnd => return Ok(Value::Map(entries)),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => {
                    let message = "the name of a field must be plain text";
                    return Err(Problem::new("", message).at(line));
                }
            };
            let (event, _) = self.next()?;
            let step = if self.path.is_empty() {
                key.clone()
            } else {
                format!(".{key}")
            };
            let node = self.under(&step, event, line, depth)?;
            if let Some(Some(first)) = first_lines.get(&key) {
                let path = format!("{}{step}", self.path);
                let message = format!("is already set on line {first}");
                self.problems.push(Problem::new(path, message).at(line));
            } else {
                first_lines.insert(key.clone(), line);
                entries.push(Entry { key, node });
            }
        }
    }

    /// Counts a copy of `node`, so that nested aliases hit the limit before they exhaust memory.
    fn unfold(&mut self, node: &Node, line: Option<usize>) -> Result<(), Problem> {
        self.unfolded += size(node);
        if self.unfolded > MAX_BYTES {
            let message = format!(
                "anchors and aliases expand to more than {} MiB",
                MAX_BYTES >> 20
            );
            return Err(Problem::new("", message).at(line));
        }
        Ok(())
    }
}

/// The approximate memory of `node`, in bytes.
fn size(node: &Node) -> usize {
    size_of::<Node>()
        + match &node.value {
            Value::Text(text) => text.len(),
            Value::List(items) => items.iter().map(size).sum(),
            Value::Map(entries) => entries
                .iter()
                .map(|entry| size_of::<Entry>() + entry.key.len() + size(&entry.node))
                .sum(),
            _ => 0,
        }
}

fn syntax(error: &ScanError) -> Problem {
    Problem::new("", format!("not valid YAML: {}", error.info())).at(Some(error.marker().line()))
}

/// The core schema (YAML 1.2.2 §10.3.2), except that a decimal number with a leading zero is text: YAML 1.1 reads it as octal,
/// so `kubectl` would see a different number.
fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text =
        style != ScalarStyle::Plain || tag.is_some_and(|tag| matches!(tag.suffix(), "str" | ""));
    if is_text {
        return Value::Text(text.into_owned());
    }
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        other => number(other).unwrap_or_else(|| Value::Text(text.into_owned())),
    }
}

fn number(text: &str) -> Option<Value> {
    let radix = |digits, radix| i64::from_str_radix(digits, radix).ok().map(Value::Integer);
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
        return Some(Value::Float(sign * f64::INFINITY));
    }
    let only_digits = unsigned.bytes().all(|byte| byte.is_ascii_digit());
    if only_digits && unsigned.len() > 1 && unsigned.starts_with('0') {
        return None;
    }
    // Rust would also parse words such as `infinity`.
    if !unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    match text.parse() {
        Ok(integer) => Some(Value::Integer(integer)),
        Err(_) => text.parse().ok().map(Value::Float),
    }
}

#[cfg(test)]
mod tests;
