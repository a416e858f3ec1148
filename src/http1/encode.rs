//! Encodes heads and chunk framing (RFC 9112 §3, §4, §7.1) at the end of a buffer.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Method, StatusCode, Uri, Version};

use super::Framing;

/// Appends the request line. Follow it with [`field`]s, excluding framing fields, and [`request_end`].
pub fn request_line(out: &mut Vec<u8>, method: &Method, uri: &Uri) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    let target = uri.path_and_query().map_or("/", |path| path.as_str());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// Appends the end of a request head, with the fields for `framing`. If it `waits`, the body is sent only after `100 Continue`
/// (RFC 9110 §10.1.1).
pub fn request_end(out: &mut Vec<u8>, method: &Method, waits: bool, framing: Framing) {
    if waits {
        out.extend_from_slice(b"expect: 100-continue\r\n");
    }
    match framing {
        Framing::Length(length) => length_field(out, length),
        Framing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        // RFC 9110 §8.6: methods that anticipate content send a length even without a body.
        Framing::None if expects_content(method) => length_field(out, 0),
        Framing::None | Framing::UntilClose => {}
    }
    out.extend_from_slice(b"\r\n");
}

fn expects_content(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH].contains(method)
}

/// Appends a response head. A `content-length` in `headers` is kept only if there is no body that could contradict it.
pub fn response_head(
    out: &mut Vec<u8>,
    version: Version,
    status: StatusCode,
    headers: &HeaderMap,
    framing: Framing,
    close: bool,
) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or("").as_bytes());
    out.extend_from_slice(b"\r\n");
    let own_length = !matches!(framing, Framing::None);
    for (name, value) in headers {
        if name != TRANSFER_ENCODING && !(own_length && name == CONTENT_LENGTH) {
            field(out, name, value.as_bytes());
        }
    }
    match framing {
        Framing::Length(length) => length_field(out, length),
        Framing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        _ => {}
    }
    if close {
        out.extend_from_slice(b"connection: close\r\n");
    } else if version == Version::HTTP_10 {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

fn fields(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        field(out, name, value.as_bytes());
    }
}

/// Appends a field.
pub fn field(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn length_field(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends the size line of a chunk of `length` bytes. Follow it with the bytes and [`CHUNK_END`].
pub fn chunk_head(out: &mut Vec<u8>, length: usize) {
    let mut digits = [0u8; 18];
    let mut at = digits.len() - 2;
    digits[at] = b'\r';
    digits[at + 1] = b'\n';
    let mut left = length;
    loop {
        at -= 1;
        digits[at] = b"0123456789ABCDEF"[left & 15];
        left >>= 4;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The end of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// Appends the last chunk, with trailers if there are any.
pub fn last_chunk(out: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        fields(out, trailers);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_hexadecimal() {
        for length in [1, 9, 10, 15, 16, 255, 4096, usize::MAX] {
            let mut out = Vec::new();
            chunk_head(&mut out, length);
            assert_eq!(out, format!("{length:X}\r\n").into_bytes());
        }
    }

    #[test]
    fn a_post_without_a_body_says_so() {
        let mut out = Vec::new();
        request_line(&mut out, &Method::POST, &Uri::from_static("/a?b"));
        request_end(&mut out, &Method::POST, false, Framing::None);
        assert_eq!(out, b"POST /a?b HTTP/1.1\r\ncontent-length: 0\r\n\r\n");
    }
}
