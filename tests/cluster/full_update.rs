//! A full update: old is scaled from four workers to none and new from none to four, and the controller moves the split
//! accordingly.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::event_log::{EventLog, percentiles};
use crate::fixture::{SHELL, UPDATE};
use crate::load::{Load, Shape, assert_none_failed, share};
use crate::rollout::{Rollout, assert_share, phase, signal, workers};

/// Streams that are open at any time.
const STREAMS: usize = 200;
const SHAPE: Shape = Shape {
    words: 10,
    each_ms: 200,
};
const SIDECARS: u32 = 2;

/// The workers of old and new in each step, and the split that follows: c_new ÷ (c_old + c_new), in lowest terms.
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

/// A ready pod with the labels of a new worker that serves no model.
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
    let rollout = Rollout::start([4, 0], json!({"clientService": "old"})).await;
    let fixture = &rollout.fixture;
    fixture.scale("old-frontend", SIDECARS);
    fixture.in_force(0).await;
    let event_log = EventLog::start(fixture).await;
    let load = Load::start_outside_phases(fixture.address, STREAMS, SHAPE);

    // The frontend of new and a pod that looks like a worker are ready, but the model is not served.
    fixture.cluster.apply(&impostor());
    let update = rollout
        .until(UPDATE, "the missing model is reported", |update| {
            let status = &update["status"];
            let message = status["message"].as_str().unwrap_or_default();
            status["new"]["workers"] == "1/1" && message.contains("does not serve the model tiny")
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
        for (generation, name) in ["old", "new"].into_iter().enumerate() {
            if wanted[generation] != now[generation] {
                fixture.set_replicas(&format!("{name}-worker"), wanted[generation]);
            }
        }
        let is_more = wanted[1] > now[1];
        now = wanted;
        let update = rollout.wait_for_split(weights[0], weights[1]).await;
        let percent = f64::from(100 * weights[1]) / f64::from(weights[0] + weights[1]);
        let written = update["spec"]["trafficSplitPercent"].as_f64();
        assert_eq!(written, Some(percent.round()), "{update}");
        assert_eq!(
            update["status"]["new"]["workers"],
            format!("{0}/{0}", wanted[1])
        );
        // While a worker terminates, requests may still reach it and fail over.
        fixture.settled().await;
        phase(&load, step + 1, STREAMS).await;
        let took = event_log.time_to_apply(begun, is_more, weights).await;
        println!("{wanted:?}: {weights:?} in force {took:?} after the worker's change");
        // The first step also waits until Dynamo discovers the worker, and for the model.
        times.extend(took.filter(|_| step > 0));
    }
    assert_eq!(times.len(), STEPS.len() - 1, "not all steps were recorded");
    println!(
        "from a worker's change to the split in force at {SIDECARS} proxies: {}",
        percentiles(&times)
    );

    let update = rollout
        .until(UPDATE, "complete", |update| {
            update["status"]["phase"] == "Complete"
        })
        .await;
    assert_eq!(update["spec"]["oldDraining"], true, "{update}");
    for reason in ["Draining", "Complete"] {
        rollout.wait_for_event(reason).await;
    }
    let counts = rollout.counts().await;
    let more = |name: &str| counts.sum(name, &[]) - before.sum(name, &[]);
    println!(
        "the controller: {} KiB; for {} changes {} writes and {} reconciles",
        counts.sum("process_resident_memory_bytes", &[]) / 1024.0,
        STEPS.len(),
        more("crossfade_controller_writes_total"),
        more("crossfade_controller_reconciles_total"),
    );

    // All streams of new pass through the pods of old until clients connect to new.
    assert_eq!(update["status"]["safeToDeleteOld"], false, "{update}");
    let selector = r#"{"spec":{"selector":{"app":"new-frontend"}}}"#;
    let args = ["patch", "service", "old", "--type=merge", "-p", selector];
    fixture.cluster.kubectl(&args);
    rollout
        .until(UPDATE, "safe to delete", |update| {
            update["status"]["safeToDeleteOld"] == true
        })
        .await;
    fixture.set_replicas("old-frontend", 0);
    fixture.settled().await;
    phase(&load, STEPS.len() + 1, STREAMS).await;

    let ended = load.finish();
    assert_none_failed(&ended);
    println!("{} streams, none failed or cut", ended.len());
    let (all, new) = share(&ended, 0);
    assert!(
        all >= STREAMS && new == 0,
        "new served {new} of {all} without a model"
    );
    for (step, (_, weights)) in STEPS.into_iter().enumerate() {
        assert_share(&ended, step + 1, weights, f64::from(SIDECARS));
    }
    assert_share(&ended, STEPS.len() + 1, [0, 1], 0.0);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_split_follows_a_worker_that_flaps_and_no_stream_is_cut() {
    const TIMES: usize = 10;
    let rollout = Rollout::start([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        return println!("skipped: no processes of this cluster can be signalled");
    }
    rollout.wait_for_split(1, 1).await;
    let event_log = EventLog::start(fixture).await;
    let load = Load::start_outside_phases(fixture.address, 100, SHAPE);
    let one = &workers("new")[..1];
    let (mut lost, mut found) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        for (is_found, weights, times) in [(false, [2, 1], &mut lost), (true, [1, 1], &mut found)] {
            let begun = Instant::now();
            signal(one, libc::SIGUSR1);
            rollout.wait_for_split(weights[0], weights[1]).await;
            times.extend(event_log.time_to_apply(begun, is_found, weights).await);
        }
    }
    println!(
        "from a worker's readiness to the split in force: {}",
        percentiles(&found)
    );
    println!(
        "from a worker's loss to the split in force: {}",
        percentiles(&lost)
    );
    assert_none_failed(&load.finish());
    assert_eq!(
        (found.len(), lost.len()),
        (TIMES, TIMES),
        "not all changes were recorded"
    );
    let spec: &Value = &rollout.get(UPDATE)["spec"];
    assert_eq!(spec["weights"], json!({"old": 1, "new": 1}));
}
