//! Streams continue on the other generation: because the pod of their frontend is deleted, or because the plan moves them off
//! old.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::fixture::{Fixture, UPDATE};
use crate::pair::PROTOCOLS;
use crate::rig::{self, Family};
use crate::rollout::Rollout;
use crate::streams::{Answer, Streams};

const STREAMS: usize = 200;
const WORDS: usize = 60;
const FAMILIES: [Family; 2] = [Family::Chat, Family::Completions];

/// A stream that lasts until the last one has begun, and much longer.
fn prompt(words: usize) -> String {
    format!("<<counted=1 words={words} each_ms=300>>")
}

/// Opens `count` streams of each kind: the official client's, and those over HTTP/1.1 and HTTP/2, in both families.
async fn open(fixture: &Fixture, [of_library, raw]: [usize; 2], prompt: &str) -> Vec<Streams> {
    let address = fixture.address;
    let of_library =
        |family: Family| Streams::of_library(address, of_library, family.class(), prompt);
    let raw = |family, is_h2| Streams::raw(address, raw, (family, is_h2), prompt, "w:0");
    let [chat, completions] = FAMILIES;
    let (a, b, c, d, e, f) = tokio::join!(
        of_library(chat),
        of_library(completions),
        raw(chat, false),
        raw(completions, false),
        raw(chat, true),
        raw(completions, true),
    );
    vec![a, b, c, d, e, f]
}

async fn answers(open: Vec<Streams>) -> Vec<Answer> {
    let mut all = Vec::new();
    for streams in open {
        all.extend(streams.answers().await);
    }
    all
}

/// Asserts that every stream is one complete response, with the token counts of one that nothing breaks.
async fn assert_complete(fixture: &Fixture, open: Vec<Streams>, words: usize) {
    let prompt = prompt(words);
    let unbroken = async {
        let mut open = Vec::new();
        for family in FAMILIES {
            open.push(Streams::raw(fixture.address, 1, (family, false), &prompt, "w:0").await);
        }
        let answers = answers(open).await.into_iter();
        let usage: BTreeMap<_, _> = answers.map(|answer| (answer.class, answer.usage)).collect();
        usage
    };
    let (answers, unbroken) = tokio::join!(answers(open), unbroken);
    let words: Vec<_> = (0..words).map(|index| format!("w:{index}")).collect();
    let expected = words.join(" ");
    for answer in answers {
        assert_eq!(answer.text, expected, "{answer:?}");
        assert!(answer.is_whole && answer.ids.len() == 1, "{answer:?}");
        assert_eq!(answer.finish.as_deref(), Some("stop"), "{answer:?}");
        assert!(answer.usage[0].as_u64() > Some(0), "{answer:?}");
        assert_eq!(answer.usage, unbroken[answer.class], "{answer:?}");
    }
}

/// The number of streams that all sidecars have continued. Asserts that none has ended because no server could continue it.
async fn continued(fixture: &Fixture) -> f64 {
    let mut continued = 0.0;
    for admin in fixture.sidecars() {
        let metrics = rig::client::get(admin, "/metrics").await.text();
        let metrics = rig::proxy::Metrics::parse(&metrics);
        let count = |outcome| metrics.sum("crossfade_continuations_total", &[("outcome", outcome)]);
        assert_eq!(count("ended"), 0.0);
        continued += count("continued");
    }
    continued
}

/// Waits until all frontends of both generations have proven that they continue a chat.
async fn proven(fixture: &Fixture) {
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
}

