//! Responses pass through the proxy byte for byte. Only IDs and times differ from request to request.

use crate::dynamo::MODEL;
use crate::pair::{GENERATION, PROTOCOLS, Pair, RequestKind, normal};
use crate::rig::{self, End, Family, Response, client::http2};

const PROMPT: &str = "Say much. <<words=120>>";

/// The fields of a response head that do not depend on the connection or the time.
fn fields(response: &Response) -> Vec<(String, String)> {
    let apart = [
        "date",
        "transfer-encoding",
        "content-length",
        "x-crossfade-generation",
    ];
    let mut fields = response.headers.0.clone();
    fields.retain(|(name, _)| !apart.contains(&name.as_str()));
    fields
}

/// The fields of a response through the proxy, without the request ID that the proxy generates: Dynamo returns a request ID only
/// if the client sent one.
fn fields_through(through: &Response, direct: &Response) -> Vec<(String, String)> {
    let mut fields = fields(through);
    let id = "x-request-id";
    if direct.header(id).is_none() {
        assert!(through.header(id).is_some_and(|id| id.len() == 36));
        fields.retain(|(name, _)| name != id);
    }
    fields
}

fn assert_same(through: &Response, direct: &Response, what: &str) {
    assert_eq!(
        (through.status, through.end),
        (direct.status, End::Clean),
        "{what}"
    );
    assert_eq!(normal(&through.text()), normal(&direct.text()), "{what}");
    assert_eq!(fields_through(through, direct), fields(direct), "{what}");
}

#[tokio::test]
async fn each_family_passes_byte_for_byte_over_either_protocol() {
    let pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let request_id = ("x-request-id", "request-7");
    for kind in RequestKind::all() {
        let (path, body) = (kind.family.path(), kind.body(PROMPT));
        let direct = rig::client::post(pair.old.address(), path, &[request_id], &body).await;
        kind.assert_text(&direct, &pair.old, 120);
        assert_eq!(direct.header("x-request-id"), Some("request-7"));
        for (proxy, protocol) in proxies.iter().zip(PROTOCOLS) {
            let headers = [(GENERATION, "old"), request_id];
            let through = rig::client::post(proxy.address, path, &headers, &body).await;
            assert_same(&through, &direct, &format!("{kind:?} over {protocol}"));
        }
    }
    for proxy in &proxies {
        proxy.outcomes("completed", 8).await;
        let metrics = proxy.metrics().await;
        for family in Family::ALL {
            let labels = [
                ("class", family.class()),
                ("outcome", "completed"),
                ("generation", "old"),
            ];
            assert_eq!(
                metrics.sum("crossfade_requests_total", &labels),
                2.0,
                "{family:?}"
            );
        }
        assert_eq!(metrics.sum("crossfade_recovered_requests_total", &[]), 0.0);
    }
}

#[tokio::test]
async fn the_tokens_of_streams_and_of_unary_responses_are_counted_over_either_protocol() {
    let pair = Pair::start().await;
    for (proxy, protocol) in pair.proxies().await.iter().zip(PROTOCOLS) {
        let mut tokens = 0.0;
        for kind in RequestKind::all() {
            let mut body = kind.body_for(MODEL, PROMPT);
            if kind.family != Family::Responses {
                body["max_tokens"] = 7.into();
            } else {
                body["max_output_tokens"] = 7.into();
            }
            if kind.stream && matches!(kind.family, Family::Chat | Family::Completions) {
                body["stream_options"] = serde_json::json!({"include_usage": true});
            }
            let (path, body) = (kind.family.path(), body.to_string());
            let direct = rig::client::post(pair.new.address(), path, &[], &body).await;
            let usage = [r#""completion_tokens":7"#, r#""output_tokens":7"#];
            let text = direct.text();
            assert!(usage.iter().any(|usage| text.contains(usage)), "{text}");
            let through =
                rig::client::post(proxy.address, path, &[(GENERATION, "new")], &body).await;
            let what = format!("{kind:?} over {protocol}");
            assert_same(&through, &direct, &what);
            let before = tokens;
            tokens += 7.0;
            proxy.outcomes("completed", (tokens / 7.0) as u32).await;
            let labels = [("generation", "new"), ("kind", "completion")];
            let counted = proxy.metrics().await.sum("crossfade_tokens_total", &labels);
            assert_eq!(counted - before, 7.0, "tokens of {what}");
        }
    }
}

#[tokio::test]
async fn many_http2_streams_of_one_client_pass_over_either_protocol() {
    const STREAMS: usize = 24;
    let pair = Pair::start().await;
    for proxy in pair.proxies().await {
        let client = http2::Client::connect(proxy.address).await;
        for kind in RequestKind::all() {
            let (path, body) = (kind.family.path(), kind.body("<<words=20 each_ms=1>>"));
            let direct = rig::client::post(pair.new.address(), path, &[], &body).await;
            let through = client
                .post(path, &[(GENERATION, "new")], &body)
                .await
                .response()
                .await;
            assert_same(&through, &direct, &format!("{kind:?}"));
        }
        let mut open = Vec::new();
        for (index, kind) in RequestKind::streams().cycle().take(STREAMS).enumerate() {
            let (generation, stack) = [("old", &pair.old), ("new", &pair.new)][index % 2];
            let body = kind.body("<<words=30 each_ms=3>>");
            open.push((
                kind,
                stack,
                client
                    .post(kind.family.path(), &[(GENERATION, generation)], body)
                    .await,
            ));
        }
        for (kind, stack, stream) in open {
            kind.assert_text(&stream.response().await, stack, 30);
        }
        proxy.outcomes("completed", 8 + STREAMS as u32).await;
    }
}
