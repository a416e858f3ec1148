//! Parses the live page's query, which selects an update. Does not check whether the update exists.

use crate::controller::Key;
use crate::resource::is_object_name;

/// The query is neither empty nor the name of an update.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the query must be ?update=NAMESPACE/NAME or empty")]
pub(super) struct Malformed;

/// The update that a query selects, if any.
///
/// # Errors
/// When the query says anything else.
pub(super) fn read(query: Option<&str>) -> Result<Option<Key>, Malformed> {
    let mut fields = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    match (fields.next(), fields.next()) {
        (None, _) => Ok(None),
        (Some((name, value)), None) if name == "update" => key(&value).map(Some),
        _ => Err(Malformed),
    }
}

fn key(text: &str) -> Result<Key, Malformed> {
    let (namespace, name) = text.split_once('/').ok_or(Malformed)?;
    if !(is_object_name(namespace) && is_object_name(name)) {
        return Err(Malformed);
    }
    Ok(Key {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_is_named_by_namespace_and_name_and_nothing_else_is_taken() {
        let selected = |query| read(query).map(|key| key.map(|key| key.to_string()));
        assert_eq!(selected(None), Ok(None));
        assert_eq!(selected(Some("")), Ok(None));
        let named = Ok(Some("default/chat-v2.1".to_owned()));
        assert_eq!(selected(Some("update=default/chat-v2.1")), named);
        assert_eq!(selected(Some("update=default%2Fchat-v2.1")), named);
        let long = format!("update=a/{}", "b".repeat(254));
        for wrong in [
            "update",
            "update=",
            "update=a",
            "update=/a",
            "update=a/",
            "update=a/b/c",
            "update=A/b",
            "update=a/<b>",
            "update=a/b..c",
            "update=a/b&update=a/c",
            "update=a/b&other=1",
            "other=a/b",
            &long,
        ] {
            assert_eq!(selected(Some(wrong)), Err(Malformed), "{wrong}");
        }
    }
}
