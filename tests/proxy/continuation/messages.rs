//! Another server continues streams of the Messages API in the text block that the client has open.

use serde_json::{Value, json};

use super::*;

fn asking_messages(more: Value) -> String {
    let mut body: Value = serde_json::from_str(&asking(more)).unwrap();
    body["max_tokens"] = 1000.into();
    body.to_string()
}

/// The data of the events of a stream.
fn events(response: &Response) -> Vec<Value> {
    let text = response.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn text_of(events: &[Value]) -> String {
    let text = events
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str());
    text.collect()
}

/// Asserts that the client got the complete text as one message with one block, and returns its events.
fn assert_one_message(response: &Response, what: &str) -> Vec<Value> {
    let text = response.text();
    assert_eq!((response.status, response.end), (200, End::Clean), "{text}");
    let events = events(response);
    assert_eq!(text_of(&events), words(20), "{what}: {text}");
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .filter(|kind| *kind != "content_block_delta")
        .collect();
    let expected = [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds, expected, "{what}: {text}");
    assert!(
        events
            .iter()
            .all(|event| event["index"].is_null() || event["index"] == 0),
        "{what}: {text}"
    );
    events
}

/// An error event of Messages.
fn error(message: &str) -> String {
    let error = json!({"type": "error", "error": {"type": "api_error", "message": message}});
    format!("event: error\ndata: {error}\n\n")
}

#[tokio::test]
async fn a_message_continues_in_the_block_that_its_client_has_open() {
    let gone: How = |script| script.chunk(error("Service temporarily unavailable"));
    for protocol in PROTOCOLS {
        for (cause, how) in [
            ("connection", Script::reset as How),
            ("truncated", Script::end),
            ("gap_timeout", Script::hang),
            ("error_event", gone),
        ] {
            let old = Upstream::start(Counting::new("old", 20).breaking(5, how).handler()).await;
            let new = Upstream::start(Counting::new("new", 20).handler()).await;
            let quick = ANY.replace("{retry", "{gapTimeoutSeconds: 0.4, retry");
            let flags = ["--upstream-protocol", protocol];
            let proxy = Proxy::planned(&old, &mostly_old(&new, &quick), &flags).await;
            let body = asking_messages(json!({}));
            let response = client::post(proxy.address, MESSAGES, &[], body).await;
            let what = format!("{protocol} {cause}");
            let events = assert_one_message(&response, &what);
            assert_eq!(events[0]["message"]["id"], "msg_old", "{what}");
            // White space at the end of the first part is not sent to the second server, which generates it again. It counts once.
            let end = &events[events.len() - 2];
            assert_eq!(end["usage"]["output_tokens"], 20, "{what}");
            assert_counted(&proxy, "continued", cause).await;
            // Old reports the error and stays healthy, so either server may have the first proof.
            let asked = [answers(&old), answers(&new)].concat();
            let mut bodies = asked
                .iter()
                .map(|asked| serde_json::from_slice::<Value>(&asked.body()).unwrap());
            let body = bodies.find(|body| body["messages"][1].is_object()).unwrap();
            let given = body["messages"][1]["content"].as_str().unwrap();
            assert_eq!(given, words(5).trim_end(), "{what}");
            assert_eq!(body["max_tokens"], 995, "{what}");
        }
    }
}

#[tokio::test]
async fn a_message_is_continued_only_by_a_server_with_a_proof() {
    for flags in [Flags::Ignored, Flags::Refused, Flags::Hangs] {
        let start = |server: Counting| Upstream::start(Counting { flags, ..server }.handler());
        let old = start(Counting::new("old", 20).breaking(5, Script::reset)).await;
        let new = start(Counting::new("new", 20)).await;
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
        // The second stream starts once the proofs are known.
        for stream in 1..3 {
            let body = asking_messages(json!({}));
            let response = client::post(proxy.address, MESSAGES, &[], body).await;
            assert!(response.end.is_unclean(), "{}", response.text());
            assert_eq!(text_of(&events(&response)), words(5), "{flags:?}");
            assert_eq!(request_count(&new), 0, "{flags:?}");
            let line = proxy.access_line(stream).await;
            assert_eq!(line["not_continued"], "not_supported", "{flags:?}");
        }
    }
}

#[tokio::test]
async fn a_message_with_thinking_or_a_required_tool_call_ends_as_without_continuation() {
    for (thinks, more, reason) in [
        ([1, 0], json!({}), "reasoning"),
        ([0, 1], json!({}), "reasoning"),
        (
            [0, 0],
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            "reasoning",
        ),
        (
            [0, 0],
            json!({"tool_choice": {"type": "any"}}),
            "tool_choice",
        ),
        ([0, 0], json!({"max_tokens": 5}), "tokens_used_up"),
    ] {
        let server = |name| Counting {
            thinks,
            ..Counting::new(name, 20)
        };
        let old = Upstream::start(server("old").breaking(5, Script::reset).handler()).await;
        let new = Upstream::start(server("new").handler()).await;
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
        let mut body: Value = serde_json::from_str(&asking_messages(json!({}))).unwrap();
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let response = client::post(proxy.address, MESSAGES, &[], body.to_string()).await;
        assert!(response.end.is_unclean(), "{}", response.text());
        assert_eq!(text_of(&events(&response)), words(5), "{reason}");
        assert_counted(&proxy, "ended", reason).await;
    }
}

#[tokio::test]
async fn servers_are_probed_in_advance_for_the_models_of_messages() {
    let old = Upstream::start(Counting::new("old", 20).handler()).await;
    let new = Upstream::start(Counting::new("new", 20).handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    let body = asking_messages(json!({}));
    let response = client::post(proxy.address, MESSAGES, &[], body).await;
    assert_one_message(&response, "unbroken");
    for generation in ["old", "new"] {
        let supported = [
            ("api", "messages"),
            ("generation", generation),
            ("state", "supported"),
        ];
        proxy
            .counts("crossfade_continuation_capability", &supported, 1.0)
            .await;
    }
}
