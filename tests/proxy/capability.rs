//! The proxy probes in advance whether an endpoint can continue a text. Only the expected rejection proves it.

use std::sync::Arc;

use crate::rig::*;

const PROBE: &str = "x-crossfade-probe";
const CAPABILITY: &str = "crossfade_continuation_capability";
const ON: [&str; 2] = ["--continuation", "same-generation"];
const TINY: &str = r#"{"object":"list","data":[{"id":"tiny"}]}"#;

/// The response of a server that can continue texts.
fn proof() -> Script {
    let both =
        "Validation: Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
    Script::new().json(
        400,
        &format!(r#"{{"message":"{both}","type":"Bad Request","code":400}}"#),
    )
}

/// A server that lists `models`, responds to the proxy's probe with `answer`, and serves all other requests.
fn server(
    models: impl Into<String>,
    answer: Script,
) -> impl Fn(&Received) -> Script + Send + Sync + 'static {
    let (models, serve) = (models.into(), healthy("old"));
    move |request| {
        if request.target == MODELS {
            Script::new().json(200, &models)
        } else if request.header(PROBE).is_some() {
            answer.clone()
        } else {
            serve(request)
        }
    }
}

/// The probes that a server received from the proxy.
fn questions(server: &Upstream) -> Vec<Arc<Received>> {
    let mut questions = server.requests();
    questions.retain(|request| request.header(PROBE).is_some() && request.method == "POST");
    questions
}

/// The endpoint at `address` on `/plan`.
async fn shown(proxy: &Proxy, address: &str) -> serde_json::Value {
    let plan: serde_json::Value = serde_json::from_str(&proxy.plan().await).unwrap();
    let endpoints = plan["endpoints"].as_array().unwrap();
    let endpoint = endpoints
        .iter()
        .find(|endpoint| endpoint["address"] == address)
        .unwrap();
    endpoint["continuation"].clone()
}

#[tokio::test]
async fn only_the_rejection_of_both_fields_is_proof() {
    let unknown_fields = r#"{"message":"Unsupported parameter(s): `continue_final_message`, `add_generation_prompt`"}"#;
    let mut servers = Vec::new();
    for (answer, state) in [
        (proof(), "supported"),
        (Script::new().json(400, unknown_fields), "unsupported"),
        // The server ignores the fields.
        (healthy_reply(), "unsupported"),
        (Script::new().sse().events(&chat_text("old")), "unsupported"),
        (Script::new().json(503, "{}"), "unknown"),
        (Script::new().reset(), "unknown"),
        (Script::new().hang(), "unknown"),
        // The server switches protocols without being asked.
        (
            Script::new().head(101, &[]).chunk("what follows"),
            "unknown",
        ),
    ] {
        servers.push((Upstream::start(server(TINY, answer)).await, state));
    }
    let old: Vec<_> = servers.iter().map(|(server, _)| server.url()).collect();
    let old = old.join(",");
    let mut args = vec!["--old", &old, "--new", "127.0.0.1:9", "--split", "0"];
    args.extend(ON);
    let proxy = Proxy::start(&args).await;
    for (state, count) in [("supported", 1.0), ("unsupported", 3.0), ("unknown", 4.0)] {
        let labels = [("generation", "old"), ("state", state)];
        proxy.counts(CAPABILITY, &labels, count).await;
    }
    for (server, state) in &servers {
        let shown = shown(&proxy, &server.url()).await;
        assert_eq!(shown, serde_json::json!({ "tiny": state }));
        let question = questions(server).remove(0);
        assert_eq!(question.target, CHAT);
        assert!(question.header("x-crossfade-guard").is_some());
        let body: serde_json::Value = serde_json::from_slice(&question.body()).unwrap();
        assert_eq!(
            (&body["model"], &body["max_tokens"]),
            (&"tiny".into(), &1.into())
        );
        let both = ["continue_final_message", "add_generation_prompt"];
        assert!(both.iter().all(|field| body[field] == true), "{body}");
    }
    // Probes are not counted as requests of clients.
    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum("crossfade_requests_total", &[]), 0.0);
    assert!(proxy.access().is_empty());
}

