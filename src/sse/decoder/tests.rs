//! Tables for the framing, and the property that cuts do not matter.

use proptest::prelude::*;

use super::Decoder;
use crate::sse::reference::{self, Expected, Reading};

/// Feeds the slices, checks what must hold after each of them, and puts together what a reference would say.
fn read<'a>(slices: impl IntoIterator<Item = &'a [u8]>, max_event: usize) -> Reading {
    let mut decoder = Decoder::new(max_event);
    let mut reading = Reading {
        events: Vec::new(),
        boundary: 0,
        quiet: false,
    };
    let mut fed = 0;
    for slice in slices {
        let mut last_end = 0;
        let was_mid_event = decoder.mid_event();
        let mut events = decoder.feed(slice);
        while let Some(event) = events.next() {
            assert!(last_end < event.end && event.end <= slice.len());
            last_end = event.end;
            reading.events.push(Expected {
                name: event.name.to_vec(),
                data: event.data.to_vec(),
                has_data: event.has_data,
                comment_only: event.comment_only,
            });
        }
        drop(events);
        let boundary = decoder.boundary();
        if decoder.quiet() {
            assert_eq!(boundary, slice.len());
        } else {
            assert!(boundary == last_end || (boundary, last_end) == (1, 0));
        }
        assert!(boundary <= slice.len());
        if boundary > 0 {
            reading.boundary = fed + boundary;
        }
        fed += slice.len();
        if decoder.quiet() {
            assert!(!decoder.mid_event());
        } else {
            let left = boundary < slice.len() || (boundary == 0 && was_mid_event);
            assert_eq!(decoder.mid_event(), left);
            assert!(decoder.carry.len() <= max_event);
        }
        if !decoder.mid_event() {
            assert_eq!(decoder.carry.capacity(), 0, "an idle stream costs nothing");
        }
    }
    reading.quiet = decoder.quiet();
    reading
}

fn whole(stream: &[u8]) -> Vec<(String, String, bool, bool)> {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    read([stream], usize::MAX)
        .events
        .into_iter()
        .map(|event| {
            (
                text(event.name),
                text(event.data),
                event.has_data,
                event.comment_only,
            )
        })
        .collect()
}

#[test]
fn blocks_are_read_as_the_standard_says() {
    /// Name, data, has data, comment only.
    type Row = (&'static str, &'static str, bool, bool);

    #[rustfmt::skip]
    let table: [(&str, &[Row]); 27] = [
        ("data: {\"a\":1}\n\n", &[("", "{\"a\":1}", true, false)]),
        ("data:x\n\n", &[("", "x", true, false)]),
        ("data:  x\n\n", &[("", " x", true, false)]),
        ("data: x\r\n\r\n", &[("", "x", true, false)]),
        ("data: x\r\r", &[("", "x", true, false)]),
        ("data: x\n\r\n", &[("", "x", true, false)]),
        ("data: x\r\n\n", &[("", "x", true, false)]),
        ("data: x\r\n\r", &[("", "x", true, false)]),
        ("\u{feff}data: x\n\n", &[("", "x", true, false)]),
        ("\u{feff}\n\u{feff}data: x\n\n", &[("", "", false, true), ("", "", false, false)]),
        ("data: x\ndata: y\n\n", &[("", "x\ny", true, false)]),
        ("data\ndata\n\n", &[("", "\n", true, false)]),
        ("data:\n\n", &[("", "", true, false)]),
        ("data\n\n", &[("", "", true, false)]),
        ("data: x\nevent: a\r\ndata: y\revent: b\ndata\n\n", &[("b", "x\ny\n", true, false)]),
        ("event: error\n: gone\n\n", &[("error", "", false, false)]),
        ("event: request_id\n: \"1\"\n\n", &[("request_id", "", false, false)]),
        ("event: a\nevent\n\n", &[("", "", false, false)]),
        (":\n\n", &[("", "", false, true)]),
        (": ping\n: pong\n\ndata: x\n\n", &[("", "", false, true), ("", "x", true, false)]),
        ("\n", &[("", "", false, true)]),
        ("id: 1\nretry: 5\n\n", &[("", "", false, false)]),
        ("database: x\nevents: y\nDATA: z\n data: w\n\n", &[("", "", false, false)]),
        ("data: a:b: c\n\n", &[("", "a:b: c", true, false)]),
        ("data: x\n", &[]),
        ("data: x", &[]),
        ("", &[]),
    ];
    for (stream, expected) in table {
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, data, has, only)| (name.to_string(), data.to_string(), *has, *only))
            .collect();
        assert_eq!(whole(stream.as_bytes()), expected, "{stream:?}");
    }
}

