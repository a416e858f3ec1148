//! How a stream ends when its upstream breaks it off: what the client gets, and what is counted.

use std::time::Duration;

use crate::rig::*;

/// Sends a stream that breaks off after its first content.
async fn broken(family: Family, end: fn(Script) -> Script, flags: &[&str]) -> (Proxy, Response) {
    let gate = Gate::closed();
    let text = family.preamble("old") + &family.content("old", 0);
    let old = Upstream::always(end(stream_of(&text).wait(&gate))).await;
    let proxy = Proxy::before(&old, flags).await;
    let mut client = Client::connect(proxy.address).await;
    client.post(family.path(), &[], STREAMING).await;
    let head = client.head().await;
    assert_eq!(client.until(&family.content("old", 0)).await, text);
    gate.open();
    let rest = client.rest(head).await;
    (proxy, rest)
}

/// The JSON of an event's data.
fn data(event: &str) -> serde_json::Value {
    let line = event.lines().find_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(line.unwrap_or_else(|| panic!("no data: {event:?}"))).unwrap()
}

fn assert_honest(family: Family, response: &Response) {
    let text = response.text();
    assert!(
        response.end.is_unclean(),
        "{family:?} ended cleanly: {text}"
    );
    assert!(
        !text.contains("[DONE]") && !text.contains("message_stop"),
        "{text}"
    );
    assert!(
        text.ends_with("\n\n") && text.matches("\n\n").count() == 1,
        "{text:?}"
    );
    let data = data(&text);
    match family {
        Family::Chat | Family::Completions => {
            assert!(text.starts_with("data: "), "{text}");
            assert_eq!(data["error"]["code"], 502);
            assert!(data["error"]["message"].is_string() && data["error"]["type"].is_string());
        }
        Family::Responses => {
            assert!(text.starts_with("event: error\n"), "{text}");
            assert_eq!(data["type"], "error");
            assert_eq!(data["code"], "502");
        }
        Family::Messages => {
            assert!(text.starts_with("event: error\n"), "{text}");
            assert_eq!(data["type"], "error");
            assert_eq!(data["error"]["type"], "api_error");
        }
    }
}

#[tokio::test]
async fn in_every_family_a_broken_stream_ends_with_an_error_event_and_an_unclean_close() {
    for protocol in ["http1", "http2"] {
        for family in Family::ALL {
            for end in [Script::reset, Script::eof] {
                let flags = ["--upstream-protocol", protocol];
                let (proxy, response) = broken(family, end, &flags).await;
                assert_honest(family, &response);
                // The error text of the operating system is only logged.
                let text = response.text();
                assert!(
                    !text.contains("os error") && !text.contains("peer"),
                    "{text}"
                );
                // A broken stream may count as truncated or as failed, never as complete.
                let line = proxy.access_line(1).await;
                let outcome = line["outcome"].as_str().unwrap();
                assert!(["truncated", "failed"].contains(&outcome), "{line}");
                let labels = [("class", family.class()), ("outcome", outcome)];
                proxy.counts("crossfade_requests_total", &labels, 1.0).await;
            }
        }
    }
}

/// The events of a Responses stream with these sequence numbers.
fn numbered(numbers: std::ops::Range<u64>) -> String {
    let event = |number| {
        let kind = match number {
            0 => "response.created",
            1 => "response.in_progress",
            _ => "response.output_text.delta",
        };
        let text = r#""delta":"\"sequence_number\":99""#;
        format!(
            "event: {kind}\ndata: {{\"type\":\"{kind}\",\"response\":{{\"id\":\"r\"}},{text},\"sequence_number\":{number}}}\n\n"
        )
    };
    numbers.map(event).collect()
}

/// The official clients order the events by their numbers.
#[tokio::test]
async fn the_error_event_of_responses_has_the_number_after_the_last_one() {
    for (hold, events, last) in [
        ("10", vec![numbered(0..1)], 0),
        ("0", vec![numbered(0..2)], 1),
        ("10", vec![numbered(0..3)], 2),
        (
            "10",
            vec![numbered(0..3), ": \n\n".to_owned() + &numbered(3..7)],
            6,
        ),
        // An incomplete event, which the client does not get.
        ("10", vec![numbered(0..3) + &numbered(3..4)[..150]], 2),
        (
            "10",
            vec![
                numbered(0..3) + &numbered(3..4)[..100],
                numbered(3..4)[100..].to_owned() + &numbered(4..5)[..60],
            ],
            3,
        ),
    ] {
        let gate = Gate::closed();
        let mut script = Script::new().sse();
        for slice in &events {
            script = script.chunk(slice).pause(30);
        }
        let old = Upstream::always(script.wait(&gate).eof()).await;
        let proxy = Proxy::before(&old, &["--hold", hold]).await;
        let mut client = Client::connect(proxy.address).await;
        client.post(RESPONSES, &[], STREAMING).await;
        client.head().await;
        if last > 1 {
            client
                .until(&format!("\"sequence_number\":{last}}}\n\n"))
                .await;
        }
        gate.open();
        let rest = String::from_utf8(client.body().await).unwrap();
        let error = rest.rsplit_once("event: error\n").expect(&rest).1;
        assert_eq!(data(error)["sequence_number"], last + 1, "{events:?}");
    }
}

