//! The share of each generation, the models of both, and an official client library that is unaware of the split.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;
use tokio::task::JoinSet;

use crate::dynamo::{Dynamo, MODEL, Options};
use crate::pair::{Pair, RequestKind};
use crate::rig::{self, Client, End, Family};

const KINDS: [RequestKind; 2] = [
    RequestKind {
        family: Family::Chat,
        stream: true,
    },
    RequestKind {
        family: Family::Completions,
        stream: false,
    },
];

#[tokio::test]
async fn at_25_percent_new_serves_a_quarter_of_the_requests() {
    const CLIENTS: usize = 8;
    const EACH: usize = 10;
    let pair = Pair::start().await;
    let proxy = pair.proxy(25, &[]).await;
    let (address, texts) = (proxy.address, [pair.old.text(4), pair.new.text(4)]);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let texts = texts.clone();
        clients.spawn(async move {
            let mut client = Client::connect(address).await;
            let mut counts = [0, 0];
            for kind in KINDS.into_iter().cycle().take(EACH) {
                kind.send(&mut client, &[], "<<words=4 each_ms=2>>").await;
                let response = client.response().await;
                assert_eq!((response.status, response.end), (200, End::Clean));
                let answer = kind.text(&response);
                let generation = texts.iter().position(|text| *text == answer);
                let generation =
                    generation.unwrap_or_else(|| panic!("unexpected answer {answer:?}"));
                assert_eq!(response.generation(), ["old", "new"][generation]);
                counts[generation] += 1;
            }
            counts
        });
    }
    let counts = clients.join_all().await;
    let [old, new] =
        [0, 1].map(|generation| counts.iter().map(|counts| counts[generation]).sum::<u32>());
    assert_eq!(old + new, (CLIENTS * EACH) as u32);
    assert!((19..=21).contains(&new), "{new} of {}", old + new);
    proxy.outcomes("completed", old + new).await;
    let metrics = proxy.metrics().await;
    for (generation, count) in [("old", old), ("new", new)] {
        let labels = [("generation", generation), ("reason", "weighted")];
        assert_eq!(
            metrics.sum("crossfade_requests_total", &labels),
            f64::from(count)
        );
    }
    let observed = metrics.sum("crossfade_split_ratio", &[("kind", "observed")]);
    let expected = f64::from(new) / f64::from(old + new);
    assert!(
        (observed - expected).abs() < 0.001,
        "{observed}, not {expected}"
    );
}

#[tokio::test]
async fn the_models_of_both_generations_are_listed_and_each_is_served_by_the_generation_that_has_it()
 {
    let other = Options {
        model: "tiny-v2".to_owned(),
        ..Options::default()
    };
    let mut pair = Pair::start_with(Options::default(), other).await;
    let proxy = pair.proxy(50, &[]).await;
    assert_eq!(models(proxy.address).await, [MODEL, "tiny-v2"]);
    // A request for a model that the first generation does not know fails over to the other.
    for (model, stack) in [(MODEL, &pair.old), ("tiny-v2", &pair.new)] {
        for kind in RequestKind::all() {
            for _ in 0..2 {
                let body = kind.body_for(model, "<<words=3>>").to_string();
                let response =
                    rig::client::post(proxy.address, kind.family.path(), &[], body).await;
                kind.assert_text(&response, stack, 3);
            }
        }
    }
    let causes = [("cause", "model_not_found")];
    assert!(
        proxy
            .metrics()
            .await
            .sum("crossfade_recovered_requests_total", &causes)
            >= 8.0
    );
    let all_old = pair.proxy(0, &[]).await;
    assert_eq!(
        models(all_old.address).await,
        [MODEL],
        "new gets nothing, so it lists nothing"
    );
    pair.new.kill_frontend();
    assert_eq!(models(proxy.address).await, [MODEL], "the other's answer");
    pair.new.start_frontend().await;
    pair.old.kill_frontend();
    assert_eq!(
        models(proxy.address).await,
        ["tiny-v2"],
        "the other's answer"
    );
}

async fn models(address: SocketAddr) -> Vec<String> {
    let response = rig::client::get(address, rig::MODELS).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let list = response.json();
    let models = list["data"].as_array().expect("a list").iter();
    let mut models: Vec<_> = models
        .map(|model| model["id"].as_str().expect("an id").to_owned())
        .collect();
    models.sort();
    models
}

#[tokio::test]
async fn the_openai_library_is_served_by_both_generations_streaming_and_not() {
    const ROUNDS: u64 = 3;
    let pair = Pair::start().await;
    let proxy = pair.proxy(50, &[]).await;
    let mut kinds: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    // A run sends an odd number of requests. So in the second run, each request goes to the other generation.
    for _ in 0..2 {
        let summary = library(proxy.address, ROUNDS).await;
        assert_eq!(summary["models"], serde_json::json!([MODEL]));
        assert_eq!(summary["unknown_model"]["error"], "NotFoundError");
        assert_eq!(summary["unknown_model"]["status"], 404);
        for kind in ["chat_stream", "completions_stream", "responses_stream"] {
            let pieces = summary["pieces"][kind].as_u64().expect("a number");
            assert!(pieces >= 5 * ROUNDS, "{kind} came in {pieces} pieces");
        }
        for (kind, counts) in summary["generations"].as_object().expect("ways") {
            for (generation, count) in counts.as_object().expect("counts") {
                let counts = kinds.entry(kind.clone()).or_default();
                *counts.entry(generation.clone()).or_default() += count.as_u64().expect("a number");
            }
        }
    }
    assert_eq!(kinds.len(), 6, "{kinds:?}");
    for (kind, counts) in &kinds {
        assert_eq!(counts.len(), 2, "{kind} was not served by both: {kinds:?}");
    }
    let new: u64 = kinds.values().map(|counts| counts["new"]).sum();
    // Of 38 requests, 2 are for the unknown model.
    assert!((17..=19).contains(&new), "{new} of 36 from new: {kinds:?}");
    proxy.outcomes("completed", 6 * 2 * ROUNDS as u32 + 4).await;
}

/// Runs `tests/openai/client.py` and returns its summary.
async fn library(address: SocketAddr, rounds: u64) -> Value {
    let mut command = Command::new(Dynamo::install().python);
    command
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/openai/client.py"
        ))
        .args([&format!("http://{address}"), MODEL, &rounds.to_string()])
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output
        .expect("no panic")
        .expect("the Python of the installation starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}
