//! The main job: from four workers of old to four of new, worker by worker, by nothing but the workers' own coming and going.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::chronicle::{Chronicle, told};
use crate::fixture::{SHELL, UPDATE};
use crate::load::{Load, Shape, assert_all_well, share};
use crate::rollout::{Rollout, assert_share, phase, signal, workers};

/// Streams that are open at any time.
const STREAMS: usize = 200;
const SHAPE: Shape = Shape {
    words: 10,
    each_ms: 200,
};
const SIDECARS: u32 = 2;

/// Workers of old and new, step by step, and the split that follows: c_new ÷ (c_old + c_new), in lowest terms.
const STEPS: [([u32; 2], [u32; 2]); 8] = [
    ([4, 1], [4, 1]),
    ([3, 1], [3, 1]),
    ([3, 2], [3, 2]),
    ([2, 2], [1, 1]),
    ([2, 3], [2, 3]),
    ([1, 3], [1, 3]),
    ([1, 4], [1, 4]),
    ([0, 4], [0, 1]),
];

/// A pod that is ready and looks like a worker of new, and serves no model.
fn impostor() -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "impostor", "labels": {
            "nvidia.com/dynamo-graph-deployment-name": "dgd-new", "nvidia.com/dynamo-component-type": "worker",
        }},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [
            {"name": "main", "image": SHELL, "command": ["/bin/busybox", "sleep", "1000000"]},
        ]},
    })
    .to_string()
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn an_update_follows_the_workers_one_by_one_to_its_end_and_loses_no_stream() {
    let rollout = Rollout::begun([4, 0], json!({"clientService": "old"})).await;
    let fixture = &rollout.fixture;
    fixture.scale("old-frontend", SIDECARS);
    fixture.in_force(0).await;
    let chronicle = Chronicle::start(fixture).await;
    let load = Load::aside(fixture.address, STREAMS, SHAPE);

    // New's frontend is ready, and so is a worker, as far as one can see; the model is not there.
    fixture.cluster.apply(&impostor());
    let update = rollout
        .until(UPDATE, "the model is missed", |update| {
            let status = &update["status"];
            let said = status["message"].as_str().unwrap_or_default();
            status["new"]["workers"] == "1/1" && said.contains("does not serve the model tiny")
        })
        .await;
    assert_eq!(update["spec"]["trafficSplitPercent"], 0, "{update}");
    phase(&load, 0, STREAMS).await;
    fixture.cluster.kubectl(&["delete", "pod", "impostor"]);

    let before = rollout.counts().await;
    let mut times = Vec::new();
    let mut now = [4, 0];
    for (step, (wanted, weights)) in STEPS.into_iter().enumerate() {
        let begun = Instant::now();
        for (side, name) in ["old", "new"].into_iter().enumerate() {
            if wanted[side] != now[side] {
                fixture.wants(&format!("{name}-worker"), wanted[side]);
            }
        }
        let is_more = wanted[1] > now[1];
        now = wanted;
        let update = rollout.splits(weights[0], weights[1]).await;
        let percent = f64::from(100 * weights[1]) / f64::from(weights[0] + weights[1]);
        let told = update["spec"]["trafficSplitPercent"].as_f64();
        assert_eq!(told, Some(percent.round()), "{update}");
        assert_eq!(
            update["status"]["new"]["workers"],
            format!("{0}/{0}", wanted[1])
        );
        // Until a worker has gone requests may still meet it, and be saved elsewhere.
        fixture.settled().await;
        phase(&load, step + 1, STREAMS).await;
        // By now everyone who was to tell of it has been heard.
        let took = chronicle.took(begun, is_more, weights).await;
        println!("{wanted:?}: {weights:?} in force {took:?} after the worker's news");
        // The first one waits for Dynamo to find the worker, and for the model.
        times.extend(took.filter(|_| step > 0));
    }
    assert_eq!(times.len(), STEPS.len() - 1, "each step was seen");
    println!(
        "from a worker's news to the split in force at {SIDECARS} proxies, of {}",
        told(&times)
    );

    let update = rollout
        .until(UPDATE, "complete", |update| {
            update["status"]["phase"] == "Complete"
        })
        .await;
    assert_eq!(update["spec"]["oldDraining"], true, "{update}");
    for reason in ["Draining", "Complete"] {
        rollout.happens(reason).await;
    }
    let counts = rollout.counts().await;
    let more = |name: &str| counts.sum(name, &[]) - before.sum(name, &[]);
    println!(
        "the controller: {} KiB; for {} changes {} writes and {} looks",
        counts.sum("process_resident_memory_bytes", &[]) / 1024.0,
        STEPS.len(),
        more("crossfade_controller_writes_total"),
        more("crossfade_controller_reconciles_total"),
    );

    // The pods of old carry all of new's streams, until clients go elsewhere.
    assert_eq!(update["status"]["safeToDeleteOld"], false, "{update}");
    let selector = r#"{"spec":{"selector":{"app":"new-frontend"}}}"#;
    let args = ["patch", "service", "old", "--type=merge", "-p", selector];
    fixture.cluster.kubectl(&args);
    rollout
        .until(UPDATE, "safe to delete", |update| {
            update["status"]["safeToDeleteOld"] == true
        })
        .await;
    fixture.wants("old-frontend", 0);
    fixture.settled().await;
    phase(&load, STEPS.len() + 1, STREAMS).await;

    let ended = load.finish();
    assert_all_well(&ended);
    println!("{} streams, none failed or cut", ended.len());
    let (all, new) = share(&ended, 0);
    assert!(all >= STREAMS && new == 0, "{new} of {all} without a model");
    for (step, (_, weights)) in STEPS.into_iter().enumerate() {
        assert_share(&ended, step + 1, weights, f64::from(SIDECARS));
    }
    assert_share(&ended, STEPS.len() + 1, [0, 1], 0.0);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_worker_that_wavers_is_followed_each_time_and_its_streams_run_on() {
    const TIMES: usize = 10;
    let rollout = Rollout::begun([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        return println!("skipped: no processes of this cluster can be signalled");
    }
    rollout.splits(1, 1).await;
    let chronicle = Chronicle::start(fixture).await;
    let load = Load::aside(fixture.address, 100, SHAPE);
    let one = &workers("new")[..1];
    let (mut lost, mut found) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        for (is_found, weights, times) in [(false, [2, 1], &mut lost), (true, [1, 1], &mut found)] {
            let begun = Instant::now();
            signal(one, libc::SIGUSR1);
            rollout.splits(weights[0], weights[1]).await;
            times.extend(chronicle.took(begun, is_found, weights).await);
        }
    }
    println!(
        "from a worker's readiness to the split in force, of {}",
        told(&found)
    );
    println!(
        "from a worker's loss to the split in force, of {}",
        told(&lost)
    );
    assert_all_well(&load.finish());
    assert_eq!((found.len(), lost.len()), (TIMES, TIMES), "all were seen");
    let spec: &Value = &rollout.get(UPDATE)["spec"];
    assert_eq!(spec["weights"], json!({"old": 1, "new": 1}));
}
