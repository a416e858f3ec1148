//! Splits a text into its documents, as kubectl does: YAML at lines that begin with `---`, and JSON after each value.

use serde::de::IgnoredAny;

/// One document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Document<'a> {
    /// From its `---`, if it has one, up to the next.
    pub text: &'a str,
    /// The number of lines of the whole text before it.
    pub line: usize,
}

/// The lines of a document. Counting them for every object would take long.
pub(super) struct Lines {
    before: usize,
    breaks: Vec<usize>,
}

impl Lines {
    pub fn of(document: Document<'_>) -> Self {
        let breaks = document.text.match_indices('\n');
        Self {
            before: document.line,
            breaks: breaks.map(|(at, _)| at).collect(),
        }
    }

    /// The line of the whole text that contains a byte of the document.
    pub fn line(&self, at: usize) -> usize {
        self.before + self.breaks.partition_point(|end| *end < at) + 1
    }
}

/// All documents; concatenated, they equal the text, byte for byte.
pub(super) fn split(text: &str) -> Vec<Document<'_>> {
    if let Some(documents) = values(text) {
        return documents;
    }
    let mut documents = Vec::new();
    let (mut start, mut line, mut first_line) = (0, 0, 0);
    let mut at = 0;
    for part in text.split_inclusive('\n') {
        if at > start && is_marker(part) {
            let text = &text[start..at];
            documents.push(Document {
                text,
                line: first_line,
            });
            (start, first_line) = (at, line);
        }
        at += part.len();
        line += 1;
    }
    documents.push(Document {
        text: &text[start..],
        line: first_line,
    });
    documents
}

/// The values in a JSON text with several values, as `jq` writes it.
fn values(text: &str) -> Option<Vec<Document<'_>>> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let mut ends = Vec::new();
    while let Some(value) = values.next() {
        value.ok()?;
        ends.push(values.byte_offset());
    }
    ends.pop().filter(|_| !ends.is_empty())?;
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let ends = ends.iter().copied().chain([text.len()]);
    let mut line = 0;
    let documents = starts.zip(ends).map(|(start, end)| {
        let document = Document {
            text: &text[start..end],
            line,
        };
        line += document.text.matches('\n').count();
        document
    });
    Some(documents.collect())
}

fn is_marker(line: &str) -> bool {
    line.strip_prefix("---")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// The part of a document that can have content: up to `...` if only comments and directives follow.
pub(super) fn content(text: &str) -> &str {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "..." {
            let rest = &text[at + line.len()..];
            let is_empty = |line: &str| line.trim().is_empty() || line.starts_with(['#', '%']);
            return if rest.lines().all(is_empty) {
                &text[..at]
            } else {
                text
            };
        }
        at += line.len();
    }
    // Directives may precede the first marker, in a separate part.
    let is_empty = |line: &str| line.trim().is_empty() || line.starts_with(['#', '%']);
    if text.lines().all(is_empty) { "" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_end_where_kubectl_says() {
        let text = "# c\n---\na: |\n  ---\n--- # x\nb: ---\n---x: 1\n---";
        let parts: Vec<_> = split(text)
            .iter()
            .map(|part| (part.text, part.line))
            .collect();
        assert_eq!(
            parts,
            [
                ("# c\n", 0),
                ("---\na: |\n  ---\n", 1),
                ("--- # x\nb: ---\n---x: 1\n", 4),
                ("---", 7)
            ]
        );
        let parts = split("{\"a\": 1}\n{\"b\":\n2} {}\n");
        let parts: Vec<_> = parts.iter().map(|part| (part.text, part.line)).collect();
        assert_eq!(
            parts,
            [("{\"a\": 1}", 0), ("\n{\"b\":\n2}", 0), (" {}\n", 2)]
        );
        let lines = Lines::of(Document {
            text: "a\n\nb",
            line: 4,
        });
        assert_eq!([0, 1, 2, 3, 9].map(|at| lines.line(at)), [5, 5, 6, 7, 7]);
        assert_eq!(split("{\"a\": 1}\n---\n{}").len(), 2);
        assert_eq!(split("").len(), 1);
        assert_eq!(content("a: 1\n...\n# x\n%YAML 1.2\n"), "a: 1\n");
        assert_eq!(content("%YAML 1.2\n"), "");
    }
}