#[tokio::test]
async fn an_http2_client_gets_the_error_event_and_a_reset() {
    let old = Upstream::always(stream_of(&content("old", 0)).reset()).await;
    let proxy = Proxy::before(&old, &[]).await;
    let client = client::http2::Client::connect(proxy.address).await;
    let response = client.chat().await.response().await;
    let text = response.text();
    assert!(response.end.is_unclean(), "{text}");
    assert!(text.starts_with(&content("old", 0)), "{text}");
    assert_eq!(data(&text[content("old", 0).len()..])["error"]["code"], 502);
    // The connection can still be used.
    let old_count = old.count();
    drop(client.chat().await);
    assert_eq!(old.count(), old_count + 1);
}

#[tokio::test]
async fn a_broken_stream_never_ends_with_an_incomplete_event() {
    for protocol in ["http1", "http2"] {
        let gate = Gate::closed();
        let whole = content("old", 0);
        let half = &content("old", 1)[..40];
        let script = Script::new()
            .sse()
            .chunk(whole.clone() + half)
            .wait(&gate)
            .eof();
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let mut client = client::open_chat(proxy.address).await;
        client.head().await;
        client.until(&whole).await;
        client.assert_silent(50).await;
        gate.open();
        let rest = String::from_utf8(client.body().await).unwrap();
        assert!(rest.starts_with("data: {\"error\":"), "{rest}");
        assert!(client.end.unwrap().is_unclean());
    }
}

#[tokio::test]
async fn a_stream_without_its_terminal_event_is_truncated() {
    for family in Family::ALL {
        let text = family.preamble("old") + &family.content("old", 0);
        let old = Upstream::always(stream_of(&text).end()).await;
        let proxy = Proxy::before(&old, &[]).await;
        let response = client::post(proxy.address, family.path(), &[], STREAMING).await;
        assert!(response.text().starts_with(&text));
        assert!(!response.text().contains("[DONE]"));
        let labels = [("class", family.class()), ("outcome", "truncated")];
        proxy.counts("crossfade_requests_total", &labels, 1.0).await;
        assert_eq!(proxy.access_line(1).await["outcome"], "truncated");
    }
}

/// A crash of the server looks the same.
#[tokio::test]
async fn a_stream_that_ends_only_with_its_connection_needs_its_terminal_event() {
    let finish = r#"data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    for (more, is_whole) in [
        (String::new(), false),
        (format!("{finish}\n\n"), false),
        (DONE.to_owned(), true),
    ] {
        let headers = [
            ("content-type", "text/event-stream"),
            ("connection", "close"),
        ];
        let text = role("old") + &content("old", 0) + &more;
        let script = Script::new().head(200, &headers).chunk(&text).eof();
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &[]).await;
        let response = client::post(proxy.address, CHAT, &[], STREAMING).await;
        let line = proxy.access_line(1).await;
        if is_whole {
            response.assert_is(text);
            assert_eq!(line["outcome"], "completed", "{line}");
            continue;
        }
        assert!(response.end.is_unclean(), "{}", response.text());
        let text_sent = response.text();
        let error = data(text_sent.strip_prefix(&text).unwrap());
        assert_eq!(
            error["error"]["message"],
            "old ended the stream early, without its terminal event: connection closed early"
        );
        assert_eq!(line["outcome"], "truncated", "{line}");
        assert_eq!(
            line["why"],
            "the connection closed before the terminal event"
        );
    }
}

#[tokio::test]
async fn each_terminal_event_completes_a_stream() {
    let typed = |kind: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"}}\n\n");
    let cases = [
        (Family::Chat, DONE.to_owned()),
        (Family::Completions, DONE.to_owned()),
        (Family::Responses, typed("response.completed")),
        (Family::Responses, typed("response.incomplete")),
        (Family::Messages, typed("message_stop")),
    ];
    for (family, terminal) in cases {
        let text = family.preamble("old") + &family.content("old", 0) + &terminal;
        let old = Upstream::always(stream_of(&text).end()).await;
        let proxy = Proxy::before(&old, &[]).await;
        let response = client::post(proxy.address, family.path(), &[], STREAMING).await;
        response.assert_is(text);
        proxy.outcomes("completed", 1).await;
    }
}

