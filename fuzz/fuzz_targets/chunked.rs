//! Any bytes are a chunked body, the beginning of one, or refused; which of them, and what its payload is, does not depend on
//! how they are cut. What is accepted a naive reader reads alike, and written again it is the same. Seeds: `tests/corpus/chunked`.

#![no_main]

use crossfade::http1::{self, ChunkError, Chunked};
use http::HeaderMap;
use libfuzzer_sys::fuzz_target;

#[path = "shared/cuts.rs"]
mod cuts;

/// What a body came to.
#[derive(Clone, Debug, PartialEq)]
enum End {
    /// How many bytes it took, and its trailers.
    Done(usize, Option<HeaderMap>),
    More,
    Refused(ChunkError),
}

fuzz_target!(|input: &[u8]| {
    let (payload, end) = decode(input, usize::MAX);
    for widest in cuts::WIDTHS {
        let (in_slices, same_end) = decode(input, widest);
        assert_eq!((in_slices, same_end), (payload.clone(), end.clone()));
    }
    if let End::Done(length, trailers) = end {
        assert_eq!(naive(&input[..length]), Some(payload.clone()));
        let mut again = Vec::new();
        for chunk in payload.chunks(1000) {
            http1::chunk_head(&mut again, chunk.len());
            again.extend_from_slice(chunk);
            again.extend_from_slice(http1::CHUNK_END);
        }
        http1::last_chunk(&mut again, trailers.as_ref());
        let length = again.len();
        assert_eq!(decode(&again, 7), (payload, End::Done(length, trailers)));
    }
});

fn decode(input: &[u8], widest: usize) -> (Vec<u8>, End) {
    let mut chunked = Chunked::default();
    let mut payload = Vec::new();
    let mut consumed = 0;
    for slice in cuts::cut(input, widest) {
        let mut slice = slice.to_vec();
        while !slice.is_empty() {
            let decoded = match chunked.decode(&mut slice) {
                Ok(decoded) => decoded,
                Err(error) => return (payload, End::Refused(error)),
            };
            // What is left is an error, which comes next.
            assert!(decoded.consumed == slice.len() || chunked.is_done() || !decoded.payload.is_empty());
            consumed += decoded.consumed;
            payload.extend_from_slice(&slice[decoded.payload]);
            if chunked.is_done() {
                return (payload, End::Done(consumed, chunked.take_trailers()));
            }
            slice.drain(..decoded.consumed);
        }
    }
    (payload, End::More)
}

/// The payload of a whole chunked body (RFC 9112 §7.1), without a look at what may be too long.
fn naive(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut payload = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&body[..end]).ok();
        let size = match line {
            Some(line) => line.split([';', ' ', '\t']).next()?.to_owned(),
            // An extension may hold any octet from 0x80 on.
            None => {
                let stop = body.iter().position(|byte| b"; \t".contains(byte))?;
                String::from_utf8(body[..stop].to_vec()).ok()?
            }
        };
        let size = usize::from_str_radix(&size, 16).ok()?;
        body = &body[end + 2..];
        if size == 0 {
            break;
        }
        payload.extend_from_slice(body.get(..size)?);
        body = body[size..].strip_prefix(b"\r\n")?;
    }
    (body == b"\r\n" || body.ends_with(b"\r\n\r\n")).then_some(payload)
}
