//! Dynamo's client errors are forwarded unchanged and not retried.

use crate::dynamo::Options;
use crate::pair::{GENERATION, Pair, RequestKind, access};
use crate::rig::{self, Client, End, Family};

const CHAT: RequestKind = RequestKind {
    family: Family::Chat,
    stream: true,
};

#[tokio::test]
async fn dynamos_rejection_of_an_invalid_request_is_forwarded_and_not_retried() {
    let pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let wrong = [
        (rig::CHAT, r#"{"model":"tiny","messages":["#),
        (rig::CHAT, r#"{"model":"tiny"}"#),
        (rig::CHAT, r#"{"model":"tiny","messages":[],"stream":true}"#),
        (rig::COMPLETIONS, r#"{"model":"tiny","prompt":"a","zzz":1}"#),
        (rig::COMPLETIONS, ""),
        (rig::RESPONSES, "[]"),
        (rig::MESSAGES, r#"{"model":"tiny"}"#),
    ];
    for (path, body) in wrong {
        for generation in ["old", "new"] {
            let stack = if generation == "old" {
                &pair.old
            } else {
                &pair.new
            };
            let direct = rig::client::post(stack.address(), path, &[], body).await;
            assert_eq!(direct.status / 100, 4, "{path} {body}: {}", direct.text());
            for proxy in &proxies {
                let through =
                    rig::client::post(proxy.address, path, &[(GENERATION, generation)], body).await;
                assert_eq!(
                    (through.status, through.end),
                    (direct.status, End::Clean),
                    "{path} {body}"
                );
                assert_eq!(through.text(), direct.text(), "{path} {body}");
                assert_eq!(
                    through.header("content-type"),
                    direct.header("content-type")
                );
                assert_eq!(through.generation(), generation);
            }
        }
    }
    for proxy in &proxies {
        let lines = access(proxy, 2 * wrong.len(), &["attempts", "outcome", "cause"]).await;
        assert_eq!(lines, vec!["1 completed null"; 2 * wrong.len()]);
        assert_eq!(proxy.recovered(&[]).await, 0.0);
    }
    assert!(
        pair.old.events().is_empty() && pair.new.events().is_empty(),
        "no worker was asked"
    );
}

#[tokio::test]
async fn a_request_that_the_engine_rejects_is_not_retried() {
    let pair = Pair::start().await;
    let proxy = pair.proxy(50, &[]).await;
    for kind in RequestKind::all() {
        let prompt = "<<words=5>> <<for=new tag=wrong http_error=422>>";
        let direct = kind.response(pair.new.address(), "new", prompt).await;
        let through = kind.response(proxy.address, "new", prompt).await;
        assert_eq!(
            (through.status, through.end),
            (direct.status, direct.end),
            "{kind:?}"
        );
        let normal = crate::pair::normal;
        assert_eq!(normal(&through.text()), normal(&direct.text()), "{kind:?}");
        let text = direct.text();
        assert!(
            text.contains("\"error\":{") || direct.status == 400,
            "{kind:?}: {text}"
        );
    }
    access(&proxy, 8, &[]).await;
    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum("crossfade_recovered_requests_total", &[]), 0.0);
    assert_eq!(
        metrics.sum("crossfade_requests_total", &[("outcome", "failed")]),
        4.0
    );
    assert!(pair.old.events().is_empty(), "{:?}", pair.old.events());
}

#[tokio::test]
async fn dynamos_413_reaches_a_client_that_is_still_uploading() {
    const LIMIT: usize = 1024 * 1024;
    const SENT: usize = 2 * LIMIT;
    const CLAIMED: usize = 32 * LIMIT;
    let small = Options {
        env: vec![("DYN_HTTP_BODY_LIMIT_MB".to_owned(), "1".to_owned())],
        ..Options::default()
    };
    let pair = Pair::start_with(small, Options::default()).await;
    let proxies = pair.proxies().await;
    let head = |framing: &str| {
        format!(
            "POST {} HTTP/1.1\r\nhost: a\r\n{GENERATION}: old\r\ncontent-type: application/json\r\n{framing}\r\n\r\n",
            rig::CHAT
        )
    };
    let framings = [
        format!("content-length: {CLAIMED}"),
        "transfer-encoding: chunked".to_owned(),
    ];
    for framing in &framings {
        let size = if framing.starts_with('t') {
            format!("{CLAIMED:x}\r\n")
        } else {
            String::new()
        };
        let begin = head(framing) + &size + &" ".repeat(SENT);
        let mut answers = Vec::new();
        for address in [pair.old.address(), proxies[0].address, proxies[1].address] {
            let mut client = Client::connect(address).await;
            client.send(&begin).await;
            let answer = client.response().await;
            assert_eq!(answer.status, 413, "{framing}: {}", answer.text());
            answers.push(answer.text());
        }
        assert!(
            answers[0].contains("DYN_HTTP_BODY_LIMIT_MB"),
            "{}",
            answers[0]
        );
        assert!(
            answers.iter().all(|answer| *answer == answers[0]),
            "{answers:#?}"
        );
    }
    for proxy in &proxies {
        let lines = access(proxy, 2, &["answered", "attempts", "status"]).await;
        assert_eq!(lines, ["old 1 413"; 2]);
        CHAT.assert_text(
            &CHAT.response(proxy.address, "old", "").await,
            &pair.old,
            10,
        );
        // The proxy itself has no lower limit: the other generation accepts the body.
        let body = CHAT.body("<<words=3>>") + &" ".repeat(SENT);
        let response =
            rig::client::post(proxy.address, rig::CHAT, &[(GENERATION, "new")], body).await;
        CHAT.assert_text(&response, &pair.new, 3);
    }
    let events = pair.new.events();
    assert_eq!(
        events
            .iter()
            .filter(|line| line.starts_with("started"))
            .count(),
        2,
        "{events:?}"
    );
}
