//! Lists of models (`GET /v1/models`), read without building a tree: the tree of a small text can take a hundred times its memory.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Maximum number of models. A longer list is not read.
const MAX_MODELS: usize = 10_000;

/// The array of models in a list; `None` if the text is not a list of models.
fn data(list: &[u8]) -> Option<&RawValue> {
    #[derive(serde::Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        data: &'a RawValue,
    }
    // An array would be taken for the fields in their order.
    if list.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    serde_json::from_slice::<List<'_>>(list)
        .ok()
        .map(|list| list.data)
}

/// The models of an array.
struct Models<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Models<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Vec<&'de RawValue>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut models = Vec::new();
                while let Some(model) = seq.next_element()? {
                    if models.len() == MAX_MODELS {
                        return Err(A::Error::custom("too many models"));
                    }
                    models.push(model);
                }
                Ok(models)
            }
        }
        deserializer.deserialize_seq(Each).map(Models)
    }
}

fn models(data: &RawValue) -> Option<Vec<&RawValue>> {
    let models: Models<'_> = serde_json::from_str(data.get()).ok()?;
    Some(models.0)
}

fn id(model: &RawValue) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Model<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
    }
    let text = model.get();
    if !text.starts_with('{') {
        return None;
    }
    let id = serde_json::from_str::<Model<'_>>(text).ok()?.id?;
    serde_json::from_str(id.get()).ok()
}

/// Whether a list has an entry; `None` if the text is not a list of models.
#[must_use]
pub fn has_entry(list: &[u8]) -> Option<bool> {
    Some(!models(data(list)?)?.is_empty())
}

/// The IDs in a list, in its order; `None` if the text is not a list of models.
#[must_use]
pub fn ids(list: &[u8]) -> Option<impl Iterator<Item = String>> {
    Some(models(data(list)?)?.into_iter().filter_map(id))
}

/// The list `first` with the models of `second` that it lacks, by their IDs. Models without an ID are added, too. `None` if either is
/// not a list of models.
#[must_use]
pub fn merge(first: &[u8], second: &[u8]) -> Option<Bytes> {
    let data_of_first = data(first)?;
    let models_of_first = models(data_of_first)?;
    let others = models(data(second)?)?;
    let known: HashSet<String> = models_of_first
        .iter()
        .filter_map(|model| id(model))
        .collect();
    let others = others
        .into_iter()
        .filter(|model| id(model).is_none_or(|id| !known.contains(&id)));
    // Before the bracket that ends the array.
    let text = data_of_first.get();
    let end = text.as_ptr() as usize - first.as_ptr() as usize + text.len() - 1;
    let mut merged = Vec::with_capacity(first.len() + second.len());
    merged.extend_from_slice(&first[..end]);
    let mut is_empty = models_of_first.is_empty();
    for model in others {
        if !std::mem::take(&mut is_empty) {
            merged.push(b',');
        }
        merged.extend_from_slice(model.get().as_bytes());
    }
    merged.extend_from_slice(&first[end..]);
    Some(merged.into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn models_are_united_by_id_and_the_first_list_wins() {
        for (first, second, merged) in [
            (
                r#"{"object":"list","data":[{"id":"a","x":1},{"id":"b"}]}"#,
                r#"{"object":"list","data":[{"id":"a","x":2},{"id":"\u0062"},{"id":"c"}]}"#,
                Some(json!({"object":"list","data":[{"id":"a","x":1},{"id":"b"},{"id":"c"}]})),
            ),
            (
                r#" {"data": [ ] , "x": [1]} "#,
                r#"{"data":[{}, 7, [8]]}"#,
                Some(json!({"data":[{}, 7, [8]], "x": [1]})),
            ),
            (r#"{"data":[]}"#, r#"{"data":[]}"#, Some(json!({"data":[]}))),
            ("{}", r#"{"data":[]}"#, None),
            (r#"{"data":[]}"#, r#"{"data":{}}"#, None),
            ("[[]]", r#"{"data":[]}"#, None),
            ("x", "y", None),
        ] {
            let found = merge(first.as_bytes(), second.as_bytes());
            let found = found.map(|text| serde_json::from_slice::<Value>(&text).expect("JSON"));
            assert_eq!(found, merged, "{first} {second}");
        }
    }

    #[test]
    fn only_an_object_with_an_array_of_data_is_a_list() {
        for (list, entry, expected) in [
            (
                r#"{"data":[{"id":"a"},{"id":7},{},["b"],{"id":"c"}]}"#,
                Some(true),
                &["a", "c"][..],
            ),
            (r#"{"data":[]}"#, Some(false), &[]),
            (r#"{"data":null}"#, None, &[]),
            ("{}", None, &[]),
            ("[[1]]", None, &[]),
            ("", None, &[]),
        ] {
            assert_eq!(has_entry(list.as_bytes()), entry, "{list}");
            let found: Vec<String> = ids(list.as_bytes()).into_iter().flatten().collect();
            assert_eq!(found, expected, "{list}");
        }
        let long = format!(r#"{{"data":[{}1]}}"#, "1,".repeat(MAX_MODELS));
        assert_eq!(has_entry(long.as_bytes()), None);
    }
}
