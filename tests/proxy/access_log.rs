//! Access lines: the same fields in text and JSON, the request ID that client, proxy and model server share, the model, and the
//! address of the model server.

use serde_json::Value;

use crate::rig::frames::*;
use crate::rig::*;

const REQUEST_ID: &str = "x-request-id";

/// A request ID as Dynamo, OpenAI and others make them.
fn is_uuid(id: &str) -> bool {
    id.len() == 36 && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

#[tokio::test]
async fn an_access_line_names_the_client_the_request_the_model_and_the_server() {
    let stream = r#"data: {"id":"1","model":"org/model-7","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}

data: {"id":"1","model":"org/model-7","choices":[{"index":0,"delta":{"content":"hi"}}]}

data: {"id":"1","model":"org/model-7","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}

data: [DONE]

"#;
    let old = Upstream::always(stream_of(stream)).await;
    let proxy = Proxy::before(&old, &[]).await;
    let headers = [(REQUEST_ID, "from-the-client")];
    let response = client::post(proxy.address, CHAT, &headers, STREAMING).await;
    response.assert_is(stream);
    assert_eq!(response.header(REQUEST_ID), Some("from-the-client"));
    assert_eq!(old.last().header(REQUEST_ID), Some("from-the-client"));
    let line = proxy.access_line(1).await;
    let address = old.url().replace("http://", "");
    for (field, value) in [
        ("level", "INFO"),
        ("client", "127.0.0.1"),
        ("request_id", "from-the-client"),
        ("model", "org/model-7"),
        ("endpoint", &address),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
    assert_eq!(line["prompt_tokens"], 3, "{line}");
    let time: &str = line["timestamp"].as_str().unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
    // The same as in all other lines.
    let logged: Vec<Value> = proxy
        .lines()
        .iter()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    for line in logged {
        for field in ["timestamp", "level", "target"] {
            assert!(line[field].is_string(), "{line}");
        }
    }
}

#[tokio::test]
async fn a_request_without_a_usable_id_gets_one() {
    let old = Upstream::always(chat_stream("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let too_long = "x".repeat(129);
    for given in [None, Some("two words"), Some(&*too_long)] {
        let given: Vec<_> = given.map(|id| (REQUEST_ID, id)).into_iter().collect();
        let response = client::post(proxy.address, CHAT, &given, STREAMING).await;
        let id = response.header(REQUEST_ID).unwrap();
        assert!(is_uuid(id), "{id}");
        assert_eq!(old.last().header(REQUEST_ID), Some(id));
        let line = proxy.access_line(old.count()).await;
        assert_eq!(line["request_id"], id);
    }
}

#[tokio::test]
async fn the_proxys_own_responses_have_the_id_too_and_a_servers_own_id_is_kept() {
    let nobody = Upstream::nobody();
    let proxy = Proxy::start(&["--old", &format!("http://{nobody}")]).await;
    let headers = [(REQUEST_ID, "request-7")];
    let response = client::post(proxy.address, CHAT, &headers, STREAMING).await;
    assert_eq!(response.status, 502);
    assert_eq!(response.header(REQUEST_ID), Some("request-7"));
    let line = proxy.access_line(1).await;
    assert_eq!(line["endpoint"], Value::Null, "{line}");

    let own = [
        ("content-type", "text/event-stream"),
        (REQUEST_ID, "the-servers"),
    ];
    let old = Upstream::always(Script::new().head(200, &own).events(&chat_text("old"))).await;
    let proxy = Proxy::before(&old, &[]).await;
    let response = client::post(proxy.address, CHAT, &headers, STREAMING).await;
    let ids: Vec<_> = response.headers.all(REQUEST_ID).collect();
    assert_eq!(ids, ["the-servers"]);
}

#[tokio::test]
async fn the_line_of_a_failed_request_says_what_went_wrong() {
    let old = Upstream::always(status(500)).await;
    let new = Upstream::always(status(503)).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    let response = client::post(proxy.address, CHAT, &[], UNARY).await;
    assert_eq!(response.status, 500);
    let line = proxy.access_line(1).await;
    let why = "new: answered 503 Service Unavailable; old: answered 500 Internal Server Error";
    assert_eq!(
        (&line["outcome"], &line["why"]),
        (&"failed".into(), &why.into())
    );
    // Requests that are not split are not retried.
    client::get(proxy.address, "/anything").await;
    let line = proxy.access_line(2).await;
    assert_eq!(line["why"], "old: answered 500 Internal Server Error");

    for (text, why) in [
        (
            error_event(503),
            "old reported an error in the stream (status 503)",
        ),
        (
            "data: {\"error\":{\"message\":\"boom\"}}\n\n".to_owned(),
            "old reported an error in the stream",
        ),
    ] {
        // The connection breaks after the error, which is the cause.
        let stream = content("old", 0) + &text;
        let old = Upstream::always(stream_of(&stream).reset()).await;
        let proxy = Proxy::before(&old, &[]).await;
        client::post(proxy.address, CHAT, &[], STREAMING).await;
        let line = proxy.access_line(1).await;
        assert_eq!(
            (&line["outcome"], &line["why"]),
            (&"failed".into(), &why.into())
        );
    }
}

#[tokio::test]
async fn every_response_of_a_server_names_its_endpoint() {
    let old = Upstream::start(move |received| match &*received.target {
        MODELS => models(&["a"]),
        "/empty" => Script::new().head(204, &[]),
        _ => model_not_found(),
    })
    .await;
    let new = Upstream::always(status(500)).await;
    let proxy = Proxy::split(&old, &new, 1).await;
    let address = old.url().replace("http://", "");
    let mut count = 0;
    for path in [MODELS, "/v1/models/b", "/empty", "/missing"] {
        client::get(proxy.address, path).await;
        count += 1;
        let line = proxy.access_line(count).await;
        assert_eq!(line["endpoint"], address, "{line}");
    }
    // A 404 is read before it is forwarded, because the other generation may know the model.
    let proxy = Proxy::before(&old, &[]).await;
    let not_found = client::post(proxy.address, CHAT, &[], UNARY).await;
    assert_eq!(not_found.status, 404);
    let line = proxy.access_line(1).await;
    assert_eq!(line["endpoint"], address, "{line}");
}

#[tokio::test]
async fn the_bytes_of_the_proxys_own_responses_count_in_the_line_but_not_as_forwarded() {
    let nobody = Upstream::nobody();
    let proxy = Proxy::start(&["--old", &format!("http://{nobody}")]).await;
    let response = client::post(proxy.address, CHAT, &[], UNARY).await;
    assert_eq!(response.status, 502);
    let line = proxy.access_line(1).await;
    assert_eq!(line["bytes"], response.text().len(), "{line}");
    proxy
        .counts("crossfade_response_bytes_total", &[], 0.0)
        .await;
    let mut client = Client::connect(proxy.address).await;
    client
        .send("HEAD /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .await;
    assert_eq!(client.head().await.status, 502);
    let line = proxy.access_line(2).await;
    assert_eq!(line["bytes"], 0, "{line}");
}

#[tokio::test]
async fn the_line_of_a_recovered_stream_names_the_model_of_the_response_that_the_client_got() {
    let role = |model: &str| role("x").replace("tiny", model);
    let new = Upstream::always(stream_of(&role("failed")).reset()).await;
    let answer = chat_text("old").replace("tiny", "other");
    let old = Upstream::always(stream_of(&answer)).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    let response = client::post(proxy.address, CHAT, &[], STREAMING).await;
    response.assert_is(answer);
    let line = proxy.access_line(1).await;
    assert_eq!(
        (&line["model"], &line["attempts"]),
        (&"other".into(), &2.into()),
        "{line}"
    );
}

#[tokio::test]
async fn a_unary_response_names_its_model_and_client_addresses_can_be_omitted() {
    let body = r#"{"object":"chat.completion","model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
    let old = Upstream::always(Script::new().json(200, body)).await;
    let proxy = Proxy::before(&old, &["--no-client-address"]).await;
    client::post(proxy.address, CHAT, &[], UNARY)
        .await
        .assert_is(body);
    let line = proxy.access_line(1).await;
    assert_eq!(line["model"], "m", "{line}");
    assert_eq!(line["completion_tokens"], 1, "{line}");
    assert!(line.get("client").is_none(), "{line}");
}

#[tokio::test]
async fn of_other_apis_only_event_streams_name_their_model_and_tokens() {
    let usage = r#"{"model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
    let stream = format!("{}data: {usage}\n\n{DONE}", role("x").replace("tiny", "m"));
    let unary = Script::new().json(200, usage);
    for (script, has_them) in [(stream_of(&stream), true), (unary, false)] {
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &[]).await;
        client::post(proxy.address, "/generate", &[], UNARY).await;
        let line = proxy.access_line(1).await;
        assert_eq!(line["class"], "other", "{line}");
        for (field, value) in [("model", "m".into()), ("completion_tokens", Value::from(1))] {
            let wanted = has_them.then_some(&value);
            assert_eq!(line.get(field), wanted, "{line}");
        }
    }
}

#[tokio::test]
async fn a_request_that_is_rejected_has_an_id_and_a_line_too() {
    let gate = Gate::closed();
    let wait = gate.clone();
    let old = Upstream::start(move |_| Script::new().wait(&wait).json(200, "{}")).await;
    let limits = [
        "--max-requests",
        "1",
        "--max-body-bytes",
        "1000",
        "--body-timeout",
        "200ms",
    ];
    let proxy = Proxy::before(&old, &limits).await;
    let long = "x".repeat(2000);
    let is = |line: &Value, id: &str, status: u16, outcome: &str| {
        assert_eq!(line["request_id"], id, "{line}");
        assert_eq!(line["status"], status, "{line}");
        assert_eq!(line["outcome"], outcome, "{line}");
        assert_eq!(line["client"], "127.0.0.1", "{line}");
        assert_eq!(
            (&line["generation"], &line["reason"]),
            (&"none".into(), &"rejected".into())
        );
        assert!(line["why"].is_string(), "{line}");
    };
    let response = client::post(proxy.address, CHAT, &[(REQUEST_ID, "long")], long).await;
    assert_eq!(
        (response.status, response.header(REQUEST_ID)),
        (413, Some("long"))
    );
    let line = proxy.access_line(1).await;
    is(&line, "long", 413, "completed");
    assert_eq!(line["class"], "chat");
    assert_eq!(
        (&line["method"], &line["path"]),
        (&"POST".into(), &CHAT.into())
    );
    // The body stalls.
    let mut slow = Client::connect(proxy.address).await;
    slow.send("POST /x HTTP/1.1\r\nHost: a\r\nX-Request-Id: slow\r\nContent-Length: 9\r\n\r\n1")
        .await;
    let response = slow.response().await;
    assert_eq!(
        (response.status, response.header(REQUEST_ID)),
        (408, Some("slow"))
    );
    is(&proxy.access_line(2).await, "slow", 408, "completed");
    // The client disconnects in the middle of the body.
    let mut leaves = Client::connect(proxy.address).await;
    leaves
        .send("POST /x HTTP/1.1\r\nHost: a\r\nX-Request-Id: left\r\nContent-Length: 9\r\n\r\n1")
        .await;
    drop(leaves);
    is(&proxy.access_line(3).await, "left", 0, "cancelled");
    let labels = [("cause", "client_gone")];
    let rejected = "crossfade_rejected_requests_total";
    proxy.counts(rejected, &labels, 1.0).await;
    // The head is malformed.
    let mut bad = Client::connect(proxy.address).await;
    bad.send("nonsense\r\n\r\n").await;
    let response = bad.response().await;
    assert_eq!(response.status, 400);
    let line = proxy.access_line(4).await;
    is(
        &line,
        response.header(REQUEST_ID).unwrap(),
        400,
        "completed",
    );
    assert_eq!((&line["method"], &line["path"]), (&"-".into(), &"-".into()));
    // The limit on concurrent requests is reached.
    let first = tokio::spawn(client::post(proxy.address, CHAT, &[], UNARY));
    old.request(1).await;
    let response = client::post(proxy.address, CHAT, &[(REQUEST_ID, "over")], UNARY).await;
    assert_eq!(
        (response.status, response.header(REQUEST_ID)),
        (503, Some("over"))
    );
    is(&proxy.access_line(5).await, "over", 503, "failed");
    gate.open();
    first.await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_before_its_request_is_assigned_is_counted_and_has_a_line() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--affinity-body-field", "user"]).await;
    let mut http1 = Client::connect(proxy.address).await;
    http1
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{{\r\n"
        ))
        .await;
    drop(http1);
    proxy.access_line(1).await;
    let mut http2 = Frames::connect(proxy.address, &[]).await;
    http2.request(1, 0, "POST", CHAT).await;
    http2.send(DATA, 0, 1, b"{").await;
    // A stream that is reset before it is served has no line.
    for _ in 0..2 {
        http2.send(PING, 0, 0, &[0; 8]).await;
        http2.next_of(&[PING]).await;
    }
    http2.reset(1, CANCEL).await;
    for number in [1, 2] {
        let line = proxy.access_line(number).await;
        assert_eq!(line["generation"], "none", "{line}");
        assert_eq!(line["outcome"], "cancelled", "{line}");
        assert_eq!(line["class"], "chat", "{line}");
    }
    let labels = [("cause", "client_gone")];
    let rejected = "crossfade_rejected_requests_total";
    proxy.counts(rejected, &labels, 2.0).await;
    assert_eq!(old.count(), 0);
}
