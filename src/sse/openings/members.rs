//! The members that all chunks of a completion share, besides its ID.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Maximum length of a value that is kept, in bytes.
const MAX_VALUE: usize = 256;

/// The values that the client received first, as JSON.
#[derive(Debug, Default)]
pub struct Members {
    created: Option<Box<str>>,
    model: Option<Box<str>>,
    system_fingerprint: Option<Box<str>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Parsed<'a> {
    #[serde(borrow)]
    created: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "given")]
    system_fingerprint: Option<&'a RawValue>,
}

/// A value that may be null, as opposed to an absent one.
fn given<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl Members {
    /// Learns missing values from the data of an event. Empty ones are missing: some gateways send an event without values first.
    pub(super) fn learn(&mut self, data: &[u8]) {
        let members: Parsed<'_> = serde_json::from_slice(data).unwrap_or_default();
        for (known, value) in [
            (&mut self.created, members.created),
            (&mut self.model, members.model),
            (&mut self.system_fingerprint, members.system_fingerprint),
        ] {
            let text = value.map(RawValue::get);
            let is_kept = |text: &&str| {
                let is_scalar = !text.starts_with(['{', '[']) && text.len() <= MAX_VALUE;
                is_scalar && !matches!(*text, "\"\"" | "0")
            };
            if known.is_none() {
                *known = text.filter(is_kept).map(Box::from);
            }
        }
    }

    /// The value of the member `key`.
    pub(super) fn value(&self, key: &[u8]) -> Option<&[u8]> {
        let value = match key {
            b"created" => &self.created,
            b"model" => &self.model,
            b"system_fingerprint" => &self.system_fingerprint,
            _ => return None,
        };
        value.as_deref().map(str::as_bytes)
    }

    fn values(&self) -> impl Iterator<Item = &str> {
        let values = [&self.created, &self.model, &self.system_fingerprint];
        values.into_iter().filter_map(Option::as_deref)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values().next().is_none()
    }

    /// The length of its text, in bytes.
    pub(super) fn text(&self) -> usize {
        self.values().map(str::len).sum()
    }
}
