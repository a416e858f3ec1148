//! Failures of a leader, the API server and a proxy, and many concurrent updates.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, pods};
use super::live_page::{reader, wait_for_page_event};
use crate::cluster::Cluster;
use crate::rig::*;

#[tokio::test]
async fn one_of_two_replicas_leads_and_the_other_takes_over_when_it_dies() {
    let fixture = Fixture::with_update(json!({})).await;
    let mut first = fixture.controller(&[]).await;
    leads(&first).await;
    let second = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    assert!(!second.leads().await);
    let reconciles = second
        .metrics()
        .await
        .sum("crossfade_controller_reconciles_total", &[]);
    assert_eq!(reconciles, 0.0, "a standby replica reconciles nothing");
    first.kill();
    let killed = Instant::now();
    fixture.worker("new", 1, "worker").await;
    let object = fixture.wait_for_split("up", 2, 1).await;
    // The lease is valid for 6 s and renewed every 2 s, or a little later on a busy machine.
    assert!(
        killed.elapsed() >= Duration::from_secs(2),
        "before the lease could expire"
    );
    assert_eq!(object["status"]["old"]["roles"]["worker"]["fullSize"], 4);
    eprintln!(
        "the second replica led and had written {:?} after the first was killed",
        killed.elapsed()
    );
    // A controller that exits cleanly releases the lease.
    let third = fixture.controller(&[]).await;
    second.signal(libc::SIGTERM);
    leads(&third).await;
}

