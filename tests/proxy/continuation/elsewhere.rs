//! Where streams are continued besides the frontends of their own pool, and what limits that.

use super::*;

#[tokio::test]
async fn other_old_pods_continue_a_stream_before_the_other_generation() {
    for mode in [SAME, ANY] {
        let old = Counting::new("old", 20).breaking(5, Script::reset);
        let old = Upstream::start(old.handler()).await;
        let peers = Upstream::start(Counting::new("peers", 20).handler()).await;
        let new = Upstream::start(Counting::new("new", 20).handler()).await;
        let flags = ["--old-peers", &peers.url()];
        let proxy = Proxy::planned(&old, &mostly_old(&new, mode), &flags).await;
        proven(&proxy, 3).await;
        for path in [CHAT, COMPLETIONS] {
            let body = match path {
                CHAT => asking(json!({})),
                _ => prompting(),
            };
            let response = client::post(proxy.address, path, &[], body).await;
            let seen = assert_one(&response, 20, mode);
            assert_eq!(
                seen.comments,
                ["crossfade continued (old → old, connection)"]
            );
        }
        assert_eq!(
            (
                request_count(&old),
                request_count(&peers),
                request_count(&new)
            ),
            (2, 2, 0)
        );
    }
}

/// A server that answers only requests for this model.
fn serving_only(
    model: &'static str,
    server: Counting,
) -> impl Fn(&Received) -> Script + Send + Sync {
    let server = std::sync::Arc::new(server.handler());
    move |received| {
        if received.target == MODELS {
            return models(&[model]);
        }
        let server = std::sync::Arc::clone(&server);
        Script::by_body(move |received| {
            let body: Value = serde_json::from_slice(&received.body()).unwrap_or_default();
            match body["model"] == model {
                true => server(received),
                false => model_not_found(),
            }
        })
    }
}

#[tokio::test]
async fn the_other_generation_continues_a_stream_only_if_it_serves_its_model_by_the_same_name() {
    for path in [CHAT, COMPLETIONS] {
        let body = match path {
            CHAT => asking(json!({})),
            _ => prompting(),
        };
        for (model, by) in [("tiny", "new"), ("other", "old")] {
            let old = Counting::new("old", 20).breaking(5, Script::reset);
            let old = Upstream::start(old.handler()).await;
            let new = Upstream::start(serving_only(model, Counting::new("new", 20))).await;
            let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
            let labels = [("generation", "new"), ("state", "supported")];
            let known = f64::from(u8::from(model == "tiny"));
            if known > 0.0 {
                proxy
                    .counts("crossfade_continuation_capability", &labels, known)
                    .await;
            }
            let response = client::post(proxy.address, path, &[], &body).await;
            let seen = assert_one(&response, 20, model);
            let comment = format!("crossfade continued (old → {by}, connection)");
            assert_eq!(seen.comments, [comment], "{path} {model}");
        }
    }
}

#[tokio::test]
async fn a_text_that_the_memory_budget_has_no_room_for_is_not_kept() {
    // No reset, which could overtake a part of the text.
    let old = Counting::new("old", 6000).breaking(5000, Script::eof);
    let old = Upstream::start(old.handler()).await;
    let new = Upstream::start(Counting::new("new", 6000).handler()).await;
    for (budget, reason) in [("16384", Some("no_memory")), ("8388608", None)] {
        let flags = ["--replay-budget-bytes", budget];
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &flags).await;
        let labels = [("generation", "new"), ("state", "supported")];
        proxy
            .counts("crossfade_continuation_capability", &labels, 1.0)
            .await;
        let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
        match reason {
            Some(reason) => {
                assert_ended(&response, 5000, reason);
                assert_counted(&proxy, "ended", reason).await;
                assert_eq!(proxy.access_line(1).await["not_continued"], reason);
            }
            None => {
                assert_one(&response, 6000, "enough memory");
            }
        }
        let used = [("kind", "used")];
        proxy.counts("crossfade_memory_bytes", &used, 0.0).await;
    }
}

/// The time without a server belongs to neither generation.
#[tokio::test]
async fn the_gap_at_the_join_counts_for_no_generation() {
    const GAPS: &str = "crossfade_inter_event_seconds";
    let old = Counting::new("old", 20).breaking(5, Script::hang);
    let old = Upstream::start(old.handler()).await;
    let new = Upstream::start(Counting::new("new", 20).handler()).await;
    let lines = ANY.replace("{retry", "{gapTimeoutSeconds: 0.4, retry");
    let proxy = Proxy::planned(&old, &mostly_old(&new, &lines), &[]).await;
    proven(&proxy, 2).await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    assert_one(&response, 20, "a gap");
    let metrics = proxy.metrics().await;
    let count = |name: &str| metrics.sum(&format!("{name}_count"), &[]);
    let sum = |name: &str| metrics.sum(&format!("{name}_sum"), &[]);
    assert_eq!(count("crossfade_continuation_gap_seconds"), 1.0);
    assert!(sum("crossfade_continuation_gap_seconds") < 0.4);
    let line = proxy.access_line(1).await;
    // Every event with content but the first one of each part follows another one of the same server.
    let events = line["events"].as_f64().unwrap();
    assert_eq!(count(GAPS), events - 2.0, "{line}");
    assert!(sum(GAPS) < 0.4, "{}", sum(GAPS));
}
