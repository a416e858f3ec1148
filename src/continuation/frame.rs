//! The constant part of the events around their text, so that most events of a stream need no parsing.

use std::ops::Range;

use super::json;

/// The event around a text. Consecutive events of a stream mostly differ in their text only, so most need not be parsed.
#[derive(Debug)]
pub struct Frame {
    pub bytes: Box<[u8]>,
    /// Where the text is.
    at: usize,
}

impl Frame {
    pub fn around(data: &[u8], text: &Range<usize>, most: usize) -> Option<Self> {
        let bytes = [&data[..text.start], &data[text.end..]].concat();
        (bytes.len() <= most).then(|| Self {
            bytes: bytes.into(),
            at: text.start,
        })
    }

    /// The text of an event that is like this one but for its text.
    pub fn text_of<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        let (before, after) = self.bytes.split_at(self.at);
        let rest = data.strip_prefix(before)?.strip_suffix(after)?;
        let is_plain = memchr::memchr2(b'"', b'\\', rest).is_none();
        let ends_with_it =
            || json::end_of_string(data, self.at - 1) == Some(self.at + rest.len() + 1);
        (is_plain || ends_with_it()).then_some(rest)
    }
}
