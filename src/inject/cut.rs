//! Edits of a text by byte ranges, and the lines that they touch.

use std::ops::Range;

/// Replaces `range` with `text`.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub range: Range<usize>,
    pub text: String,
    /// The depth: of several edits at the same position, the deepest comes first.
    pub depth: usize,
}

/// Applies all edits; removals may overlap.
pub(super) fn apply(text: &str, mut cuts: Vec<Cut>) -> String {
    cuts.sort_by_key(|cut| (cut.range.start, std::cmp::Reverse(cut.depth)));
    let mut result = String::with_capacity(text.len() + 4096);
    let mut at = 0;
    for cut in cuts {
        if cut.range.start > at {
            result.push_str(&text[at..cut.range.start]);
        }
        result.push_str(&cut.text);
        at = at.max(cut.range.end);
    }
    result.push_str(&text[at..]);
    result
}

/// The start of the line that contains `at`.
pub(super) fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |before| before + 1)
}

/// The end of the line that contains `end`, after its line break, which may already precede `end`.
pub(super) fn line_end(text: &str, end: usize) -> usize {
    if end > 0 && text.as_bytes()[end - 1] == b'\n' {
        return end;
    }
    text[end..]
        .find('\n')
        .map_or(text.len(), |after| end + after + 1)
}

pub(super) fn column(text: &str, at: usize) -> usize {
    text[line_start(text, at)..at].chars().count()
}

/// The line break of a text.
pub(super) fn newline(text: &str) -> &'static str {
    match text.find('\n') {
        Some(at) if text[..at].ends_with('\r') => "\r\n",
        _ => "\n",
    }
}

/// The position of the dash of a block-style list item whose content begins at `item`.
pub(super) fn dash(text: &str, item: usize) -> usize {
    let mut end = item;
    loop {
        let start = line_start(text, end);
        let content = text[start..end].trim_start();
        if content.starts_with('-') {
            return end - content.len();
        }
        if start == 0 {
            return item;
        }
        end = start - 1;
    }
}