#[tokio::test]
async fn an_error_event_of_the_upstream_passes_unchanged_and_makes_the_outcome_failed() {
    let responses = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\"}}}\n\n";
    let messages = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n";
    let old_dynamo = "event: error\n: something went wrong\n\n";
    let cases = [
        (Family::Chat, error_event(503) + DONE),
        (Family::Completions, error_event(500) + DONE),
        (Family::Chat, error_event(400)),
        (Family::Chat, old_dynamo.to_owned()),
        (Family::Responses, responses.to_owned() + DONE),
        (Family::Messages, messages.to_owned()),
    ];
    for (family, error) in cases {
        // Before and after content. Without another target, an error in the first event passes, too.
        for begin in [
            String::new(),
            family.preamble("old") + &family.content("old", 0),
        ] {
            let text = begin + &error;
            let old = Upstream::always(stream_of(&text)).await;
            let proxy = Proxy::before(&old, &[]).await;
            let response = client::post(proxy.address, family.path(), &[], STREAMING).await;
            response.assert_is(text);
            proxy.outcomes("failed", 1).await;
        }
    }
}

#[tokio::test]
async fn a_request_with_an_error_event_after_content_is_not_retried() {
    let text = content("new", 0) + &error_event(503) + DONE;
    let new = Upstream::always(stream_of(&text)).await;
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    proxy.chat().await.assert_is(text);
    assert_eq!(old.count(), 0);
}

#[tokio::test]
async fn silence_beyond_the_gap_timeout_ends_the_stream() {
    let old = Upstream::always(stream_of(&content("old", 0)).hang()).await;
    let proxy = Proxy::before(&old, &["--gap-timeout", "0.1"]).await;
    let response = proxy.chat().await;
    assert!(response.end.is_unclean());
    let text = response.text();
    assert_eq!(
        data(&text[content("old", 0).len()..])["error"]["code"],
        504,
        "{text}"
    );
    eventually("cancelled upstream", async || old.last().is_gone()).await;
}

#[tokio::test]
async fn silence_after_the_terminal_event_ends_the_stream_cleanly() {
    let text = content("old", 0) + DONE;
    let old = Upstream::always(stream_of(&text).hang()).await;
    let proxy = Proxy::before(&old, &["--gap-timeout", "0.1"]).await;
    proxy.chat().await.assert_is(text);
    eventually("cancelled upstream", async || old.last().is_gone()).await;
}

/// WHATWG HTML §9.2.7: servers send comments to keep a connection alive.
#[tokio::test]
async fn comments_and_parts_of_events_renew_the_gap_timeout() {
    let mut script = Script::new().sse().chunk(role("old") + &content("old", 0));
    for piece in [":\n\n", "data: {", "\"choices\":[]", "}\n\n", ":\n\n"] {
        script = script.pause(150).chunk(piece);
    }
    let old = Upstream::always(script.pause(150).chunk(DONE)).await;
    let proxy = Proxy::before(&old, &["--gap-timeout", "0.4"]).await;
    let response = proxy.chat().await;
    assert_eq!(response.end, End::Clean, "{}", response.text());
    assert!(response.text().ends_with(DONE));
}

#[tokio::test]
async fn a_stream_with_gaps_below_the_timeout_is_not_ended() {
    let mut script = Script::new().sse();
    let mut text = String::new();
    for index in 0..8 {
        text += &content("old", index);
        script = script.chunk(content("old", index)).pause(150);
    }
    let old = Upstream::always(script.chunk(DONE)).await;
    let flags = ["--gap-timeout", "1", "--first-event-timeout", "1"];
    let proxy = Proxy::before(&old, &flags).await;
    proxy.chat().await.assert_is(text + DONE);
}

