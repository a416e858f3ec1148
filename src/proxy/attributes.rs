//! Reads the request attributes that affect the split: affinity key, pinned worker and override.

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::http1::NameFilter;
use crate::resource::Affinity;
use crate::split::{Generation, Key};

/// Headers that name a worker, which exists in one generation only (Dynamo's frontend and the Gateway API inference
/// extension).
const PINNING: [&str; 8] = [
    "x-dynamo-worker-instance-id",
    "x-dynamo-prefill-instance-id",
    "x-worker-instance-id",
    "x-prefill-instance-id",
    "x-gateway-worker-id",
    "x-gateway-prefill-worker-id",
    "x-gateway-decode-worker-id",
    "x-gateway-worker-instance-id",
];

/// Whether the request names a worker.
pub fn is_pinned(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        name.starts_with("x-") && PINNING.contains(&name)
    })
}

/// The generation that the override header requests.
pub fn forced(
    headers: &HeaderMap,
    names: NameFilter,
    name: Option<&HeaderName>,
) -> Option<Generation> {
    let name = name.filter(|name| names.may_contain(name))?;
    let mut values = headers.get_all(name).iter().map(|value| value.as_bytes());
    let value = values.next()?;
    // Ignore conflicting values: a client must not overrule a gateway that adds its own.
    if !values.all(|other| other.eq_ignore_ascii_case(value)) {
        return None;
    }
    Generation::ALL
        .into_iter()
        .find(|generation| value.eq_ignore_ascii_case(generation.as_str().as_bytes()))
}

/// The key of the first affinity header that is present and not empty.
pub fn header_key(headers: &HeaderMap, names: NameFilter, affinity: &Affinity) -> Option<Key> {
    let mut wanted = affinity.headers.iter();
    let value = wanted.find_map(|name| {
        let value = names.may_contain(name).then(|| headers.get(name))??;
        (!value.is_empty()).then_some(value)
    })?;
    Some(Key::of(value.as_bytes()))
}

/// The key in the first affinity field of a JSON body that contains a non-empty string.
pub fn body_key(body: &Bytes, affinity: &Affinity) -> Option<Key> {
    let mut found = vec![None; affinity.body_fields.len()];
    let fields = Fields {
        names: &affinity.body_fields,
        found: &mut found,
    };
    // The model server rejects a body that is not a JSON object.
    fields
        .deserialize(&mut serde_json::Deserializer::from_slice(body))
        .ok()?;
    let value = found
        .into_iter()
        .flatten()
        .find(|value| !value.is_empty())?;
    Some(Key::of(value.as_bytes()))
}

/// Reads the named string fields of an object and skips everything else.
struct Fields<'a> {
    names: &'a [String],
    found: &'a mut [Option<String>],
}

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            match self.names.iter().position(|wanted| *wanted == name) {
                Some(index) => {
                    // Not a tree of values, which can take a hundred times the memory of its text.
                    let value: &RawValue = map.next_value()?;
                    if let Ok(text) = serde_json::from_str(value.get()) {
                        self.found[index] = Some(text);
                    }
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affinity() -> Affinity {
        let mut affinity = crate::resource::Plan::all_old().affinity;
        affinity.body_fields = vec!["prompt_cache_key".into(), "user".into()];
        affinity
    }

    #[test]
    fn an_override_counts_only_where_all_its_lines_agree() {
        for (values, expected) in [
            (&["new"][..], Some(Generation::New)),
            (&["OLD", "old"], Some(Generation::Old)),
            (&["old", "new"], None),
            (&["new", "x"], None),
            (&["x"], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-generation", value.parse().expect("valid"));
            }
            let name = HeaderName::from_static("x-generation");
            let forced = forced(&headers, NameFilter::of(&headers), Some(&name));
            assert_eq!(forced, expected, "{values:?}");
        }
    }

    #[test]
    fn the_first_header_of_the_list_that_is_present_counts() {
        let mut headers = HeaderMap::new();
        assert_eq!(
            header_key(&headers, NameFilter::of(&headers), &affinity()),
            None
        );
        headers.insert("x-session-id", "b".parse().expect("valid"));
        assert_eq!(
            header_key(&headers, NameFilter::of(&headers), &affinity()),
            Some(Key::of(b"b"))
        );
        headers.insert("x-dynamo-session-id", "a".parse().expect("valid"));
        assert_eq!(
            header_key(&headers, NameFilter::of(&headers), &affinity()),
            Some(Key::of(b"a"))
        );
    }

    #[test]
    fn the_first_field_of_the_list_that_is_a_text_counts() {
        for (body, expected) in [
            (r#"{"user":"u","messages":[{"user":"x"}]}"#, Some("u")),
            (r#"{"user":"u","prompt_cache_key":"k"}"#, Some("k")),
            (r#"{"user":"u","prompt_cache_key":7}"#, Some("u")),
            (r#"{"messages":[{"user":"x"}]}"#, None),
            (r#"["user"]"#, None),
            ("{\"user\":\"u\"", None),
            ("", None),
        ] {
            let key = body_key(&Bytes::from(body), &affinity());
            assert_eq!(key, expected.map(|text| Key::of(text.as_bytes())), "{body}");
        }
    }

    #[test]
    fn a_request_that_names_a_worker_is_pinned() {
        let named = |name: &'static str| {
            HeaderMap::from_iter([(HeaderName::from_static(name), "7".parse().expect("valid"))])
        };
        assert!(is_pinned(&named("x-dynamo-worker-instance-id")));
        assert!(is_pinned(&named("x-gateway-worker-id")));
        assert!(!is_pinned(&named("x-request-id")));
    }
}
