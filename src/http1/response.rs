//! Parses a model server's response head (RFC 9112 §4, §6.3).

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode, Version};

use super::{Framing, MAX_HEADERS, NameFilter, content_length, header_map};

/// Number of fields that the proxy adds to a response.
const MORE: usize = 2;

/// A response head, and what it means for the connection.
#[derive(Debug)]
pub struct ResponseHead {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub framing: Framing,
    /// Whether the connection may be reused for another exchange.
    pub keep_alive: bool,
    /// Length of the head, in bytes.
    pub length: usize,
}

/// Why a response head cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum ResponseError {
    #[error("the response head is malformed")]
    Malformed,
    #[error("the response's length is contradictory")]
    Length,
    #[error("the response has a Transfer-Encoding other than `chunked`")]
    Encoding,
}

/// Parses one response head at the start of `bytes`. Returns `None` if it is incomplete. `method` is the method of the request.
///
/// # Errors
/// If the head is malformed, or the end of its body cannot be determined.
pub fn parse_response(
    bytes: &[u8],
    method: &Method,
) -> Result<Option<ResponseHead>, ResponseError> {
    let mut found = [const { std::mem::MaybeUninit::uninit() }; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let length = match config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut found) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(ResponseError::Malformed),
    };
    let status = StatusCode::from_u16(parsed.code.unwrap_or_default())
        .map_err(|_| ResponseError::Malformed)?;
    let version = match parsed.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let head = &bytes[..length];
    let mut headers = header_map(parsed.headers, head, &Bytes::copy_from_slice(head), MORE)
        .ok_or(ResponseError::Malformed)?;
    let names = NameFilter::of(&headers);
    let framing = framing(&headers, names, status, method)?;
    let says = |word: &str| names.list_contains(&headers, &CONNECTION, word);
    let persistent = match version {
        Version::HTTP_10 => says("keep-alive") && !says("close"),
        _ => !says("close"),
    };
    // RFC 9112 §6.1, §6.3 rule 3: a length next to an encoding may be an attempt at smuggling, and HTTP/1.0 has no encodings.
    // Do not reuse the connection.
    let doubtful = framing == Framing::Chunked
        && (headers.remove(CONTENT_LENGTH).is_some() || version == Version::HTTP_10);
    Ok(Some(ResponseHead {
        status,
        keep_alive: persistent && !doubtful && framing != Framing::UntilClose,
        headers,
        framing,
        length,
    }))
}

fn framing(
    headers: &HeaderMap,
    names: NameFilter,
    status: StatusCode,
    method: &Method,
) -> Result<Framing, ResponseError> {
    if method == Method::HEAD
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
    {
        return Ok(Framing::None);
    }
    if names.may_contain(&TRANSFER_ENCODING)
        && let mut encodings = headers.get_all(TRANSFER_ENCODING).iter()
        && let Some(encoding) = encodings.next()
    {
        return match encodings.next() {
            None if encoding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
            _ => Err(ResponseError::Encoding),
        };
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter().map(content_length);
    match lengths.next() {
        None => Ok(Framing::UntilClose),
        Some(Some(length)) if lengths.all(|other| other == Some(length)) => match length {
            0 => Ok(Framing::None),
            _ => Ok(Framing::Length(length)),
        },
        Some(_) => Err(ResponseError::Length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<ResponseHead>, ResponseError> {
        parse_response(text.as_bytes(), &Method::POST)
    }

    #[test]
    fn the_body_ends_as_the_head_says() {
        for (text, framing, keep_alive) in [
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
                Framing::Length(5),
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                Framing::None,
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                Framing::Chunked,
                true,
            ),
            ("HTTP/1.1 200 OK\r\n\r\n", Framing::UntilClose, false),
            ("HTTP/1.1 204 No Content\r\n\r\n", Framing::None, true),
            (
                "HTTP/1.1 529 <none>\r\ncontent-length: 2\r\n\r\n",
                Framing::Length(2),
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\n",
                Framing::Length(1),
                false,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n",
                Framing::Chunked,
                false,
            ),
            (
                "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n",
                Framing::Chunked,
                false,
            ),
            (
                "HTTP/1.0 200 OK\r\nconnection: keep-alive, close\r\ncontent-length: 1\r\n\r\n",
                Framing::Length(1),
                false,
            ),
            (
                "HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n",
                Framing::Length(1),
                false,
            ),
        ] {
            let head = parse(text).expect("valid").expect("whole");
            assert_eq!(
                (head.framing, head.keep_alive),
                (framing, keep_alive),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_contradictory_length_is_refused() {
        for (text, error) in [
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
                ResponseError::Length,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
                ResponseError::Length,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
                ResponseError::Encoding,
            ),
            ("ICY 200 OK\r\n\r\n", ResponseError::Malformed),
        ] {
            assert_eq!(parse(text).map(|_| ()), Err(error), "{text:?}");
        }
    }
}
