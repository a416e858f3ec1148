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

/// Parses the single document in `text`. Recoverable errors, such as a duplicate key, are added to `problems` and the rest is
/// still returned; other errors return `None`.
pub(super) fn parse(text: &str, problems: &mut Problems) -> Option<Node> {
    if text.len() > MAX_BYTES {
        problems.push(Problem::new(
            "",
            format!(
                "the text is too large: {} bytes, at most {MAX_BYTES}",
                text.len()
            ),
        ));
        return None;
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // YAML treats `\r\n` like `\n` (§5.4), but the parser counts it as two lines within `|` and `>`.
    let text = text.replace("\r\n", "\n");
    let mut reader = Reader {
        parser: Parser::new_from_str_with_options(&text, options! { emit_comments: false }),
        anchors: HashMap::new(),
        unfolded: 0,
        path: String::new(),
        problems,
    };
    match reader.only_document() {
        Ok(node) => Some(node),
        Err(problem) => {
            // The parser reports something missing at the end on a line beyond it.
            let last = text.lines().count().max(1);
            let line = problem.line.map(|line| line.min(last));
            problems.push(problem.at(line));
            None
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// The values of anchors, by the parser's number of the anchor.
    anchors: HashMap<usize, Node>,
    /// The size of all copies made for anchors and aliases, in bytes.
    unfolded: usize,
    /// The current position, as in [`Problem::path`].
    path: String,
    problems: &'a mut Problems,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Option<usize>), Problem> {
        match self.parser.next_event() {
            Some(Ok((event, Span { start, .. }))) => Ok((event, Some(start.line()))),
            Some(Err(error)) => Err(syntax(&error)),
            None => Ok((Event::StreamEnd, None)),
        }
    }

    /// Returns the only document. Empty documents (an extra `---`) do not count.
    fn only_document(&mut self) -> Result<Node, Problem> {
        let mut document = None;
        loop {
            let (event, line) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => {
                    let node = self.node(event, line, 0)?;
                    if matches!(node.value, Value::Null) {
                        continue;
                    }
                    if document.is_some() {
                        let message = "a second document begins here; there must be exactly one";
                        return Err(Problem::new("", message).at(line));
                    }
                    document = Some(node);
                }
            }
        }
        document.ok_or_else(|| Problem::new("", "contains no document"))
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Node, String> {
        let mut problems = Problems::default();
        match parse(text, &mut problems) {
            Some(node) if problems.is_empty() => Ok(node),
            _ => Err(problems.to_string()),
        }
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        for (text, shown) in [
            ("25", "25"),
            ("-25", "-25"),
            ("+25", "25"),
            ("0x1F", "31"),
            ("0o17", "15"),
            ("0", "0"),
            ("0.5", "0.5"),
            (".5", "0.5"),
            ("1e3", "1000.0"),
            ("-.inf", "-inf"),
            (".nan", "NaN"),
            ("99999999999999999999", "1e20"),
            ("true", "true"),
            ("FALSE", "false"),
            ("~", "null"),
            ("yes", "the text \"yes\""),
            ("\"25\"", "the text \"25\""),
            ("!!str 25", "the text \"25\""),
            ("010", "the text \"010\""),
            ("infinity", "the text \"infinity\""),
            ("1_000", "the text \"1_000\""),
            ("0xyz", "the text \"0xyz\""),
            (".", "the text \".\""),
            ("[1]", "a list"),
            ("{}", "an object"),
        ] {
            let Value::List(items) = read(&format!("- {text}")).unwrap().value else {
                panic!("a list");
            };
            assert_eq!(items[0].value.to_string(), shown, "{text}");
        }
    }

    #[test]
    fn a_path_leads_to_its_line_or_that_of_its_nearest_parent() {
        let text = "spec:\n  a:\n    b: 1\n  list:\n  - x\n  - c: 1\n    d: {e: 1,\n      f: 2}\nblock: |\n  x\n\nafter: 1\n";
        for line_end in ["\n", "\r\n"] {
            let root = read(&text.replace('\n', line_end)).unwrap();
            for (path, line) in [
                ("spec", 1),
                ("spec.a", 2),
                ("spec.a.b", 3),
                ("spec.a.missing", 2),
                ("spec.list[0]", 5),
                ("spec.list[1].c", 6),
                ("spec.list[1].d.f", 8),
                ("spec.list[9]", 4),
                ("other", 1),
                ("after", 12),
            ] {
                assert_eq!(root.line_of(path), Some(line), "{path}");
            }
        }
    }

    #[test]
    fn an_alias_stands_for_its_anchor() {
        let root = read("a: &x {b: [1]}\nc: *x\nd: *x").unwrap();
        assert_eq!(root.line_of("c"), Some(2));
        assert!(matches!(
            root.get("d").unwrap().get("b").unwrap().value,
            Value::List(_)
        ));
    }

    #[test]
    fn what_is_no_single_bounded_document_is_refused() {
        let bomb: String = (1..30).fold("a0: &a0 [x, x]\n".into(), |text, n| {
            let before = n - 1;
            text + &format!("a{n}: &a{n} [*a{before}, *a{before}]\n")
        });
        let long = "x".repeat(MAX_BYTES / 2);
        for (text, message) in [
            ("", "contains no document"),
            ("# only a comment\n", "contains no document"),
            ("---\n---\n", "contains no document"),
            ("a: 1\n---\nb: 2\n", "line 3: a second document"),
            ("a: 1\nb: [1\n", "not valid YAML"),
            ("a: 1\n b: 2\n", "line 2: not valid YAML"),
            ("a: *nothing", "line 1: not valid YAML"),
            ("a: &x [*x]", "line 1: an alias of an anchor"),
            ("? [a]\n: 1", "line 1: the name of a field"),
            (
                "a: 1\nb:\n  c: 1\n  c: 2\n",
                "line 4: b.c: is already set on line 3",
            ),
            (&bomb, "expand to more than"),
            (
                &format!("a: &x {long}\nb: [*x, *x, *x]"),
                "line 2: anchors and aliases expand to more than",
            ),
            (&"[".repeat(MAX_BYTES), "not valid YAML: recursion limit"),
            (
                &"{a: ".repeat(MAX_BYTES / 4),
                "not valid YAML: recursion limit",
            ),
            (&"- ".repeat(MAX_BYTES / 2), "nested deeper than 64"),
            (&"? ".repeat(MAX_BYTES / 2), "the name of a field"),
            (&"x".repeat(MAX_BYTES + 1), "too large"),
        ] {
            let shown = text.chars().take(30).collect::<String>();
            let error = read(text).expect_err(&shown);
            assert!(error.contains(message), "{shown}: {error}");
        }
    }

    #[test]
    fn empty_documents_and_a_byte_order_mark_do_not_count() {
        for text in [
            "---\na: 1\n",
            "a: 1\n---\n",
            "\u{feff}a: 1",
            "---\n---\na: 1\n...\n",
        ] {
            assert!(read(text).unwrap().get("a").is_some(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([a-c:,{}\\[\\]&*!?|>'\"#%@-]|\\PC|  |: |- |\n){0,60}") {
            let _ = read(&text);
        }
    }
}