#[test]
fn an_event_ends_past_its_blank_line() {
    let mut decoder = Decoder::new(100);
    let mut events = decoder.feed(b"data: 1\n\n:\r\n\r\ndata: 2\r\rdata: 3");
    assert_eq!(events.next().unwrap().end, 9);
    assert_eq!(events.next().unwrap().end, 14);
    assert_eq!(events.next().unwrap().end, 23);
    assert!(events.next().is_none());
    drop(events);
    assert_eq!(decoder.boundary(), 23);
    assert!(decoder.mid_event());
}

#[test]
fn the_lf_of_a_split_crlf_belongs_to_the_block_that_ended() {
    let mut decoder = Decoder::new(100);
    let mut events = decoder.feed(b"data: 1\r\n\r");
    assert_eq!(events.next().unwrap().end, 10);
    drop(events);
    assert!(!decoder.mid_event());
    drop(decoder.feed(b""));
    assert!(decoder.feed(b"\n").next().is_none());
    assert_eq!(decoder.boundary(), 1);
    assert!(!decoder.mid_event());
    assert_eq!(decoder.feed(b"\n").next().map(|event| event.end), Some(1));
}

#[test]
fn events_that_no_one_asks_for_are_consumed() {
    let mut decoder = Decoder::new(100);
    drop(decoder.feed(b"data: 1\n\ndata: 2\n\nda"));
    assert_eq!(decoder.boundary(), 18);
    let mut events = decoder.feed(b"ta: 3\n\ndata: 4\n\n");
    assert_eq!(events.next().unwrap().data, b"3");
    drop(events);
    assert_eq!(decoder.boundary(), 16);
    assert!(!decoder.mid_event());
}

#[test]
fn the_decoder_gives_up_on_an_event_over_the_bound() {
    let stream = b"data: 1\n\ndata: 22\n\ndata: 3\n\n";
    for width in 1..=stream.len() {
        let reading = read(stream.chunks(width), 9);
        assert_eq!(reading.events.len(), 1);
        assert!(reading.quiet);
        assert_eq!(reading.boundary, stream.len());
        assert!(!read(stream.chunks(width), 10).quiet);
    }
    assert!(read([&b"x"[..]], 0).quiet);
}

#[test]
fn a_quiet_decoder_lets_everything_pass() {
    let mut decoder = Decoder::new(4);
    drop(decoder.feed(b"data: 1\n\n"));
    assert!(decoder.quiet());
    assert!(decoder.feed(b"\n\n").next().is_none());
    assert_eq!(decoder.boundary(), 2);
    assert!(!decoder.mid_event());
}

#[test]
fn the_memory_of_a_great_event_is_given_back() {
    let mut stream = b"data: ".to_vec();
    stream.resize(1 << 20, b'x');
    let mut decoder = Decoder::new(1 << 21);
    drop(decoder.feed(&stream));
    let mut events = decoder.feed(b"\n\ndata: 1");
    assert_eq!(events.next().unwrap().data.len(), (1 << 20) - 6);
    drop(events);
    assert!(decoder.carry.capacity() <= super::KEEP);
}

#[test]
fn a_decoder_is_small() {
    assert!(size_of::<Decoder>() <= 48);
}

/// Bytes that make blocks, out of pieces that matter and some that do not.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(vec![
            &b"\n"[..], b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"data", b"data:", b"data: ", b"event: ", b"event",
            b":", b" ", b"\xEF\xBB\xBF", b"\xEF", b"\xBB", b"\xBF", b"id: 1\n", b"error", b"[DONE]", b"{\"a\":1}",
            b"data: {\"choices\":[]}\n\n", b"\0",
        ]).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn cut<'a>(stream: &'a [u8], widths: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = stream;
    let mut slices = Vec::new();
    for width in widths.iter().cycle() {
        if rest.is_empty() || widths.iter().all(|width| *width == 0) {
            break;
        }
        let (slice, later) = rest.split_at((*width).min(rest.len()));
        slices.push(slice);
        rest = later;
    }
    slices.push(rest);
    slices
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn splitting_the_input_does_not_change_the_result(
        stream in stream(),
        widths in prop::collection::vec(0_usize..12, 1..12),
        max_event in prop_oneof![Just(usize::MAX), 0_usize..60],
    ) {
        let expected = reference::read(&stream, max_event);
        prop_assert_eq!(&read([&stream[..]], max_event), &expected);
        prop_assert_eq!(&read(stream.chunks(1), max_event), &expected);
        prop_assert_eq!(&read(cut(&stream, &widths), max_event), &expected);
    }
}
