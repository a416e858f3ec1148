//! Streams pass unchanged and without delay, with their trailers, at the pace of their reader.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use crate::rig::upstream::Step;
use crate::rig::*;

/// How the bytes of a stream are split into writes.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Whole,
    Bytes,
    Pieces(usize),
}

fn cut(bytes: &[u8], cut: Cut) -> Script {
    let size = match cut {
        Cut::Whole => bytes.len().max(1),
        Cut::Bytes => 1,
        Cut::Pieces(size) => size,
    };
    let pieces = bytes.chunks(size);
    pieces.fold(Script::new().sse(), |script, piece| script.chunk(piece))
}

/// Asserts that these bytes arrive unchanged, however they are split.
async fn assert_passes(path: &str, bytes: &[u8], what: &str) {
    for way in [Cut::Whole, Cut::Bytes, Cut::Pieces(7), Cut::Pieces(100)] {
        for protocol in ["http1", "http2"] {
            let old = Upstream::always(cut(bytes, way)).await;
            let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
            let response = client::post(proxy.address, path, &[], STREAMING).await;
            let seen = String::from_utf8_lossy(&response.body);
            let wanted = String::from_utf8_lossy(bytes);
            assert!(
                response.body == bytes,
                "{what} {way:?} {protocol} {:?}:\n{seen:?}\ninstead of\n{wanted:?}",
                response.end
            );
            assert_eq!(response.end, End::Clean, "{what}");
        }
    }
}

#[tokio::test]
async fn every_stream_of_the_corpus_passes_byte_for_byte() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/sse");
    let mut files = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        let family = match name.split(['_', '.']).next().unwrap() {
            "chat" => Family::Chat,
            "completions" => Family::Completions,
            "responses" => Family::Responses,
            "messages" => Family::Messages,
            other => panic!("{other}"),
        };
        assert_passes(family.path(), &bytes, &name).await;
        files += 1;
    }
    assert!(files > 10);
}

#[tokio::test]
async fn unusual_bytes_pass_byte_for_byte() {
    let role = role("old");
    let content = content("old", 0);
    for (what, text) in [
        ("comments", format!(": a\n\n:\n\n{content}: b\n\n{DONE}")),
        ("crlf", format!("{content}{DONE}").replace('\n', "\r\n")),
        ("cr", format!("{content}{DONE}").replace('\n', "\r")),
        (
            "unknown fields",
            format!("foo: bar\nid: 7\nretry: 10\n{content}{DONE}"),
        ),
        (
            "several lines of data",
            format!("data: {{\ndata: }}\n\n{content}{DONE}"),
        ),
        (
            "no space behind the colon",
            format!("data:{{\"a\":1}}\n\n{DONE}"),
        ),
        ("no JSON", format!("data: hello\n\ndata\n\n{DONE}")),
        ("blank lines", format!("\n\n\n{content}\n\n\n{DONE}\n")),
        (
            "a byte order mark",
            format!("\u{feff}{role}{content}{DONE}"),
        ),
        ("what follows the end", format!("{content}{DONE}: bye\n\n")),
        (
            "a named event",
            format!("event: tool_call_dispatch\ndata: {{}}\n\n{content}{DONE}"),
        ),
        (
            "an annotation",
            format!("event: request_id\n: \"abc\"\n\n{content}{DONE}"),
        ),
        ("only the end", DONE.to_owned()),
    ] {
        assert_passes(CHAT, text.as_bytes(), what).await;
    }
    let not_text = [b"data: \xff\xfe\x00\x80\n\n".as_slice(), DONE.as_bytes()].concat();
    assert_passes(CHAT, &not_text, "no UTF-8").await;
}

#[tokio::test]
async fn nothing_precedes_a_byte_order_mark() {
    let (role, rest) = (role("old"), content("old", 0) + DONE);
    let flags = ["--keep-alive-comments", "0.2"];
    let script = Script::new().sse().pause(300);
    let script = script.chunk(format!("\u{feff}{role}{rest}")).end();
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &flags).await;
    let response = proxy.chat().await;
    assert_eq!(
        response.text().replace(":\n\n", ""),
        format!("{role}{rest}")
    );
}

