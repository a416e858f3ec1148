//! Heads and trailers that HPACK expands: a field that takes one byte on the wire takes a hundred in memory (RFC 7541 §6.1).

use super::*;
use frames::END_HEADERS;

/// The newest entry of the dynamic table, which has the first index after the static one.
const NEWEST: u8 = 0x80 | 62;
/// `x: ` as a literal that is added to the dynamic table.
const ADDED: &[u8] = b"\x40\x01x\x00";
/// As many as h2's limit on the size of a head allows.
const MOST: usize = 1800;
/// As many as the proxy accepts.
const ACCEPTED: usize = 120;

/// The beginning of a connection, with a request that adds the field to the dynamic table.
fn beginning() -> Vec<u8> {
    let first = [HEAD, ADDED].concat();
    [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &first),
    ]
    .concat()
}

/// `GET /` of `http://h`.
const HEAD: &[u8] = b"\x82\x86\x84\x01\x01h";

fn fields(count: usize) -> Vec<u8> {
    vec![NEWEST; count]
}

/// The odd IDs of streams after the first.
fn ids(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 3 + 2 * number)
}

/// Starts a proxy whose clients have this many streams on each connection.
async fn before(manner: Manner, streams: u32) -> Fixture {
    let mut fixture = Fixture::start(manner, &[]).await;
    fixture.per_connection = 64 * 1024 + u64::from(streams) * 16 * 1024;
    fixture
}

#[tokio::test]
async fn heads_with_more_fields_than_are_accepted_are_not_kept() {
    let _machine = crate::shared().await;
    let fixture = before(Manner::ReadsOn, 36).await;
    let streams = fixture
        .attack(200, |_| {
            let head = [HEAD, &fields(MOST)].concat();
            let heads = ids(35).map(|id| frame(HEADERS, END_HEADERS | END_STREAM, id, &head));
            [beginning(), heads.collect::<Vec<_>>().concat()].concat()
        })
        .await;
    let labels = [("cause", "head_too_large")];
    let name = "crossfade_rejected_requests_total";
    fixture.proxy.counts(name, &labels, 200.0 * 35.0).await;
    drop(streams);
    fixture.gives_back().await;
}

#[tokio::test]
async fn heads_that_wait_for_their_tasks_share_the_budget() {
    let _machine = crate::shared().await;
    // What is accepted is allowed 16 KiB, and takes about twice as much.
    let fixture = before(Manner::ReadsOn, 100).await;
    let streams = fixture
        .attack(100, |_| {
            let head = [HEAD, &fields(ACCEPTED)].concat();
            let heads = ids(99).map(|id| frame(HEADERS, END_HEADERS | END_STREAM, id, &head));
            [beginning(), heads.collect::<Vec<_>>().concat()].concat()
        })
        .await;
    let labels = [("cause", "no_memory")];
    let metrics = fixture.proxy.metrics().await;
    let refused = metrics.sum("crossfade_rejected_requests_total", &labels);
    assert!(refused > 1000.0, "{refused}");
    drop(streams);
    fixture.gives_back().await;
}

/// The model server does not read the bodies, so their trailers wait.
#[tokio::test]
async fn trailers_that_are_not_read_share_the_budget() {
    let _machine = crate::shared().await;
    for count in [MOST, ACCEPTED] {
        let fixture = before(Manner::ReadsHead, 100).await;
        let streams = fixture
            .attack(60, |_| {
                let post = b"\x83\x86\x84\x01\x01h";
                let uploads = ids(99).flat_map(|id| {
                    [
                        frame(HEADERS, END_HEADERS, id, post),
                        frame(DATA, 0, id, &[b'x'; 600]),
                        frame(HEADERS, END_HEADERS | END_STREAM, id, &fields(count)),
                    ]
                    .concat()
                });
                [beginning(), uploads.collect()].concat()
            })
            .await;
        drop(streams);
        fixture.gives_back().await;
    }
}
