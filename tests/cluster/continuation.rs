//! The pod of a frontend is deleted while it streams, and the other generation continues the streams.

use crate::fixture::{Fixture, UPDATE};
use crate::pair::PROTOCOLS;
use crate::rig::{self, Family};
use crate::streams::Streams;

const STREAMS: usize = 200;
const WORDS: usize = 60;

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_frontends_pod_that_is_deleted_cuts_no_stream() {
    let fixture = Fixture::ready().await;
    fixture.update(99).await;
    let patch = r#"{"spec":{"failover":{"continuation":{"mode":"AnyGeneration"}}}}"#;
    let args = ["patch", "duc", UPDATE, "--type=merge", "-p", patch];
    fixture.cluster.kubectl(&args);
    fixture
        .until_all("the proof of every endpoint", |plan| {
            let endpoints = plan["endpoints"].as_array();
            endpoints.is_some_and(|all| {
                all.len() >= 2
                    && all
                        .iter()
                        .all(|one| one["continuation"]["tiny"] == "supported")
            })
        })
        .await;
    let prompt = format!("<<counted=1 words={WORDS} each_ms=300>>");
    let mut open = Vec::new();
    for family in [Family::Chat, Family::Completions] {
        for protocol in PROTOCOLS {
            let kind = (family, protocol == "http2");
            let streams = Streams::raw(fixture.address, STREAMS / 4, kind, &prompt, "w:0");
            open.push(streams.await);
        }
    }
    let pods = fixture.cluster.get(&["pods", "-l", "app=new-frontend"]);
    let pods = pods["items"].as_array().expect("a list").iter();
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        // Without a grace period, as if its node had failed.
        let delete = ["delete", "pod", name, "--force", "--grace-period=0"];
        fixture.cluster.kubectl(&delete);
    }
    let words: Vec<_> = (0..WORDS).map(|index| format!("w:{index}")).collect();
    let expected = words.join(" ");
    for streams in open {
        for answer in streams.answers().await {
            assert_eq!(answer.text, expected, "{answer:?}");
            assert!(answer.is_whole && answer.ids.len() == 1, "{answer:?}");
        }
    }
    let mut continued = 0.0;
    for admin in fixture.sidecars() {
        let metrics = rig::client::get(admin, "/metrics").await.text();
        let metrics = rig::proxy::Metrics::parse(&metrics);
        let count = |outcome| metrics.sum("crossfade_continuations_total", &[("outcome", outcome)]);
        assert_eq!(count("ended"), 0.0);
        continued += count("continued");
    }
    println!("{continued} of {STREAMS} streams were continued");
    assert!(continued >= STREAMS as f64 * 0.9, "{continued}");
    fixture.rolled_out("new-frontend");
    fixture.with_model("new").await;
}