/// Waits until the controller leads and is ready.
pub async fn leads(controller: &Controller) {
    let deadline = Instant::now() + super::fixture::PATIENCE;
    while !controller.leads().await {
        assert!(Instant::now() < deadline, "never leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eventually("it is ready", async || {
        controller.page("/readyz").await == 200
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_logs_its_decisions_and_writes_nothing() {
    let fixture = Fixture::with_update(json!({"stableSeconds": 2})).await;
    fixture.worker("new", 0, "worker").await;
    let same = json!({"selector": {"app": "any"}});
    let bad = json!({
        "sourceDeployment": "elsewhere", "targetDeployment": "elsewhere", "workers": {"old": same, "new": same},
    });
    fixture.update("bad", bad).await;
    let before = fixture.get("up").await;
    let controller = fixture.controller(&["--dry-run"]).await;
    let begun = Instant::now();
    eventually("it is logged", async || {
        controller
            .log()
            .contains("/up: 20% to new (old 4 : new 1): old has 4 of 4 workers ready")
    })
    .await;
    // Once the workers have been stable for long enough, and not only at the next full resync.
    assert!(begun.elapsed() < Duration::from_secs(28));
    eventually("the updates that are not followed are logged", async || {
        controller
            .log()
            .contains("is the same object as sourceDeployment")
    })
    .await;
    // Its own decisions do not count as edits by a user.
    fixture.worker("new", 1, "worker").await;
    eventually("the next decision is logged", async || {
        controller.log().contains("/up: 33% to new")
    })
    .await;
    assert!(!controller.log().contains("SplitContested"));
    let after = fixture.get("up").await;
    assert_eq!(
        before["metadata"]["resourceVersion"],
        after["metadata"]["resourceVersion"]
    );
}

#[tokio::test]
async fn a_proxy_that_does_not_answer_is_named_and_waited_for_no_longer_than_configured() {
    let fixture = Fixture::with_update(json!({"ackTimeoutSeconds": 2})).await;
    let nobody = Upstream::nobody();
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    });
    let ports = json!([{"name": "crossfade", "containerPort": nobody.port()}]);
    fixture.pod("old-frontend-mute", labels, ports).await;
    fixture.pod_ready("old-frontend-mute", true).await;
    let _controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    let message = fixture.wait_for_event("ProxiesLag").await;
    assert!(
        message.contains("old-frontend-mute (does not respond)"),
        "{message}"
    );
    let both = |object: &Value| object["status"]["frontends"]["total"] == 2;
    fixture.until("up", "both are counted", both).await;
    // A loss is applied without waiting for the proxies.
    fixture.delete(&pods(), "new-worker-0").await;
    fixture.wait_for_split("up", 1, 0).await;
}

#[tokio::test]
async fn two_hundred_updates_are_followed_at_once() {
    const COUNT: u32 = 200;
    let fixture = Fixture::start().await;
    let frontend = fixture.new.url();
    for i in 0..COUNT {
        let (old, new) = (format!("old{i}"), format!("new{i}"));
        fixture.worker(&old, 0, "worker").await;
        let more = json!({
            "newFrontendService": frontend, "sourceDeployment": old, "targetDeployment": new,
        });
        fixture.update(&format!("up{i}"), more).await;
    }
    let controller = fixture.controller(&[]).await;
    let deadline = Instant::now() + super::fixture::PATIENCE;
    while controller
        .metrics()
        .await
        .sum("crossfade_controller_writes_total", &[])
        < f64::from(COUNT)
    {
        assert!(Instant::now() < deadline, "not all are reconciled");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let writes = controller
        .metrics()
        .await
        .sum("crossfade_controller_writes_total", &[]);
    let mut took = Vec::new();
    for i in 0..COUNT {
        fixture.worker(&format!("new{i}"), 0, "worker").await;
        let ready = Instant::now();
        fixture.wait_for_split(&format!("up{i}"), 1, 1).await;
        took.push(ready.elapsed());
    }
    took.sort();
    let metrics = controller.metrics().await;
    let writes = metrics.sum("crossfade_controller_writes_total", &[]) - writes;
    let per_change = writes / f64::from(COUNT);
    eprintln!(
        "of {COUNT} updates, from a worker's readiness to the split in the resource: p50 {:?}, p99 {:?}; {} KiB; {per_change:.1} writes a change",
        took[took.len() / 2],
        took[took.len() * 99 / 100],
        controller.memory(),
    );
    assert!(per_change <= 4.0, "{per_change} writes a change");
    // Each of them has the status.
    eventually("all Events are written", async || {
        let events = fixture.events().await;
        events.get("SplitChanged").map_or(0, Vec::len) == COUNT as usize
    })
    .await;
}

async fn run_api(server: &Arc<Cluster>, what: &'static str) {
    let server = Arc::clone(server);
    let running = tokio::task::spawn_blocking(move || server.api(what));
    running.await.unwrap();
}

const SPLIT: &str = "crossfade_controller_split_ratio";

#[tokio::test]
async fn after_the_api_server_was_away_the_controller_continues() {
    let server = tokio::task::spawn_blocking(super::fixture::new_server).await;
    let server = Arc::new(server.unwrap());
    let mut fixture = Fixture::start_on(&server).await;
    fixture.begin(json!({})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    eventually("the split is shown", async || {
        controller.metrics().await.sum(SPLIT, &[]) == 0.2
    })
    .await;
    let generation = fixture.get("up").await["metadata"]["generation"].clone();
    run_api(&server, "stop").await;
    // Longer than the lease, so it certainly no longer leads.
    eventually("it no longer leads", async || !controller.leads().await).await;
    let shown = controller.metrics().await.sum(SPLIT, &[]);
    assert_eq!(shown, 0.0, "metrics of a rollout without leadership");
    assert_eq!(controller.page("/livez").await, 200);
    fixture.proxies[0].serves("old").await;
    // The page shows the proxies as before, with their history.
    let mut reader = reader(&controller).await;
    // Each sample is sent once.
    let mut has_progressed = false;
    wait_for_page_event(&mut reader, |page| {
        let mut samples = page["samples"].as_array().into_iter().flatten();
        has_progressed |= samples.any(|sample| sample["phase"] == "Progressing");
        page["controller"]["role"] == "unsure"
            && page["proxies"][0]["answers"] == true
            && page["state"]["phase"] == "ready"
            && has_progressed
    })
    .await;
    run_api(&server, "start").await;
    leads(&controller).await;
    assert_eq!(
        fixture.get("up").await["metadata"]["generation"],
        generation
    );
    fixture.worker("new", 1, "worker").await;
    fixture.wait_for_split("up", 2, 1).await;
}

#[tokio::test]
async fn the_permissions_in_deploy_are_sufficient() {
    let fixture = Fixture::with_update(json!({})).await;
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("controller.kubeconfig");
    tokio::task::spawn_blocking({
        let (admin, place) = (fixture.kubeconfig.clone(), place.clone());
        move || super::fixture::as_service_account(&admin, &place)
    })
    .await
    .unwrap();
    let args = [
        "--all-namespaces",
        "--lease-namespace",
        "crossfade",
        "--allow-any-target",
        "--dry-run",
    ];
    // The updates of other tests must not change: the controller may only read them, and writes only in this namespace.
    let emulate_screen = Controller::start(&place.to_string_lossy(), &args).await;
    eventually("it sees all namespaces", async || {
        emulate_screen
            .log()
            .contains(&format!("{}/up: ", fixture.namespace))
    })
    .await;
    drop(emulate_screen);
    let args = [
        "--namespace",
        &fixture.namespace,
        "--lease-namespace",
        "crossfade",
        "--allow-any-target",
    ];
    let _controller = Controller::start(&place.to_string_lossy(), &args).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    fixture.wait_for_event("SplitChanged").await;
}