#[tokio::test]
async fn comments_and_ids_do_not_overtake_the_events_that_are_held() {
    let (role, rest) = (role("old"), content("old", 0) + DONE);
    let between = ": keep-alive\n\nid: 7\n\nevent: request_id\n: \"abc\"\n\n";
    let before = Gate::closed();
    let script = Script::new().sse().chunk(": first\n\n").wait(&before);
    let script = script.chunk(&role).pause(100).chunk(between);
    let script = script.pause(100).chunk(&rest).end();
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    assert_eq!(client.until("\n\n").await, ": first\n\n");
    before.open();
    let expected = format!("{role}{between}{rest}");
    assert_eq!(client.until(DONE).await, expected);
}

#[tokio::test]
async fn an_event_larger_than_any_buffer_passes() {
    let text = format!(
        "{}data: {}\n\n{DONE}",
        content("old", 0),
        "x".repeat(4 << 20)
    );
    let old = Upstream::always(cut(text.as_bytes(), Cut::Pieces(10_000))).await;
    let proxy = Proxy::before(&old, &[]).await;
    let response = proxy.chat().await;
    assert_eq!(response.end, End::Clean);
    assert!(
        response.body == text.as_bytes(),
        "{} bytes of {}",
        response.body.len(),
        text.len()
    );
}

#[tokio::test]
async fn each_event_is_passed_on_at_once() {
    for protocol in ["http1", "http2"] {
        let gates: Vec<Gate> = (0..6).map(|_| Gate::closed()).collect();
        let mut events: Vec<String> = (0..5).map(|index| content("old", index)).collect();
        events.push(DONE.into());
        let steps = gates.iter().zip(&events);
        let script = steps.fold(Script::new().sse(), |script, (gate, event)| {
            script.wait(gate).chunk(event)
        });
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let mut client = client::open_chat(proxy.address).await;
        assert_eq!(
            client.head().await.status,
            200,
            "the head does not wait for an event"
        );
        for (gate, event) in gates.iter().zip(&events) {
            gate.open();
            assert_eq!(client.until("\n\n").await, *event);
        }
        assert_eq!(client.piece().await, None);
    }
}

/// The number of segments that `stream` has received, including acknowledgements.
fn segments(stream: &TcpStream) -> u32 {
    // SAFETY: the struct has only numbers, and the kernel writes at most `length` bytes to it.
    unsafe {
        let mut info: libc::tcp_info = std::mem::zeroed();
        let mut length = size_of_val(&info) as libc::socklen_t;
        let (fd, to) = (stream.as_raw_fd(), (&raw mut info).cast());
        let failed = libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut length);
        assert_eq!(failed, 0);
        info.tcpi_segs_in
    }
}

/// Streams 100 events at the pace of a model. Returns how many segments arrived during the second half.
fn serve_at_a_pace(listener: &TcpListener) -> u32 {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut half = 0;
    for n in 0..100 {
        if n == 50 {
            half = segments(&stream);
        }
        stream.write_all(content("old", n).as_bytes()).unwrap();
        // The pace of a model.
        thread::sleep(Duration::from_millis(10));
    }
    let seen = segments(&stream) - half;
    stream.write_all(DONE.as_bytes()).unwrap();
    seen
}

#[tokio::test]
async fn a_server_that_does_not_wait_for_acknowledgements_gets_half_of_them() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // On a busy machine, some gaps are too long, and a proxy tries only a few times.
    for _ in 0..20 {
        let proxy = Proxy::start(&["--old", &address]).await;
        let listener = listener.try_clone().unwrap();
        let server = thread::spawn(move || serve_at_a_pace(&listener));
        let response = proxy.chat().await;
        assert!(response.body.ends_with(DONE.as_bytes()));
        if server.join().unwrap() <= 35 {
            return;
        }
    }
    panic!("each was acknowledged");
}