/// Sets the version of HTTP that the sidecar uses for model servers, or unsets it.
async fn set_protocol(fixture: &Fixture, protocol: Option<&str>) {
    let mut variable = json!({"name": "CROSSFADE_UPSTREAM_PROTOCOL"});
    match protocol {
        Some(protocol) => variable["value"] = protocol.into(),
        None => variable["$patch"] = "delete".into(),
    }
    let container = json!({"name": "crossfade", "env": [variable]});
    let template = json!({"spec": {"initContainers": [container]}});
    let patch = json!({"spec": {"template": template}}).to_string();
    let args = ["patch", "deployment", "old-frontend", "-p", &patch];
    fixture.cluster.kubectl(&args);
    fixture.rolled_out("old-frontend");
    fixture.settled().await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_frontends_pod_that_is_deleted_cuts_no_stream() {
    let fixture = Fixture::ready().await;
    fixture.update(99).await;
    let patch = r#"{"spec":{"failover":{"continuation":{"mode":"AnyGeneration"}}}}"#;
    let args = ["patch", "duc", UPDATE, "--type=merge", "-p", patch];
    fixture.cluster.kubectl(&args);
    for protocol in PROTOCOLS {
        set_protocol(&fixture, Some(protocol)).await;
        fixture.in_force(99).await;
        proven(&fixture).await;
        let open = open(&fixture, [STREAMS / 5, STREAMS * 3 / 20], &prompt(WORDS)).await;
        let pods = fixture.cluster.get(&["pods", "-l", "app=new-frontend"]);
        let pods = pods["items"].as_array().expect("a list").iter();
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().expect("a name");
            // Without a grace period, as if its node had failed.
            let delete = ["delete", "pod", name, "--force", "--grace-period=0"];
            fixture.cluster.kubectl(&delete);
        }
        assert_complete(&fixture, open, WORDS).await;
        let continued = continued(&fixture).await;
        println!("{protocol}: {continued} of {STREAMS} streams were continued");
        assert!(continued >= STREAMS as f64 * 0.9, "{continued}");
        fixture.rolled_out("new-frontend");
        fixture.with_model("new").await;
    }
    set_protocol(&fixture, None).await;
}

/// Old drains although its workers could complete the streams, which would take most of a minute.
#[tokio::test]
#[ignore = "in a cluster"]
async fn streams_that_move_off_old_are_shown_in_the_status_until_old_is_empty() {
    const OPEN: usize = 30;
    const WORDS: usize = 150;
    let moves = json!({
        "paused": true,
        "failover": {"continuation": {"mode": "AnyGeneration"}},
        "drain": {"moveAfterSeconds": 0, "moveRate": 3},
    });
    let rollout = Rollout::start([1, 1], moves).await;
    let fixture = &rollout.fixture;
    fixture.in_force(0).await;
    proven(fixture).await;
    let open = open(fixture, [OPEN / 6; 2], &prompt(WORDS)).await;
    rollout.edit(&json!({"paused": null, "drainOld": true}));
    let progressing = |update: &Value| {
        let conditions = update["status"]["conditions"].as_array().cloned();
        let mut conditions = conditions.unwrap_or_default().into_iter();
        conditions.find(|condition| condition["type"] == "Progressing")
    };
    let moving = rollout
        .until(UPDATE, "streams are shown as moving", |update| {
            let count = update["status"]["old"]["movingStreams"].as_u64();
            let reason = progressing(update).map(|condition| condition["reason"].clone());
            count > Some(0) && reason == Some("Moving".into())
        })
        .await;
    let status = &moving["status"];
    assert_eq!(status["phase"], "Draining", "{status}");
    let count = status["old"]["movingStreams"].as_u64();
    assert!(count <= Some(OPEN as u64), "{status}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("on old to move to new"), "{message}");
    // Long before the answers of old's workers end.
    let complete = rollout
        .until(UPDATE, "the update is complete", |update| {
            update["status"]["phase"] == "Complete"
        })
        .await;
    assert_eq!(
        complete["status"]["old"]["movingStreams"],
        Value::Null,
        "{complete}"
    );
    let metrics = rig::client::get(fixture.sidecars()[0], "/metrics")
        .await
        .text();
    let metrics = rig::proxy::Metrics::parse(&metrics);
    let on = |generation| metrics.sum("crossfade_open_streams", &[("generation", generation)]);
    assert_eq!((on("old"), on("new")), (0.0, OPEN as f64));
    assert_complete(fixture, open, WORDS).await;
    assert_eq!(continued(fixture).await, OPEN as f64);
}