/// After a stall, many streams have data to read. The proxy reads all of it before it writes.
#[tokio::test]
async fn a_proxy_that_was_stopped_beyond_the_gap_timeout_ends_no_stream_that_has_data() {
    let gates: Vec<Gate> = (0..3).map(|_| Gate::closed()).collect();
    let mut script = stream_of(&content("old", 0));
    for (gate, index) in gates.iter().zip(1..) {
        script = script.wait(gate).chunk(content("old", index));
    }
    let old = Upstream::always(script.hang()).await;
    let proxy = Proxy::before(&old, &["--gap-timeout", "2"]).await;
    let mut clients = Vec::new();
    for _ in 0..16 {
        let mut client = Client::connect(proxy.address).await;
        client.post(CHAT, &[], STREAMING).await;
        client.head().await;
        client.until(&content("old", 0)).await;
        clients.push(client);
    }
    for (gate, index) in gates.iter().zip(1..) {
        let beyond = Duration::from_millis(2200);
        proxy.stand_still(beyond, || gate.open()).await;
        for client in &mut clients {
            client.until(&content("old", index)).await;
        }
    }
}

#[tokio::test]
async fn a_response_that_is_not_a_stream_is_cut_where_its_upstream_cut_it() {
    let headers = [
        ("content-type", "application/json"),
        ("content-length", "100"),
    ];
    for script in [
        Script::new().head(200, &headers).chunk("{\"half\":").eof(),
        Script::new()
            .head(200, &headers[..1])
            .chunk("{\"half\":")
            .reset(),
    ] {
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &[]).await;
        let response = client::post(proxy.address, CHAT, &[], UNARY).await;
        assert!(response.end.is_unclean(), "{response:?}");
        assert!("{\"half\":".starts_with(&response.text()));
        eventually("not counted as completed", async || {
            let metrics = proxy.metrics().await;
            let all = metrics.sum("crossfade_requests_total", &[]);
            all == 1.0
                && metrics.sum("crossfade_requests_total", &[("outcome", "completed")]) == 0.0
        })
        .await;
    }
}

#[tokio::test]
async fn comments_keep_a_silent_stream_alive_between_events_only() {
    let gate = Gate::closed();
    let (first, second) = (content("old", 0), content("old", 1));
    let script = Script::new()
        .sse()
        .chunk(&first)
        .chunk(&second[..20])
        .wait(&gate)
        .chunk(&second[20..])
        .chunk(DONE);
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &["--keep-alive-comments", "0.05"]).await;
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    let mut seen = client.until(&first).await;
    for _ in 0..3 {
        seen += &client.until("\n\n").await;
    }
    gate.open();
    seen += &String::from_utf8(client.body().await).unwrap();
    assert_eq!(client.end, Some(End::Clean));
    let comments: Vec<_> = seen
        .split_inclusive("\n\n")
        .filter(|event| event.starts_with(':'))
        .collect();
    assert!(comments.len() >= 3, "{seen}");
    let without: String = seen
        .split_inclusive("\n\n")
        .filter(|event| !event.starts_with(':'))
        .collect();
    assert_eq!(without, first + &second + DONE);
}

#[tokio::test]
async fn no_comments_are_added_to_a_stream_with_a_content_length() {
    let [first, rest] = [content("old", 0), content("old", 1) + DONE];
    let length = (first.len() + rest.len()).to_string();
    let headers = [
        ("content-type", "text/event-stream"),
        ("content-length", &*length),
    ];
    // One path is split, the other one is served by old only.
    for (method, path) in [("POST", CHAT), ("GET", "/events")] {
        let gate = Gate::closed();
        let script = Script::new().head(200, &headers).chunk(&first);
        let old = Upstream::always(script.wait(&gate).chunk(&rest)).await;
        let proxy = Proxy::before(&old, &["--keep-alive-comments", "0.05"]).await;
        let mut client = Client::connect(proxy.address).await;
        match method {
            "GET" => client.get(path, &[]).await,
            _ => client.post(path, &[], STREAMING).await,
        }
        client.head().await;
        let mut seen = client.until(&first).await;
        seen += &client.until(":\n\n").await;
        gate.open();
        seen += &String::from_utf8(client.body().await).unwrap();
        assert_eq!(client.end, Some(End::Clean), "{path}");
        assert_eq!(seen.replace(":\n\n", ""), first.clone() + &rest, "{path}");
    }
}

#[tokio::test]
async fn comments_also_keep_streams_alive_that_wait_for_their_first_content() {
    let gate = Gate::closed();
    let old = Upstream::always(Script::new().sse().wait(&gate).events(&chat_text("old"))).await;
    let proxy = Proxy::before(&old, &["--keep-alive-comments", "0.05"]).await;
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    let start = std::time::Instant::now();
    assert!(client.until("\n\n").await.starts_with(':'));
    assert!(start.elapsed() < Duration::from_secs(5));
    gate.open();
    let rest = String::from_utf8(client.body().await).unwrap();
    assert!(rest.ends_with(&chat_text("old")), "{rest}");
}
