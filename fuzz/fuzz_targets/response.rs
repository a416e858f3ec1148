//! Any bytes are an upstream's answer, the beginning of one, or no answer; which of them, and what its body is, does not depend
//! on how they are cut. What is accepted and written again means the same. Seeds: `tests/corpus/response`; the first byte says
//! whether it answers HEAD.

#![no_main]

use crossfade::http1::{self, Chunked, Framing, ResponseHead, parse_response};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Version};
use libfuzzer_sys::fuzz_target;

#[path = "shared/cuts.rs"]
mod cuts;

/// What came of an answer.
#[derive(Debug, PartialEq)]
struct Reading {
    head: Option<(u16, HeaderMap, Framing, bool, usize)>,
    body: Vec<u8>,
    end: End,
}

#[derive(Debug, PartialEq)]
enum End {
    /// It ends behind so many bytes.
    Whole(usize),
    More,
    Refused,
}

fuzz_target!(|input: &[u8]| {
    let Some((first, input)) = input.split_first() else {
        return;
    };
    let method = if *first == b'H' { Method::HEAD } else { Method::POST };
    let at_once = read(input, usize::MAX, &method);
    for widest in cuts::WIDTHS {
        let in_slices = read(input, widest, &method);
        assert_eq!(in_slices.head, at_once.head);
        assert_eq!(in_slices.end, at_once.end);
        assert!(in_slices.body.starts_with(&at_once.body));
        assert!(in_slices.body == at_once.body || at_once.end == End::Refused);
    }
    if let Ok(Some(head)) = parse_response(input, &method) {
        assert_written_again(&head, &method);
    }
});

fn read(input: &[u8], widest: usize, method: &Method) -> Reading {
    let mut reading = Reading {
        head: None,
        body: Vec::new(),
        end: End::More,
    };
    let mut gathered = Vec::new();
    let mut chunked = Chunked::default();
    let mut left = 0;
    let mut consumed = 0;
    for slice in cuts::cut(input, widest) {
        gathered.extend_from_slice(slice);
        if reading.head.is_none() {
            match parse_response(&gathered, method) {
                Ok(None) => continue,
                Err(_) => {
                    reading.end = End::Refused;
                    return reading;
                }
                Ok(Some(head)) => {
                    gathered.drain(..head.length);
                    consumed = head.length;
                    if let Framing::Length(length) = head.framing {
                        left = length;
                    }
                    reading.head = Some(meaning(&head));
                }
            }
        }
        let Some((_, _, framing, _, _)) = &reading.head else {
            continue;
        };
        match framing {
            Framing::None => {
                reading.end = End::Whole(consumed);
                return reading;
            }
            Framing::UntilClose => reading.body.append(&mut gathered),
            Framing::Length(_) => {
                let here = gathered.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                left -= here as u64;
                consumed += here;
                reading.body.extend(gathered.drain(..here));
                if left == 0 {
                    reading.end = End::Whole(consumed);
                    return reading;
                }
            }
            Framing::Chunked => {
                // What is left behind payload is an error, which comes next.
                while !gathered.is_empty() {
                    let Ok(decoded) = chunked.decode(&mut gathered) else {
                        reading.end = End::Refused;
                        return reading;
                    };
                    consumed += decoded.consumed;
                    reading.body.extend_from_slice(&gathered[decoded.payload]);
                    gathered.drain(..decoded.consumed);
                    if chunked.is_done() {
                        reading.end = End::Whole(consumed);
                        return reading;
                    }
                }
            }
        }
    }
    reading
}

fn meaning(head: &ResponseHead) -> (u16, HeaderMap, Framing, bool, usize) {
    (
        head.status.as_u16(),
        head.headers.clone(),
        head.framing,
        head.keep_alive,
        head.length,
    )
}

fn assert_written_again(head: &ResponseHead, method: &Method) {
    let mut bytes = Vec::new();
    http1::response_head(
        &mut bytes,
        Version::HTTP_11,
        head.status,
        &head.headers,
        head.framing,
        false,
    );
    let again = parse_response(&bytes, method).expect("accepted again").expect("whole");
    assert_eq!(again.length, bytes.len());
    assert_eq!((again.status, again.framing), (head.status, head.framing));
    let rest = |headers: &HeaderMap| {
        let mut headers = headers.clone();
        headers.remove(CONTENT_LENGTH);
        headers.remove(TRANSFER_ENCODING);
        headers
    };
    assert_eq!(rest(&again.headers), rest(&head.headers));
}