/// A complete response, as from a server that ignores unknown fields.
fn healthy_reply() -> Script {
    Script::new().json(
        200,
        r#"{"id":"x","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"length"}]}"#,
    )
}

#[tokio::test]
async fn servers_are_not_probed_until_a_plan_enables_continuation() {
    let old = Upstream::start(server(TINY, proof())).await;
    let plan = PlanFile::new(&manifest("127.0.0.1:9", 1, 0, ""));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
    assert_eq!(old.count(), 1);
    assert_eq!(shown(&proxy, &old.url()).await, serde_json::Value::Null);
    let on = "failover: {continuation: {mode: AnyGeneration}}";
    plan.write(&manifest("127.0.0.1:9", 1, 0, on));
    let supported = [("generation", "old"), ("state", "supported")];
    proxy.counts(CAPABILITY, &supported, 1.0).await;
    plan.write(&manifest("127.0.0.1:9", 1, 0, ""));
    proxy.counts(CAPABILITY, &[], 0.0).await;
}

#[tokio::test]
async fn a_server_that_comes_back_is_probed_again() {
    let port = Port::take();
    let old = Upstream::at(port.address, server(TINY, proof())).await;
    let proxy = Proxy::before(&old, &ON).await;
    let labels = |state| [("generation", "old"), ("state", state)];
    proxy.counts(CAPABILITY, &labels("supported"), 1.0).await;
    drop(old);
    eventually("the proof no longer counts", async || {
        assert_ne!(proxy.chat().await.status, 200);
        let metrics = proxy.metrics().await;
        metrics.sum(CAPABILITY, &labels("unknown")) == 1.0
    })
    .await;
    let _other = Upstream::at(port.address, server(TINY, healthy_reply())).await;
    proxy.counts(CAPABILITY, &labels("unsupported"), 1.0).await;
}

#[tokio::test]
async fn the_probes_for_a_long_list_of_models_are_bounded() {
    let models: Vec<_> = (0..500)
        .map(|number| serde_json::json!({"id": format!("m{number}")}))
        .collect();
    let models = serde_json::json!({"object": "list", "data": models}).to_string();
    let old = Upstream::start(server(models, proof())).await;
    let proxy = Proxy::before(&old, &ON).await;
    let supported = [("generation", "old"), ("state", "supported")];
    proxy.counts(CAPABILITY, &supported, 64.0).await;
    assert_eq!(questions(&old).len(), 64);
}

#[tokio::test]
async fn another_proxy_responds_to_a_probe_itself_and_does_not_count_it_as_a_request() {
    let (own, other) = (
        Upstream::start(server(TINY, proof())).await,
        Upstream::start(server(TINY, proof())).await,
    );
    let new = Upstream::start(healthy("new")).await;
    let key = ["--guard-key", "secret"];
    let sibling = Proxy::split_with(&other, &new, 100, &key).await;
    let peers = sibling.address.to_string();
    let more = [&key[..], &ON, &["--old-peers", &peers]].concat();
    let proxy = Proxy::split_with(&own, &new, 100, &more).await;
    let supported = [("generation", "old"), ("state", "supported")];
    proxy.counts(CAPABILITY, &supported, 2.0).await;
    assert_eq!(questions(&other).len(), 1);
    assert!(sibling.access().is_empty());
    // A client that forges a probe is counted.
    let mut client = Client::connect(sibling.address).await;
    let headers = [(PROBE, "1"), ("content-type", "application/json")];
    client.post(CHAT, &headers, STREAMING).await;
    assert_eq!(client.response().await.status, 200);
    let line = sibling.access_line(1).await;
    assert_eq!(line["generation"], "new");
    sibling.counts("crossfade_requests_total", &[], 1.0).await;
}
