//! Servers that are asked to continue a stream and fail count as failed attempts of their generation.

use std::sync::Arc;

use super::*;

const FAILED: &str = "crossfade_failed_attempts_total";

#[tokio::test]
async fn each_failed_attempt_to_continue_a_stream_counts_once_by_its_generation_and_cause() {
    let failures: [(How, &str); 12] = [
        (|_| status(503), "unavailable"),
        (|_| status(500), "server_error"),
        (|_| status(429), "no_continuation"),
        (|_| empty_404(), "no_workers"),
        (|_| Script::new().json(200, "{}"), "no_continuation"),
        (|_| Script::new().reset(), "broken"),
        (Script::reset, "broken"),
        (Script::end, "broken"),
        (Script::hang, "deadline"),
        (|script| script.chunk(DONE), "no_continuation"),
        (|script| script.chunk(error_event(503)), "error_event"),
        (|script| script.chunk(error_event(400)), "no_continuation"),
    ];
    for (index, (how, cause)) in failures.into_iter().enumerate() {
        let what = format!("{index}: {cause}");
        let old = Counting::new("old", 20).breaking(5, Script::reset);
        let old = Upstream::start(old.handler()).await;
        let mut new = Counting::new("new", 20);
        new.breaks_again = Some((0, Arc::new(how)));
        let new = Upstream::start(new.handler()).await;
        let lines = ANY.replace("{retry", "{firstEventTimeoutSeconds: 0.4, retry");
        let proxy = Proxy::planned(&old, &mostly_old(&new, &lines), &[]).await;
        proven(&proxy, 2).await;
        let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
        let seen = assert_one(&response, 20, &what);
        assert_eq!(
            seen.comments,
            ["crossfade continued (old → old, connection)"],
            "{what}"
        );
        let line = proxy.access_line(1).await;
        assert_eq!(
            (&line["cause"], &line["attempts"]),
            (&json!(cause), &json!(3)),
            "{what}"
        );
        let metrics = proxy.metrics().await;
        for (labels, count) in [
            (&[("generation", "old"), ("cause", "broken")][..], 1.0),
            (&[("generation", "new"), ("cause", cause)], 1.0),
            (&[], 2.0),
        ] {
            assert_eq!(metrics.sum(FAILED, labels), count, "{what}");
        }
    }
}

#[tokio::test]
async fn a_server_that_reasons_instead_of_continuing_the_text_counts_as_failed() {
    let old = Counting::new("old", 20).breaking(5, Script::reset);
    let old = Upstream::start(old.handler()).await;
    let mut new = Counting::new("new", 20);
    new.thinks = [0, 2];
    let new = Upstream::start(new.handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    proven(&proxy, 2).await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    assert_ended(&response, 5, "reasoning");
    let failed = [("generation", "new"), ("cause", "no_continuation")];
    proxy.counts(FAILED, &failed, 1.0).await;
    proxy.counts(FAILED, &[], 2.0).await;
}

#[tokio::test]
async fn a_failed_probe_does_not_count_as_a_failed_attempt() {
    let gate = Gate::closed();
    let old = Counting::new("old", 20).breaking(5, {
        let gate = gate.clone();
        move |script| script.wait(&gate).reset()
    });
    let old = Upstream::start(old.handler()).await;
    let port = Port::take();
    let new = Upstream::at(port.address, Counting::new("new", 20).handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    proven(&proxy, 2).await;
    let mut client = Client::connect(proxy.address).await;
    client.post(CHAT, &[], asking(json!({}))).await;
    let head = client.head().await;
    drop(new);
    let ignoring = Counting {
        flags: Flags::Ignored,
        ..Counting::new("new", 20)
    };
    let _new = Upstream::at(port.address, ignoring.handler()).await;
    gate.open();
    let response = client.rest(head).await;
    assert_one(&response, 20, "on old");
    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum(FAILED, &[("generation", "new")]), 0.0);
    assert_eq!(metrics.sum(FAILED, &[]), 1.0);
}

#[tokio::test]
async fn a_failed_attempt_to_continue_a_stream_counts_once_against_its_endpoint() {
    let cases: [(How, usize, Option<&str>); 3] = [
        // Ten failures eject an endpoint.
        (|_| status(503), 6, None),
        // A response about the request is none.
        (|_| status(429), 12, None),
        (Script::hang, 5, Some("Unresponsive")),
    ];
    for (how, streams, expected) in cases {
        let old = Counting::new("old", 20).breaking(5, Script::reset);
        let old = Upstream::start(old.handler()).await;
        let mut new = Counting::new("new", 20);
        new.breaks_again = Some((0, Arc::new(how)));
        let new = Upstream::start(new.handler()).await;
        let lines = ANY.replace("{retry", "{firstEventTimeoutSeconds: 0.3, retry");
        let proxy = Proxy::planned(&old, &mostly_old(&new, &lines), &[]).await;
        for stream in 0..streams {
            // A server that breaks a stream has to prove again that it continues one.
            proven(&proxy, 2).await;
            let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
            assert_one(&response, 20, &format!("{expected:?} {stream}"));
        }
        proxy
            .counts(FAILED, &[("generation", "new")], streams as f64)
            .await;
        let ejected = |line: &String| line.contains("endpoint ejected");
        let ejected: Vec<_> = proxy.lines().into_iter().filter(ejected).collect();
        match expected {
            None => assert_eq!(ejected, [""; 0]),
            Some(reason) => {
                assert_eq!(ejected.len(), 1, "{ejected:?}");
                assert!(ejected[0].contains(reason), "{ejected:?}");
            }
        }
    }
}
