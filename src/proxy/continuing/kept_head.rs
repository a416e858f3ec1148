//! The head of a request while its stream may be continued. A map of headers takes some hundred bytes for each field, and
//! thousands of streams keep one.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use crate::upstream::{AddedFields, Head, Proto, X_REQUEST_ID};

/// Names that most requests have. Each takes one byte.
const COMMON: [&str; 22] = [
    "host",
    "accept",
    "accept-encoding",
    "accept-language",
    "authorization",
    "content-length",
    "content-type",
    "traceparent",
    "user-agent",
    "x-api-key",
    "x-forwarded-for",
    "x-request-id",
    "x-stainless-arch",
    "x-stainless-async",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-read-timeout",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
];

/// A head that takes little more memory than its text.
pub struct KeptHead {
    /// The method, the target, the added `X-Forwarded-For`, then the name and value of each field. Each begins with its length; a
    /// name in [`COMMON`] is stored as its index there, counted from 1, and any other name follows a 0.
    text: Box<[u8]>,
    via: Option<Version>,
    forwarded_proto: Option<Proto>,
    forwarded_host: bool,
}

impl KeptHead {
    /// Keeps `head`, whose body has already been received, so the client no longer waits for `100 Continue`.
    pub fn of(head: &Head) -> Self {
        let added = &head.added;
        let mut text = Vec::new();
        push(&mut text, head.method.as_str().as_bytes());
        push(&mut text, head.uri.to_string().as_bytes());
        let forwarded_for = added.forwarded_for.as_ref().map(HeaderValue::as_bytes);
        push(&mut text, forwarded_for.unwrap_or_default());
        for (name, value) in &head.headers {
            push_name(&mut text, name.as_str());
            push(&mut text, value.as_bytes());
        }
        if let Some(id) = &added.request_id {
            push_name(&mut text, X_REQUEST_ID.as_str());
            push(&mut text, id);
        }
        Self {
            text: text.into(),
            via: added.via,
            forwarded_proto: added.forwarded_proto,
            forwarded_host: added.forwarded_host,
        }
    }

    /// The head.
    pub fn head(&self) -> Head {
        let mut rest = &self.text[..];
        let method = next(&mut rest).and_then(|method| Method::from_bytes(method).ok());
        let uri = next(&mut rest).and_then(|uri| Uri::try_from(uri).ok());
        // The proxy adds no empty one.
        let forwarded_for = next(&mut rest).filter(|list| !list.is_empty());
        let mut headers = HeaderMap::new();
        while let (Some(name), Some(value)) = (next_name(&mut rest), next(&mut rest)) {
            let field = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value));
            if let (Ok(name), Ok(value)) = field {
                headers.append(name, value);
            }
        }
        Head {
            method: method.expect("it was the method of a head"),
            uri: uri.expect("it was the target of a head"),
            headers,
            added: AddedFields {
                via: self.via,
                forwarded_for: forwarded_for.and_then(|list| HeaderValue::from_bytes(list).ok()),
                forwarded_proto: self.forwarded_proto,
                forwarded_host: self.forwarded_host,
                // It is among the fields.
                request_id: None,
            },
            expects_continue: false,
        }
    }
}

fn push_name(text: &mut Vec<u8>, name: &str) {
    let code = COMMON.iter().position(|common| *common == name);
    match code.and_then(|code| u8::try_from(code + 1).ok()) {
        Some(code) => text.push(code),
        None => {
            text.push(0);
            push(text, name.as_bytes());
        }
    }
}

fn next_name<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (code, after) = rest.split_first()?;
    *rest = after;
    match usize::from(*code).checked_sub(1) {
        Some(code) => COMMON.get(code).map(|name| name.as_bytes()),
        None => next(rest),
    }
}

/// Appends a part after its length, seven bits of which are in each byte, the lowest first. All but the last have the highest bit.
fn push(text: &mut Vec<u8>, part: &[u8]) {
    let mut length = part.len();
    while length >= 0x80 {
        text.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    text.push(length.to_le_bytes()[0]);
    text.extend_from_slice(part);
}

fn next<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (mut length, mut shift) = (0, 0);
    loop {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        length |= usize::from(byte & 0x7f).checked_shl(shift)?;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    let (part, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retained_head_is_unchanged_except_for_the_expectation() {
        let mut headers = HeaderMap::new();
        let (long, longer) = ("y".repeat(127), "z".repeat(20_000));
        for (name, value) in [
            ("a", "1"),
            ("content-type", ""),
            ("a", "\u{e9}"),
            ("host", "h"),
            ("x-stainless-timeout", &long),
            ("x", &longer),
        ] {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            headers.append(HeaderName::from_static(name), value);
        }
        let id = *b"01234567-89ab-4def-8123-456789abcdef";
        for (forwarded_for, request_id) in [
            (None, None),
            (Some(HeaderValue::from_static("10.0.0.1")), Some(id)),
        ] {
            let head = Head {
                method: Method::POST,
                uri: Uri::from_static("/v1/chat/completions?a=%20b"),
                headers: headers.clone(),
                added: AddedFields {
                    via: Some(Version::HTTP_2),
                    forwarded_for,
                    forwarded_proto: Some(Proto::Https),
                    forwarded_host: true,
                    request_id,
                },
                expects_continue: true,
            };
            let kept = KeptHead::of(&head).head();
            assert_eq!(kept.fields(), head.fields());
            assert_eq!((&kept.method, &kept.uri), (&head.method, &head.uri));
            assert!(!kept.expects_continue);
        }
    }
}
