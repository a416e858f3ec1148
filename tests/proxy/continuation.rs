//! Streams break after their first content, and another server continues them.

mod broken_probes;
mod elsewhere;
mod failed_attempts;
mod keep_alives;
mod messages;
mod missing_end;
mod replaced_servers;
mod rewriting;
mod unresponsive_servers;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::rig::client::http2::Client as Http2;
use crate::rig::*;
use plan_file::{mostly_new, mostly_old};

const ANY: &str = "failover: {retryBudgetPercent: 100, continuation: {mode: AnyGeneration}}";
const SAME: &str = "failover: {retryBudgetPercent: 100, continuation: {mode: SameGeneration}}";
const PROTOCOLS: [&str; 2] = ["http1", "http2"];

/// A streaming chat request with additional fields.
fn asking(more: Value) -> String {
    let mut body = json!({
        "model": "tiny", "stream": true, "messages": [{"role": "user", "content": "say"}],
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body.to_string()
}

fn prompting() -> String {
    json!({"model": "tiny", "stream": true, "prompt": "say: "}).to_string()
}

/// A stream as its client sees it.
#[derive(Debug, Default)]
struct ReceivedStream {
    text: String,
    reasoning: String,
    ids: BTreeSet<String>,
    roles: usize,
    dones: usize,
    usage: Vec<Value>,
    comments: Vec<String>,
    errors: Vec<Value>,
}

fn seen(response: &Response) -> ReceivedStream {
    let mut seen = ReceivedStream::default();
    for line in response.text().lines() {
        if let Some(comment) = line.strip_prefix(": ") {
            seen.comments.push(comment.to_owned());
        }
        let Some(data) = line.strip_prefix("data: ") else {
            continue;
        };
        if data.is_empty() {
            continue;
        }
        if data == "[DONE]" {
            seen.dones += 1;
            continue;
        }
        let chunk: Value =
            serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        if chunk["error"].is_object() {
            seen.errors.push(chunk["error"].clone());
            continue;
        }
        let fields = ["id", "created", "model", "system_fingerprint"];
        let id = fields.map(|field| chunk[field].to_string()).join(" ");
        if chunk["choices"][0].is_object() {
            seen.ids.insert(id);
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        seen.text += delta["content"]
            .as_str()
            .or(choice["text"].as_str())
            .unwrap_or_default();
        seen.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        seen.roles += usize::from(delta["role"].is_string());
        if chunk["usage"].is_object() {
            seen.usage.push(chunk["usage"].clone());
        }
    }
    seen
}

/// Asserts that the client got the complete text as one stream, and returns the stream.
fn assert_one(response: &Response, count: usize, what: &str) -> ReceivedStream {
    let seen = seen(response);
    let text = response.text();
    assert_eq!(
        (response.status, response.end),
        (200, End::Clean),
        "{what}: {text}"
    );
    assert_eq!(seen.text, words(count), "{what}");
    assert_eq!((seen.ids.len(), seen.dones), (1, 1), "{what}: {text}");
    assert!(seen.roles <= 1 && seen.errors.is_empty(), "{what}: {text}");
    seen
}

/// Asserts that the stream ended with an error after `count` words.
fn assert_ended(response: &Response, count: usize, what: &str) {
    let seen = seen(response);
    assert!(response.end.is_unclean(), "{what}: {}", response.text());
    assert_eq!(seen.text, words(count), "{what}");
    assert_eq!(
        (seen.errors.len(), seen.dones),
        (1, 0),
        "{what}: {}",
        response.text()
    );
    assert_eq!(seen.comments, [""; 0], "{what}");
}

/// Waits until `count` endpoints have proven that they can continue a chat. The other protocols are probed after that.
async fn proven(proxy: &Proxy, count: u32) {
    let labels = [("api", "chat"), ("state", "supported")];
    proxy
        .counts(
            "crossfade_continuation_capability",
            &labels,
            f64::from(count),
        )
        .await;
}

async fn assert_counted(proxy: &Proxy, outcome: &str, reason: &str) {
    let labels = [("outcome", outcome), ("reason", reason)];
    proxy
        .counts("crossfade_continuations_total", &labels, 1.0)
        .await;
    let metrics = proxy.metrics().await;
    let all = metrics.sum("crossfade_continuations_total", &[]);
    assert_eq!(
        all,
        1.0,
        "{:?}",
        metrics.of("crossfade_continuations_total")
    );
}

/// The number of requests that a server got, without probes.
fn request_count(server: &Upstream) -> usize {
    answers(server).len()
}

/// The requests that a server got, without probes.
fn answers(server: &Upstream) -> Vec<std::sync::Arc<Received>> {
    let mut requests = server.requests();
    requests.retain(|received| {
        let body: Value = serde_json::from_slice(&received.body()).unwrap_or_default();
        received.method == "POST" && body["stream"] == true
    });
    requests
}

/// How a server breaks off.
type How = fn(Script) -> Script;

/// The ways to break off, each with its cause.
fn breaks() -> Vec<(&'static str, How)> {
    vec![
        ("connection", Script::reset),
        ("connection", Script::eof),
        ("connection", |script| {
            script.chunk("data: {\"choices\":[{\"del").reset()
        }),
        ("truncated", Script::end),
        ("truncated", |script| {
            script.chunk("data: {\"choices\":[{\"del").end()
        }),
        ("gap_timeout", Script::hang),
        ("error_event", |script| {
            script.chunk(error_event(503) + DONE)
        }),
        ("error_event", |script| {
            script.chunk(error_event(502)).hang()
        }),
        ("error_event", |script| {
            script.chunk(error_event(504)).chunk(DONE)
        }),
    ]
}

#[tokio::test]
async fn another_server_continues_a_broken_stream_and_the_client_sees_a_single_one() {
    for protocol in PROTOCOLS {
        for (index, (cause, how)) in breaks().into_iter().enumerate() {
            let old = Upstream::start(Counting::new("old", 20).breaking(5, how).handler()).await;
            let new = Upstream::start(Counting::new("new", 20).handler()).await;
            let plan = mostly_old(
                &new,
                &ANY.replace("{retry", "{gapTimeoutSeconds: 0.4, retry"),
            );
            let flags = ["--upstream-protocol", protocol];
            let proxy = Proxy::planned(&old, &plan, &flags).await;
            proven(&proxy, 2).await;
            let what = format!("{protocol} {index}: {cause}");
            let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
            let seen = assert_one(&response, 20, &what);
            // A server that reports an error stays healthy: it may have other workers.
            let by = if cause == "error_event" { "old" } else { "new" };
            let comment = format!("crossfade continued (old → {by}, {cause})");
            assert_eq!(seen.comments, [comment], "{what}");
            assert_counted(&proxy, "continued", cause).await;
            let line = proxy.access_line(1).await;
            assert_eq!(
                (&line["outcome"], &line["continued"]),
                (&json!("completed"), &json!(1))
            );
            assert_eq!(
                (&line["answered"], &line["attempts"]),
                (&json!(by), &json!(2))
            );
            let metrics = proxy.metrics().await;
            let gap = metrics.sum("crossfade_continuation_gap_seconds_count", &[]);
            assert_eq!(gap, 1.0, "{what}");
            // The server that continues the stream has no failure.
            let failure = match cause {
                "connection" | "truncated" => "broken",
                "gap_timeout" => "deadline",
                other => other,
            };
            let labels = [("generation", "old"), ("cause", failure)];
            for labels in [&labels[..], &[]] {
                let failed = metrics.sum("crossfade_failed_attempts_total", labels);
                assert_eq!(failed, 1.0, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn completions_and_clients_with_http2_are_continued_too() {
    for (path, body) in [(CHAT, asking(json!({}))), (COMPLETIONS, prompting())] {
        for (protocol, how) in [("http1", Script::eof as How), ("http2", Script::reset)] {
            let old = Upstream::start(Counting::new("old", 20).breaking(5, how).handler()).await;
            let new = Upstream::start(Counting::new("new", 20).handler()).await;
            let flags = ["--upstream-protocol", protocol];
            let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &flags).await;
            let response = client::post(proxy.address, path, &[], &body).await;
            assert_one(&response, 20, path);
            let client = Http2::connect(proxy.address).await;
            let response = client.post(path, &[], &body).await.response().await;
            assert_one(&response, 20, path);
            let labels = [("outcome", "continued"), ("reason", "connection")];
            proxy
                .counts("crossfade_continuations_total", &labels, 2.0)
                .await;
        }
    }
}

#[tokio::test]
async fn a_stream_is_continued_on_its_own_generation_before_the_other_one() {
    for mode in [SAME, ANY] {
        let how = Script::reset;
        let a = Upstream::start(Counting::new("a", 20).breaking(5, how).handler()).await;
        let b = Upstream::start(Counting::new("b", 20).breaking(5, how).handler()).await;
        let new = Upstream::start(Counting::new("new", 20).handler()).await;
        let flags = ["--old", &b.url()];
        let proxy = Proxy::planned(&a, &mostly_old(&new, mode), &flags).await;
        for _ in 0..4 {
            proven(&proxy, 3).await;
            let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
            let seen = assert_one(&response, 20, mode);
            assert_eq!(
                seen.comments,
                ["crossfade continued (old → old, connection)"]
            );
        }
        assert_eq!(
            (request_count(&a) + request_count(&b), request_count(&new)),
            (8, 0)
        );
    }
}

#[tokio::test]
async fn the_other_generation_continues_a_stream_only_if_the_plan_allows_it() {
    let mut old = Counting::new("old", 20).breaking(5, Script::reset);
    old.breaks_again = Some((0, std::sync::Arc::new(Script::reset)));
    let old = Upstream::start(old.handler()).await;
    let new = Upstream::start(Counting::new("new", 20).handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, SAME), &[]).await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    assert_ended(&response, 5, "same");
    assert_eq!(request_count(&new), 0);
    let line = proxy.access_line(1).await;
    assert_eq!(line["outcome"], "truncated");
    assert!(line["not_continued"].is_string(), "{line}");
}

#[tokio::test]
async fn token_counts_are_those_of_the_complete_answer() {
    for counts in [false, true] {
        let mut first = Counting::new("old", 20).breaking(5, Script::reset);
        let mut second = Counting::new("new", 20);
        (first.counts, second.counts) = (counts, counts);
        let old = Upstream::start(first.handler()).await;
        let new = Upstream::start(second.handler()).await;
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
        let body = asking(json!({"stream_options": {"include_usage": true}, "max_tokens": 100}));
        let response = client::post(proxy.address, CHAT, &[], body).await;
        let seen = assert_one(&response, 20, "usage");
        let usage = json!({"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30});
        assert_eq!(seen.usage.last(), Some(&usage), "{:?}", seen.usage);
        let rest: Value = serde_json::from_slice(&answers(&new)[0].body()).unwrap();
        assert_eq!(rest["max_tokens"], 95);
        let line = proxy.access_line(1).await;
        assert_eq!(line["completion_tokens"], 20);
        for (generation, tokens, events) in [("old", 5.0, 6.0), ("new", 15.0, 17.0)] {
            let labels = [("generation", generation), ("kind", "completion")];
            proxy
                .counts("crossfade_tokens_total", &labels, tokens)
                .await;
            let metrics = proxy.metrics().await;
            let sent = metrics.sum("crossfade_events_total", &[("generation", generation)]);
            assert!((sent - events).abs() <= 1.0, "{generation}: {sent}");
            let open = metrics.sum("crossfade_open_streams", &[("generation", generation)]);
            assert_eq!(open, 0.0);
        }
    }
}

#[tokio::test]
async fn a_stream_is_continued_as_often_as_the_plan_allows() {
    for (most, complete) in [(2, true), (1, false)] {
        let mut first = Counting::new("a", 20).breaking(5, Script::reset);
        first.breaks_again = Some((5, std::sync::Arc::new(Script::reset)));
        let mut last = Counting::new("new", 20).breaking(5, Script::reset);
        last.breaks_again = None;
        let old = Upstream::start(first.handler()).await;
        let new = Upstream::start(last.handler()).await;
        let b = Counting {
            name: "b",
            ..Counting::new("b", 20)
        };
        let mut b = b.breaking(5, Script::reset);
        b.breaks_again = Some((5, std::sync::Arc::new(Script::reset)));
        let b = Upstream::start(b.handler()).await;
        let lines = ANY.replace(
            "AnyGeneration",
            &format!("AnyGeneration, maxPerStream: {most}"),
        );
        let proxy = Proxy::planned(&old, &mostly_old(&new, &lines), &["--old", &b.url()]).await;
        proven(&proxy, 3).await;
        let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
        let seen = seen(&response);
        if complete {
            assert_eq!(seen.comments.len(), 2, "{}", response.text());
            // The third server is new, or the first one again, which also breaks off continued streams.
            assert!(
                seen.text == words(20) || seen.text == words(15),
                "{}",
                seen.text
            );
        } else {
            assert_eq!(seen.text, words(10));
            assert_eq!(proxy.access_line(1).await["not_continued"], "too_often");
            assert_eq!(seen.dones, 0);
        }
    }
}

#[tokio::test]
async fn a_server_without_a_proof_is_never_asked_to_continue() {
    for flags in [Flags::Ignored, Flags::Refused] {
        let mut second = Counting::new("new", 20);
        second.flags = flags;
        let old = Counting::new("old", 20).breaking(5, Script::reset);
        let old = Upstream::start(Counting { flags, ..old }.handler()).await;
        let new = Upstream::start(second.handler()).await;
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
        let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
        assert_ended(&response, 5, &format!("{flags:?}"));
        assert_eq!(request_count(&new), 0, "{flags:?}");
        assert_counted(&proxy, "ended", "not_supported").await;
        // Completions need no flags, and so no proof.
        let response = client::post(proxy.address, COMPLETIONS, &[], prompting()).await;
        assert_one(&response, 20, "completions");
    }
}

#[tokio::test]
async fn a_server_that_never_responds_to_the_probe_is_not_asked_to_continue() {
    let old = Counting::new("old", 20).breaking(5, Script::reset);
    let flags = Flags::Hangs;
    let old = Upstream::start(Counting { flags, ..old }.handler()).await;
    let new = Counting::new("new", 20);
    let new = Upstream::start(Counting { flags, ..new }.handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    assert_ended(&response, 5, "hangs");
    assert_eq!(request_count(&new), 0);
    assert_counted(&proxy, "ended", "not_supported").await;
}

/// With `bodyFields`, the complete body is read before it is sent.
#[tokio::test]
async fn the_body_of_a_stream_that_cannot_be_continued_is_released() {
    let tool = r#"data: {"id":"a","choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}"#;
    for affinity in ["", "affinity: {bodyFields: [session]}"] {
        let how = move |script: Script| script.event(tool).hang();
        let old = Upstream::start(Counting::new("old", 20).breaking(5, how).handler()).await;
        let new = Upstream::start(Counting::new("new", 20).handler()).await;
        let lines = format!("{ANY}\n{affinity}");
        let proxy = Proxy::planned(&old, &mostly_old(&new, &lines), &[]).await;
        let mut client = Client::connect(proxy.address).await;
        let body = asking(json!({"user": "y".repeat(200_000)}));
        client.post(CHAT, &[], body).await;
        client.head().await;
        client.until("\"tool_calls\":[{\"index\":0}]}}]}\n\n").await;
        let used = [("kind", "used")];
        proxy.counts("crossfade_memory_bytes", &used, 0.0).await;
    }
}

#[tokio::test]
async fn if_the_only_proven_server_is_gone_the_stream_ends_with_an_error_event() {
    let gate = Gate::closed();
    let wait = gate.clone();
    let how = move |script: Script| script.wait(&wait).reset();
    let mut old = Counting::new("old", 20).breaking(5, how);
    old.breaks_again = Some((0, std::sync::Arc::new(Script::reset)));
    let old = Upstream::start(old.handler()).await;
    let new = Upstream::start(Counting::new("new", 20).handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client.post(CHAT, &[], asking(json!({}))).await;
    let head = client.head().await;
    client.until("\"logprobs\":null}]}\n\n").await;
    // Only old gets requests, so new has only got the probe.
    eventually("new has a proof", async || {
        let proven = [("generation", "new"), ("state", "supported")];
        let metrics = proxy.metrics().await;
        metrics.sum("crossfade_continuation_capability", &proven) == 1.0
    })
    .await;
    drop(new);
    gate.open();
    let rest = client.rest(head).await;
    assert!(rest.end.is_unclean(), "{}", rest.text());
    assert!(rest.text().contains("\"code\":502"), "{}", rest.text());
    assert_counted(&proxy, "ended", "attempts_failed").await;
}

#[tokio::test]
async fn an_error_about_the_request_is_forwarded() {
    for code in [400, 422, 429, 500] {
        let how = move |script: Script| script.chunk(error_event(code) + DONE);
        let old = Upstream::start(Counting::new("old", 20).breaking(5, how).handler()).await;
        let new = Upstream::start(Counting::new("new", 20).handler()).await;
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
        assert_error_is_forwarded(&proxy, "request_error").await;
        assert_eq!(request_count(&new), 0, "{code}");
    }
}

/// Asserts that the error event of a stream and everything after it are forwarded.
async fn assert_error_is_forwarded(proxy: &Proxy, reason: &str) {
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    let seen = seen(&response);
    let text = response.text();
    assert_eq!((seen.text, response.end), (words(5), End::Clean), "{text}");
    assert_eq!((seen.errors.len(), seen.dones), (1, 1), "{text}");
    assert_counted(proxy, "ended", reason).await;
    proxy.outcomes("failed", 1).await;
}

#[tokio::test]
async fn an_error_event_without_a_server_to_continue_is_forwarded_with_what_follows() {
    let how = |script: Script| script.chunk(error_event(503)).pause(50).chunk(DONE);
    let mut old = Counting::new("old", 20).breaking(5, how);
    old.breaks_again = Some((
        0,
        std::sync::Arc::new(|script: Script| script.chunk(error_event(503))),
    ));
    let new = Upstream::always(status(503)).await;
    let old = Upstream::start(old.handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    assert_error_is_forwarded(&proxy, "attempts_failed").await;
}

#[tokio::test]
async fn a_request_that_cannot_be_continued_ends_as_without_continuation_and_the_reason_is_reported()
 {
    for (more, reason) in [
        (json!({"n": 2}), "choices"),
        (json!({"logprobs": true}), "logprobs"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "guided_output",
        ),
        (json!({"nvext": {"guided_regex": "a"}}), "guided_output"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"max_tokens": 5}), "tokens_used_up"),
        (json!({"messages": []}), "request"),
    ] {
        let old = Upstream::start(
            Counting::new("old", 20)
                .breaking(5, Script::reset)
                .handler(),
        )
        .await;
        let new = Upstream::start(Counting::new("new", 20).handler()).await;
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
        let response = client::post(proxy.address, CHAT, &[], asking(more)).await;
        assert_ended(&response, 5, reason);
        assert_eq!(request_count(&new), 0, "{reason}");
        assert_counted(&proxy, "ended", reason).await;
        assert_eq!(proxy.access_line(1).await["not_continued"], reason);
    }
}

#[tokio::test]
async fn a_stream_that_cannot_be_continued_ends_as_without_continuation_and_the_reason_is_reported()
{
    let finish = r#"data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let tool = r#"data: {"id":"a","choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}"#;
    let logprobs =
        r#"data: {"id":"a","choices":[{"index":0,"delta":{},"logprobs":{"content":[]}}]}"#;
    for (event, lines, reason) in [
        (finish, ANY.to_owned(), "finished"),
        (tool, ANY.to_owned(), "tool_calls"),
        (logprobs, ANY.to_owned(), "logprobs"),
        (
            "",
            ANY.replace("{retry", "{maxReplayBytes: 100000, retry"),
            "body_not_kept",
        ),
        (
            "",
            ANY.replace("retryBudgetPercent: 100", "retryBudgetPercent: 0"),
            "retry_budget",
        ),
    ] {
        let how = move |script: Script| match event {
            "" => script.reset(),
            event => script.event(event).reset(),
        };
        let old = Upstream::start(Counting::new("old", 20).breaking(5, how).handler()).await;
        let new = Upstream::start(Counting::new("new", 20).handler()).await;
        let proxy = Proxy::planned(&old, &mostly_old(&new, &lines), &[]).await;
        let body = asking(json!({"user": "y".repeat(200_000)}));
        let response = client::post(proxy.address, CHAT, &[], body).await;
        assert_ended(&response, 5, reason);
        assert_eq!(request_count(&new), 0, "{reason}");
        assert_counted(&proxy, "ended", reason).await;
    }
    let old = Upstream::start(
        Counting::new("old", 2000)
            .breaking(1000, Script::eof)
            .handler(),
    )
    .await;
    let new = Upstream::start(Counting::new("new", 2000).handler()).await;
    let lines = ANY.replace("AnyGeneration", "AnyGeneration, maxTextBytes: 1024");
    let proxy = Proxy::planned(&old, &mostly_old(&new, &lines), &[]).await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    assert_ended(&response, 1000, "long");
    assert_counted(&proxy, "ended", "text_too_long").await;
}

#[tokio::test]
async fn a_stream_with_only_reasoning_is_sent_again_and_the_second_reasoning_is_dropped() {
    let mut first = Counting::new("old", 20);
    first.thinks = [3, 0];
    let mut first = first.breaking(0, Script::reset);
    first.breaks_again = None;
    let mut second = Counting::new("new", 20);
    second.thinks = [4, 0];
    let old = Upstream::start(first.handler()).await;
    let new = Upstream::start(second.handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    let body = asking(json!({"response_format": {"type": "json_object"}}));
    let response = client::post(proxy.address, CHAT, &[], &body).await;
    let seen = assert_one(&response, 20, "thinking");
    assert_eq!(seen.reasoning, "old thinks 0 old thinks 1 old thinks 2 ");
    assert_eq!(answers(&new)[0].body(), body.as_bytes());
    assert_counted(&proxy, "continued", "connection").await;
}

#[tokio::test]
async fn an_answer_continues_with_its_content_unless_the_second_model_reasons_again() {
    for (thinks, goes_on) in [(0, true), (2, false)] {
        let mut first = Counting::new("old", 20).breaking(5, Script::reset);
        first.thinks = [3, thinks];
        let mut second = Counting::new("new", 20);
        second.thinks = [3, thinks];
        let old = Upstream::start(first.handler()).await;
        let new = Upstream::start(second.handler()).await;
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
        let body = asking(json!({"stream_options": {"include_usage": true}}));
        let response = client::post(proxy.address, CHAT, &[], body).await;
        if goes_on {
            let seen = assert_one(&response, 20, "thinks");
            // The second server gets the five words of content, and not the three of reasoning.
            let expected =
                json!({"prompt_tokens": 10, "completion_tokens": 23, "total_tokens": 33});
            assert_eq!(seen.usage, [expected]);
            assert_eq!(seen.reasoning, "old thinks 0 old thinks 1 old thinks 2 ");
            assert_counted(&proxy, "continued", "connection").await;
        } else {
            assert_ended(&response, 5, "thinks again");
            assert_counted(&proxy, "ended", "reasoning").await;
        }
    }
}

#[tokio::test]
async fn if_a_server_fails_before_it_continues_the_next_one_is_tried() {
    let role =
        r#"data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
    let early: Vec<How> = vec![
        Script::reset,
        Script::end,
        |script| script.chunk(error_event(503) + DONE),
        |script| script.chunk(DONE),
    ];
    for how in early {
        let mut peer = Counting::new("b", 20).breaking(5, Script::reset);
        peer.breaks_again = Some((
            0,
            std::sync::Arc::new(move |script: Script| how(script.event(role))),
        ));
        let a = Upstream::start(peer.clone().handler()).await;
        let b = Upstream::start(peer.handler()).await;
        let new = Upstream::start(Counting::new("new", 20).handler()).await;
        let proxy = Proxy::planned(&a, &mostly_old(&new, ANY), &["--old", &b.url()]).await;
        proven(&proxy, 3).await;
        let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
        let seen = assert_one(&response, 20, "another");
        assert_eq!(
            seen.comments,
            ["crossfade continued (old → new, connection)"]
        );
        assert_eq!(request_count(&a) + request_count(&b), 2);
        assert_eq!(proxy.access_line(1).await["attempts"], 3);
    }
}

#[tokio::test]
async fn a_server_that_is_ejected_for_its_responses_is_asked_before_a_stream_ends() {
    let gate = Gate::closed();
    let opened = gate.clone();
    let old = Counting {
        flags: Flags::Ignored,
        ..Counting::new("old", 20).breaking(5, move |script| script.wait(&opened).reset())
    };
    let old = old.handler();
    let old = Upstream::start(move |received| match received.header("x-fails") {
        Some(_) => Script::new().json(200, "{}"),
        None => old(received),
    })
    .await;
    let new = Counting::new("new", 20).handler();
    let new = Upstream::start(move |received| match received.header("x-fails") {
        Some(_) => status(503),
        None => new(received),
    })
    .await;
    let flags = ["--override-header", "x-generation"];
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &flags).await;
    proven(&proxy, 1).await;
    let mut client = Client::connect(proxy.address).await;
    let fields = [("x-generation", "old")];
    client.post(CHAT, &fields, asking(json!({}))).await;
    let head = client.head().await;
    for _ in 0..10 {
        let fields = [("x-generation", "new"), ("x-fails", "1")];
        let response = client::post(proxy.address, CHAT, &fields, asking(json!({}))).await;
        assert_eq!(response.status, 200);
    }
    let labels = [("generation", "new"), ("state", "ejected")];
    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum("crossfade_pool_endpoints", &labels), 1.0);
    gate.open();
    let seen = assert_one(&client.rest(head).await, 20, "ejected");
    assert_eq!(
        seen.comments,
        ["crossfade continued (old → new, connection)"]
    );
}

#[tokio::test]
async fn the_retry_budget_does_not_limit_the_first_attempt_of_a_generation() {
    // The plan's budget allows three retries.
    let lines =
        "failover: {retryBudgetPercent: 1, continuation: {mode: AnyGeneration, maxPerStream: 3}}";
    let mut gone = Counting::new("old", 20).breaking(5, Script::reset);
    gone.breaks_again = Some((0, std::sync::Arc::new(Script::reset)));
    let mut new = Counting::new("new", 20);
    new.breaks_again = Some((5, std::sync::Arc::new(Script::reset)));
    let a = Upstream::start(gone.clone().handler()).await;
    let b = Upstream::start(gone.handler()).await;
    let new = Upstream::start(new.handler()).await;
    let proxy = Proxy::planned(&a, &mostly_old(&new, lines), &["--old", &b.url()]).await;
    for (generation, count) in [("old", 2.0), ("new", 1.0)] {
        let labels = [("generation", generation), ("state", "supported")];
        proxy
            .counts("crossfade_continuation_capability", &labels, count)
            .await;
    }
    for stream in 1..=3 {
        let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
        let seen = assert_one(&response, 20, "the budget");
        assert_eq!(seen.comments.len(), 3, "{:?}", seen.comments);
        assert_eq!(proxy.access_line(stream).await["continued"], 3);
    }
}

#[tokio::test]
async fn nothing_is_continued_by_default_and_the_comment_can_be_disabled() {
    let old = Upstream::start(
        Counting::new("old", 20)
            .breaking(5, Script::reset)
            .handler(),
    )
    .await;
    let new = Upstream::start(Counting::new("new", 20).handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ""), &[]).await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    assert_ended(&response, 5, "off");
    assert_eq!(new.count(), 0);
    assert_eq!(
        proxy
            .metrics()
            .await
            .sum("crossfade_continuations_total", &[]),
        0.0
    );
    let lines = ANY.replace("AnyGeneration", "AnyGeneration, comment: false");
    let proxy = Proxy::planned(&old, &mostly_old(&new, &lines), &[]).await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    let seen = assert_one(&response, 20, "without comment");
    assert_eq!(seen.comments, [""; 0]);
}

#[tokio::test]
async fn a_stream_on_new_is_continued_on_old_until_old_drains() {
    let old = Upstream::start(Counting::new("old", 20).handler()).await;
    let new = Upstream::start(
        Counting::new("new", 20)
            .breaking(5, Script::reset)
            .handler(),
    )
    .await;
    let proxy = Proxy::planned(&old, &mostly_new(&new, ANY), &[]).await;
    proven(&proxy, 2).await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    let seen = assert_one(&response, 20, "back");
    assert_eq!(
        seen.comments,
        ["crossfade continued (new → old, connection)"]
    );
    let plan = PlanFile::new(&manifest(
        &new.url(),
        0,
        1,
        &format!("{ANY}\noldDraining: true"),
    ));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let before = request_count(&old);
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    // Another server of new may continue, but old may not.
    assert_one(&response, 20, "draining");
    assert_eq!(request_count(&old), before);
}

#[tokio::test]
async fn a_server_that_needs_a_key_is_probed_with_that_of_the_client() {
    const KEY: [(&str, &str); 1] = [("authorization", "Bearer k1")];
    let server = |name| Counting {
        key: Some("k1"),
        ..Counting::new(name, 20)
    };
    let old = Upstream::start(server("old").breaking(5, Script::reset).handler()).await;
    let new = Upstream::start(server("new").handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    // The first stream makes its model known to the proxy.
    let response = client::post(proxy.address, CHAT, &KEY, asking(json!({}))).await;
    assert_one(&response, 20, "asked in need");
    let proof = |state| [("generation", "new"), ("api", "chat"), ("state", state)];
    let capability = "crossfade_continuation_capability";
    proxy.counts(capability, &proof("supported"), 1.0).await;
    // The proxy's own probes, which have no key, do not revoke the proof.
    let response = client::post(proxy.address, CHAT, &KEY, asking(json!({}))).await;
    assert_one(&response, 20, "known");
    let questions = |key: bool| {
        let mut all = new.requests();
        all.retain(|received| {
            received.method == "POST"
                && received.header("x-crossfade-probe").is_some()
                && received.header("authorization").is_some() == key
        });
        all.len()
    };
    // Each stream probes on the connection on which it continues.
    assert_eq!(questions(true), 2);
    let other = [("authorization", "Bearer k2")];
    let response = client::post(proxy.address, CHAT, &other, asking(json!({}))).await;
    assert_eq!(response.status, 401);
}
