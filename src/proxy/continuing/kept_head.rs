//! The head of a request while its stream may be continued. A map of headers takes some hundred bytes for each field, and
//! thousands of streams keep one.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::upstream::{Added, Head};

/// A head that takes little more memory than its text.
pub struct KeptHead {
    method: Method,
    /// The target, then the name and value of each field. Each begins with its length.
    text: Box<[u8]>,
    added: Added,
}

impl KeptHead {
    /// Keeps `head`, whose body has already been received, so the client no longer waits for `100 Continue`.
    pub fn of(head: &Head) -> Self {
        let mut text = Vec::new();
        push(&mut text, head.uri.to_string().as_bytes());
        for (name, value) in &head.headers {
            push(&mut text, name.as_str().as_bytes());
            push(&mut text, value.as_bytes());
        }
        Self {
            method: head.method.clone(),
            text: text.into(),
            added: head.added.clone(),
        }
    }

    /// The head.
    pub fn head(&self) -> Head {
        let mut rest = &self.text[..];
        let uri = next(&mut rest).and_then(|uri| Uri::try_from(uri).ok());
        let mut headers = HeaderMap::new();
        while let (Some(name), Some(value)) = (next(&mut rest), next(&mut rest)) {
            let field = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value));
            if let (Ok(name), Ok(value)) = field {
                headers.append(name, value);
            }
        }
        Head {
            method: self.method.clone(),
            uri: uri.expect("it was the target of a head"),
            headers,
            added: self.added.clone(),
            expects_continue: false,
        }
    }
}

fn push(text: &mut Vec<u8>, part: &[u8]) {
    // Heads are limited to far less.
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
    text.extend_from_slice(&length.to_le_bytes());
    text.extend_from_slice(part);
}

fn next<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (part, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_head_is_the_same_without_an_expectation() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("a", "1"),
            ("content-type", ""),
            ("a", "\u{e9}"),
            ("x", "2"),
        ] {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            headers.append(HeaderName::from_static(name), value);
        }
        let head = Head {
            method: Method::POST,
            uri: Uri::from_static("/v1/chat/completions?a=%20b"),
            headers,
            added: Added {
                via: Some("1.1 crossfade"),
                ..Added::default()
            },
            expects_continue: true,
        };
        let kept = KeptHead::of(&head).head();
        let expected = Head {
            expects_continue: false,
            ..head
        };
        assert_eq!(format!("{kept:?}"), format!("{expected:?}"));
    }
}