#[tokio::test]
async fn trailers_pass() {
    let trailers = vec![("x-checksum".to_owned(), "abc".to_owned())];
    let script = stream_of(&chat_text("old")).step(Step::End(trailers));
    let old = Upstream::always(script).await;
    for protocol in ["http1", "http2"] {
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let mut client = Client::connect(proxy.address).await;
        client.post(CHAT, &[("te", "trailers")], STREAMING).await;
        let response = client.response().await;
        response.assert_is(chat_text("old"));
        assert_eq!(
            response.trailers.get("x-checksum"),
            Some("abc"),
            "{protocol}"
        );
        let client = client::http2::Client::connect(proxy.address).await;
        let stream = client.post(CHAT, &[("te", "trailers")], STREAMING).await;
        let response = stream.response().await;
        response.assert_is(chat_text("old"));
        assert_eq!(
            response.trailers.get("x-checksum"),
            Some("abc"),
            "{protocol}, HTTP/2"
        );
    }
}

#[tokio::test]
async fn a_compressed_stream_passes_unchanged() {
    let bytes: Vec<u8> = (0..2000u32).map(|n| (n * 7 % 251) as u8).collect();
    let headers = [
        ("content-type", "text/event-stream"),
        ("content-encoding", "gzip"),
    ];
    let script = Script::new()
        .head(200, &headers)
        .chunk(&bytes[..700])
        .chunk(&bytes[700..]);
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client
        .post(CHAT, &[("accept-encoding", "gzip, br")], STREAMING)
        .await;
    let response = client.response().await;
    assert_eq!((response.status, response.end), (200, End::Clean));
    assert_eq!(response.header("content-encoding"), Some("gzip"));
    assert!(response.body == bytes);
    // The server was asked not to compress, because the proxy cannot read compressed streams.
    assert_eq!(old.last().header("accept-encoding"), Some("identity"));
    proxy.outcomes("completed", 1).await;
}

