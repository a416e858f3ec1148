//! The parts of events that are kept besides their text: the fields that identify the stream, and what most events share, so that
//! these need no parsing. They share one allocation, because thousands of streams keep them.

use std::ops::Range;

use memchr::memmem;

use crate::continuation::json;

/// Fields of a chunk that identify a stream.
pub(super) const FIELDS: [&str; 4] = ["id", "created", "model", "system_fingerprint"];

/// The indexes of the model and the fingerprint in it.
pub(super) const MODEL: usize = 2;
pub(super) const FINGERPRINT: usize = 3;

/// Maximum size of these fields, in bytes.
const MAX_VALUES: usize = 512;

/// Maximum size of these fields and of an event, in bytes.
const MAX: usize = 640;

/// The values of [`FIELDS`], as JSON, and an event without its text. Usually, consecutive events of a stream differ only in their
/// text.
#[derive(Debug)]
pub(super) struct EventTemplate {
    /// The event, then the values that are not in it.
    bytes: Box<[u8]>,
    /// The length of the event; 0 if none is kept.
    event: u16,
    /// Where its text was.
    text: u16,
    slots: [Slot; FIELDS.len()],
}

/// Where a value is.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    at: u16,
    /// 0 for a field that the stream does not have.
    length: u16,
}

impl Slot {
    fn range(self) -> Range<usize> {
        let at = usize::from(self.at);
        at..at + usize::from(self.length)
    }
}

impl EventTemplate {
    /// Keeps the values of [`FIELDS`]. `None` if they are too long.
    pub fn new(values: [Option<&[u8]>; FIELDS.len()]) -> Option<Self> {
        let length: usize = values.iter().flatten().map(|value| value.len()).sum();
        let none = [Slot::default(); FIELDS.len()];
        Self::build([&[], &[]], values, none).filter(|_| length <= MAX_VALUES)
    }

    /// `slots` says where the values were in the event before.
    fn build(
        [before, after]: [&[u8]; 2],
        values: [Option<&[u8]>; FIELDS.len()],
        mut slots: [Slot; FIELDS.len()],
    ) -> Option<Self> {
        let event = before.len() + after.len();
        if event > MAX {
            return None;
        }
        let mut bytes = [before, after].concat();
        for (slot, value) in slots.iter_mut().zip(values) {
            let value = value.unwrap_or_default();
            let is_there = bytes.get(slot.range()) == Some(value);
            let found = match is_there {
                true => Some(slot.at.into()),
                false => memmem::find(&bytes, value),
            };
            let at = found.unwrap_or(bytes.len());
            if found.is_none() {
                bytes.extend_from_slice(value);
            }
            *slot = Slot {
                at: u16::try_from(at).ok()?,
                length: u16::try_from(value.len()).ok()?,
            };
        }
        Some(Self {
            event: u16::try_from(event).ok()?,
            text: u16::try_from(before.len()).ok()?,
            slots,
            bytes: bytes.into(),
        })
        .filter(|template| template.held() <= MAX)
    }

    /// The memory that it holds, in bytes.
    pub const fn held(&self) -> usize {
        self.bytes.len()
    }

    /// The values, in the order of [`FIELDS`].
    pub fn values(&self) -> [Option<&[u8]>; FIELDS.len()] {
        let value = |slot: Slot| (slot.length > 0).then(|| &self.bytes[slot.range()]);
        self.slots.map(value)
    }

    /// Keeps an event without its text, in place of the last one, unless it is too long.
    pub fn keep_event(&mut self, data: &[u8], text: &Range<usize>) {
        let event = [&data[..text.start], &data[text.end..]];
        match Self::build(event, self.values(), self.slots) {
            Some(template) => *self = template,
            None => self.forget_event(),
        }
    }

    pub fn forget_event(&mut self) {
        if self.event == 0 {
            return;
        }
        if let Some(template) = Self::build([&[], &[]], self.values(), self.slots) {
            *self = template;
        }
    }

    /// The text of an event that differs from the kept one only in its text.
    pub fn text_of<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        if self.event == 0 {
            return None;
        }
        let at = usize::from(self.text);
        let (before, after) = self.bytes[..self.event.into()].split_at(at);
        let rest = data.strip_prefix(before)?.strip_suffix(after)?;
        let is_plain = memchr::memchr2(b'"', b'\\', rest).is_none();
        let ends_with_it = || json::end_of_string(data, at - 1) == Some(at + rest.len() + 1);
        (is_plain || ends_with_it()).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_its_value_or_none() {
        for values in [
            [None; 4],
            [Some(&b"\"a\""[..]), Some(b"1"), Some(b"\"m\""), None],
            [None, Some(b"7"), None, Some(b"\"f\"")],
        ] {
            let template = EventTemplate::new(values).expect("short");
            assert_eq!((template.values(), template.text_of(b"x")), (values, None));
        }
        let long = [b'x'; MAX_VALUES];
        assert!(EventTemplate::new([Some(&long), None, None, None]).is_some());
        assert!(EventTemplate::new([Some(&long), Some(b"1"), None, None]).is_none());
    }

    #[test]
    fn a_value_within_an_event_is_not_stored_separately() {
        let values = [Some(&b"\"one\""[..]), Some(b"17"), Some(b"\"m\""), None];
        let mut template = EventTemplate::new(values).expect("short");
        let alone = template.held();
        for (data, beside) in [
            (&br#"{"id":"one","created":17,"model":"m","t":"x"}"#[..], 0),
            (br#"{"id":"one","created":18,"model":"m","t":"x"}"#, 2),
            (br#"{"model":"m","t":"x","created":17,"id":"one"}"#, 0),
            (br#"{"t":"x"}"#, alone),
        ] {
            let at = memmem::find(data, b"\"x\"").unwrap() + 1;
            template.keep_event(data, &(at..at + 1));
            assert_eq!(template.held(), data.len() - 1 + beside);
            assert_eq!(template.values(), values);
            let other = [&data[..at], b"a\\\"b", &data[at + 1..]].concat();
            assert_eq!(template.text_of(&other), Some(&b"a\\\"b"[..]));
            assert_eq!(template.text_of(br#"{"t":"x"#), None);
        }
        let long = [&br#"{"t":"x","u":""#[..], &[b'y'; MAX], b"\"}"].concat();
        template.keep_event(&long, &(6..7));
        assert_eq!((template.held(), template.values()), (alone, values));
        assert_eq!(template.text_of(&long), None);
    }
}
