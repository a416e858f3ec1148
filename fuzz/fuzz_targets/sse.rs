//! Any bytes, cut anywhere: the decoder reads what the naive reference reads, its offsets make sense, and no judgement
//! panics.
//!
//! `cargo +nightly fuzz run sse fuzz/corpus/sse tests/corpus/sse`

#![no_main]

use crossfade::sse::{Api, Decoder, Meaning, Tail, is_terminal, meaning, tail_meaning, usage};
use libfuzzer_sys::fuzz_target;
use reference::{Expected, Reading};

#[path = "../../src/sse/reference.rs"]
mod reference;

fuzz_target!(|stream: &[u8]| {
    for max_event in [usize::MAX, 200, 16] {
        let expected = reference::read(stream, max_event);
        for widest in [usize::MAX, 1, 2, 7, 64] {
            assert_eq!(read(stream, widest, max_event), expected);
        }
    }
});

/// Cuts the stream into slices of up to `widest` bytes. The bytes themselves choose where, so that a plain stream is a
/// seed.
fn read(stream: &[u8], widest: usize, max_event: usize) -> Reading {
    let mut decoder = Decoder::new(max_event);
    let mut reading = Reading {
        events: Vec::new(),
        boundary: 0,
        quiet: false,
    };
    let mut draw = stream.len();
    let mut fed = 0;
    while fed < stream.len() {
        let rest = &stream[fed..];
        draw = draw.wrapping_mul(31).wrapping_add(usize::from(rest[0]));
        let width = if widest == usize::MAX {
            rest.len()
        } else {
            // Zero is a width, too, unless nothing would ever move.
            (draw % (widest + 1)).max(usize::from(draw % 3 > 0 || widest == 1))
        };
        let slice = &rest[..width.min(rest.len())];
        feed(&mut decoder, slice, fed, &mut reading);
        fed += slice.len();
        draw = draw.wrapping_add(1);
    }
    reading.quiet = decoder.quiet();
    reading
}

fn feed(decoder: &mut Decoder, slice: &[u8], fed: usize, reading: &mut Reading) {
    let was_mid_event = decoder.mid_event();
    let mut last_end = 0;
    let mut events = decoder.feed(slice);
    while let Some(event) = events.next() {
        assert!(last_end < event.end && event.end <= slice.len());
        last_end = event.end;
        classify(&event);
        reading.events.push(Expected {
            name: event.name.to_vec(),
            data: event.data.to_vec(),
            has_data: event.has_data,
            comment_only: event.comment_only,
        });
    }
    drop(events);
    let boundary = decoder.boundary();
    assert!(last_end <= boundary && boundary <= slice.len());
    if boundary > 0 {
        reading.boundary = fed + boundary;
    }
    let left = boundary < slice.len() || (boundary == 0 && was_mid_event);
    assert_eq!(decoder.mid_event(), left && !decoder.quiet());
}

/// [`meaning`] and [`tail_meaning`] agree about errors and ends.
fn classify(event: &crossfade::sse::Event<'_>) {
    for api in Api::ALL {
        let tail = match meaning(api, event) {
            Meaning::Error { code } => Tail::Error { code },
            Meaning::Terminal => Tail::Terminal,
            Meaning::Comment | Meaning::Preamble | Meaning::Content => Tail::Nothing,
        };
        assert_eq!(tail_meaning(api, event), tail);
        assert!(tail != Tail::Terminal || is_terminal(api, event));
        let _ = usage(api, event.data);
    }
}