#[tokio::test]
async fn response_headers_pass_and_the_proxy_compresses_nothing() {
    let headers = [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("cache-control", "no-cache"),
        ("x-request-id", "abc"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("server", "scripted"),
        ("date", "Fri, 20 Nov 2026 23:33:57 GMT"),
    ];
    let old = Upstream::always(Script::new().head(200, &headers).events(&chat_text("old"))).await;
    let proxy = Proxy::before(&old, &[]).await;
    let response = client::post(
        proxy.address,
        CHAT,
        &[("accept-encoding", "gzip")],
        STREAMING,
    )
    .await;
    response.assert_is(chat_text("old"));
    for (name, value) in headers {
        assert!(
            response.headers.all(name).any(|known| known == value),
            "{name}"
        );
        let count = headers.iter().filter(|(known, _)| *known == name).count();
        assert_eq!(response.headers.all(name).count(), count, "{name}");
    }
    assert_eq!(response.header("content-encoding"), None);
    assert_eq!(response.generation(), "old");
}

#[tokio::test]
async fn a_generation_header_of_the_upstream_is_replaced() {
    let headers = [
        ("content-type", "application/json"),
        ("x-crossfade-generation", "new"),
        ("content-length", "2"),
    ];
    let old = Upstream::always(Script::new().head(200, &headers).chunk("{}")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let response = client::post(proxy.address, CHAT, &[], UNARY).await;
    assert_eq!(
        response
            .headers
            .all("x-crossfade-generation")
            .collect::<Vec<_>>(),
        ["old"]
    );
}

#[tokio::test]
async fn a_stream_that_lasts_until_the_close_passes() {
    let headers = [
        ("content-type", "text/event-stream"),
        ("connection", "close"),
    ];
    let script = Script::new().head(200, &headers).events(&chat_text("old"));
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
    proxy.outcomes("completed", 1).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_slows_the_upstream_and_costs_little_memory() {
    let event = content("old", 0).repeat(64);
    let times = (200 << 20) / event.len();
    for protocol in ["http1", "http2"] {
        let sent = Arc::new(AtomicU64::new(0));
        let flood = Step::Flood(event.clone().into(), times, sent.clone());
        let old = Upstream::always(Script::new().sse().step(flood).chunk(DONE)).await;
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let before = proxy.memory();
        let mut client = Client::connect_narrow(proxy.address).await;
        client.post(CHAT, &[], STREAMING).await;
        client.head().await;
        client.until(&content("old", 0)).await;
        // The upstream blocks once all buffers on the path are full.
        let last = stands_still(&sent).await;
        assert!(
            last < 64 << 20,
            "{protocol}: {last} bytes were taken of the upstream"
        );
        let grown = proxy.memory().saturating_sub(before);
        assert!(
            grown < 24 << 20,
            "{protocol}: the proxy grew by {grown} bytes"
        );
        drop(client);
        eventually("cancelled upstream", async || old.last().is_gone()).await;
    }
}

#[tokio::test]
async fn a_slow_client_gets_every_byte() {
    let events: String = (0..300).map(|n| content("old", n)).collect();
    let times = (16 << 20) / events.len();
    let whole = events.repeat(times) + DONE;
    let length = whole.len().to_string();
    let of_known_length = [("content-type", "text/plain"), ("content-length", &length)];
    for head in [
        Script::new().sse(),
        Script::new().head(200, &of_known_length),
    ] {
        let sent = Arc::new(AtomicU64::new(0));
        let flood = Step::Flood(events.clone().into(), times, sent.clone());
        let old = Upstream::always(head.step(flood).chunk(DONE)).await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = Client::connect_narrow(proxy.address).await;
        client.post(CHAT, &[], STREAMING).await;
        client.head().await;
        stands_still(&sent).await;
        let body = client.body().await;
        assert_eq!(client.end, Some(End::Clean));
        assert!(body == whole.as_bytes());
    }
}

#[tokio::test]
async fn a_large_stream_arrives_complete_and_costs_little_memory() {
    let event = content("old", 0).repeat(64);
    let times = (48 << 20) / event.len();
    let flood = Step::Flood(event.clone().into(), times, Arc::default());
    let old = Upstream::always(Script::new().sse().step(flood).chunk(DONE)).await;
    let proxy = Proxy::before(&old, &[]).await;
    let before = proxy.memory();
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    let mut count = 0;
    let mut last = Vec::new();
    while let Some(piece) = client.piece().await {
        count += piece.len();
        last.extend(piece);
        let keep = last.len().saturating_sub(DONE.len());
        last.drain(..keep);
    }
    assert_eq!(client.end, Some(End::Clean));
    assert_eq!(count, event.len() * times + DONE.len());
    assert_eq!(last, DONE.as_bytes());
    let grown = proxy.memory().saturating_sub(before);
    assert!(grown < 24 << 20, "the proxy grew by {grown} bytes");
}

#[tokio::test]
async fn an_upload_that_is_not_read_slows_the_client_and_costs_little_memory() {
    let old = Upstream::always(Script::new().hang().leaving_the_body()).await;
    let proxy = Proxy::before(&old, &[]).await;
    let before = proxy.memory();
    let mut client = Client::connect(proxy.address).await;
    let length = 200 << 20;
    client
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"
        ))
        .await;
    let piece = vec![b'x'; 1 << 20];
    let mut sent = 0;
    loop {
        let send = client.try_send(&piece);
        match tokio::time::timeout(Duration::from_millis(300), send).await {
            Ok(true) => sent += piece.len(),
            Ok(false) => panic!("refused after {sent} bytes"),
            Err(_) => break,
        }
    }
    assert!(sent < 64 << 20, "{sent} bytes were taken of the client");
    let grown = proxy.memory().saturating_sub(before);
    assert!(grown < 32 << 20, "the proxy grew by {grown} bytes");
}
