//! Access lines: one schema for text and JSON, the request id that client, proxy and model server share, the model and the address
//! of the model server.

use serde_json::Value;

use crate::rig::*;

const REQUEST_ID: &str = "x-request-id";

/// A request id as Dynamo, OpenAI and others make them.
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
    // As in all other lines.
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
async fn the_proxys_own_answers_have_the_id_too_and_a_servers_own_is_kept() {
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
async fn a_unary_answer_names_its_model_and_addresses_of_clients_can_be_left_out() {
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
