//! A proxy with a plan from a file analyzes new itself, and rolls it back if it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::rig::*;
use serde_json::Value;

const ROLL_BACK: &str = "analysis: {onFailure: RollBack}";

fn plan(new: &Upstream, percents: (u32, u32), more: &str) -> String {
    manifest(&new.url(), percents.0, percents.1, more)
}

async fn page(proxy: &Proxy) -> Value {
    serde_json::from_str(&proxy.plan().await).unwrap()
}

/// Sends chats until `wanted` holds for the analysis on the plan page.
async fn wait_for_analysis(proxy: &Proxy, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    until(what, async || {
        proxy.chat().await;
        let page = page(proxy).await;
        wanted(&page["analysis"]).then_some(page)
    })
    .await
}

#[tokio::test]
async fn new_that_fails_gets_no_more_requests_until_the_plan_names_another() {
    let old = Upstream::start(healthy("old")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&bad, (1, 1), ROLL_BACK));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let rolled = wait_for_analysis(&proxy, "it rolls back", |analysis| {
        analysis["rolledBack"] == true
    })
    .await;
    assert_eq!(rolled["analysis"]["verdict"], "fail", "{rolled}");
    let text = rolled["analysis"]["text"].as_str().unwrap();
    assert!(
        text.starts_with("New fails 100.0% of its requests, and old fails 0.0% ("),
        "{text}"
    );
    assert_eq!(rolled["trafficSplitPercent"], 0);
    let verdict = [("verdict", "fail")];
    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum("crossfade_analysis_verdict", &verdict), 1.0);
    assert_eq!(metrics.sum("crossfade_analysis_verdict", &[]), 1.0);
    let reason = [("reason", "failure_rate")];
    assert_eq!(metrics.sum("crossfade_analysis_reason", &reason), 1.0);
    assert_eq!(metrics.sum("crossfade_analysis_reason", &[]), 1.0);
    assert!(
        rolled["summary"]
            .as_str()
            .unwrap()
            .contains("rolled back: New fails"),
        "{rolled}"
    );
    let asked = bad.count();
    for _ in 0..20 {
        assert_eq!(proxy.chat().await.generation(), "old");
    }
    assert_eq!(bad.count(), asked);

    // Another split for the same new generation changes nothing.
    file.write(&plan(&bad, (1, 9), ROLL_BACK));
    let epoch = rolled["epoch"].as_u64().unwrap();
    let edited = until("the edit is in force", async || {
        let page = page(&proxy).await;
        (page["spec"]["weights"]["new"] == 9).then_some(page)
    })
    .await;
    assert!(edited["epoch"].as_u64().unwrap() >= epoch);
    assert_eq!(edited["trafficSplitPercent"], 0, "{edited}");
    assert_eq!(bad.count(), asked);

    // Nor does another spelling of its address.
    let spelled = bad.url().replace("127.0.0.1", "localhost");
    assert_ne!(spelled, bad.url());
    file.write(&manifest(&spelled, 1, 9, ROLL_BACK));
    until("the other spelling is in the plan", async || {
        let page = page(&proxy).await.to_string();
        page.contains(&spelled).then_some(())
    })
    .await;
    for _ in 0..20 {
        assert_eq!(proxy.chat().await.generation(), "old");
    }
    assert_eq!(bad.count(), asked);

    // Nor does an additional server.
    let good = Upstream::start(healthy("new")).await;
    let both = format!("{},{}", good.url(), bad.url());
    file.write(&manifest(&both, 1, 9, ROLL_BACK));
    until("the other server is in the plan, too", async || {
        let page = page(&proxy).await.to_string();
        page.contains(&good.url()).then_some(())
    })
    .await;
    for _ in 0..20 {
        assert_eq!(proxy.chat().await.generation(), "old");
    }

    // Another new generation does.
    file.write(&plan(&good, (1, 1), ROLL_BACK));
    proxy.serves("new").await;
    let fresh = wait_for_analysis(&proxy, "a new analysis starts", |analysis| {
        analysis["verdict"] == "inconclusive"
    })
    .await;
    assert_eq!(fresh["analysis"]["rolledBack"], false);
    assert_eq!(fresh["trafficSplitPercent"], 50);
}

#[tokio::test]
async fn a_roll_back_survives_a_restart_until_the_plan_names_another_new() {
    let old = Upstream::start(healthy("old")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let state = tempfile::tempdir().unwrap();
    let flags = ["--state-dir", state.path().to_str().unwrap()];
    let kept = state.path().join("rolled-back.json");
    let file = PlanFile::new(&plan(&bad, (1, 1), ROLL_BACK));
    let mut proxy = Proxy::planned(&old, &file, &flags).await;
    let rolled = wait_for_analysis(&proxy, "it rolls back", |analysis| {
        analysis["rolledBack"] == true
    })
    .await;
    eventually("it is stored", async || kept.exists()).await;
    proxy.signal(libc::SIGKILL);
    assert_eq!(proxy.end().await, None);

    // The share in the plan may have been edited meanwhile.
    file.write(&plan(&bad, (1, 9), ROLL_BACK));
    let asked = bad.count();
    let mut proxy = Proxy::planned(&old, &file, &flags).await;
    for _ in 0..20 {
        assert_eq!(proxy.chat().await.generation(), "old");
    }
    assert_eq!(bad.count(), asked);
    let again = page(&proxy).await;
    assert_eq!(again["analysis"], rolled["analysis"], "{again}");
    assert_eq!(again["trafficSplitPercent"], 0);

    // While old drains, new gets all requests and the rollback has no effect, because old could not take them.
    let draining = format!("{ROLL_BACK}\noldDraining: true");
    file.write(&plan(&bad, (0, 1), &draining));
    until("the split is that of the plan", async || {
        (page(&proxy).await["trafficSplitPercent"] == 100).then_some(())
    })
    .await;
    // With another split, old does not drain.
    file.write(&plan(&bad, (1, 9), &draining));
    until("it is rolled back again", async || {
        (page(&proxy).await["trafficSplitPercent"] == 0).then_some(())
    })
    .await;
    file.write(&plan(&bad, (1, 9), ROLL_BACK));
    proxy.serves("old").await;
    assert!(kept.exists());

    // Another new generation ends the rollback, also for the next process.
    let good = Upstream::start(healthy("new")).await;
    file.write(&plan(&good, (0, 1), ROLL_BACK));
    proxy.serves("new").await;
    assert!(!kept.exists());
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    let proxy = Proxy::planned(&old, &file, &flags).await;
    assert_eq!(proxy.chat().await.generation(), "new");
}

/// It is unknown which generation was rolled back, so old gets the requests.
#[tokio::test]
async fn if_the_stored_rollback_is_damaged_new_gets_nothing_until_the_plan_names_another() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    for damaged in ["\0garbage{", "", "{}", "{\"new\": 3, \"why\": \"\"}"] {
        let state = tempfile::tempdir().unwrap();
        let flags = ["--state-dir", state.path().to_str().unwrap()];
        let kept = state.path().join("rolled-back.json");
        std::fs::write(&kept, damaged).unwrap();
        let file = PlanFile::new(&plan(&new, (0, 1), ROLL_BACK));
        let proxy = Proxy::planned(&old, &file, &flags).await;
        assert_eq!(proxy.chat().await.generation(), "old", "{damaged:?}");
        let analysis = &page(&proxy).await["analysis"];
        assert_eq!(analysis["rolledBack"], true, "{analysis}");
        let lines = proxy.lines();
        let logged = lines.iter().any(|line| line.contains("rolled-back.json"));
        assert!(logged, "{lines:?}");
        let another = Upstream::start(healthy("new")).await;
        file.write(&plan(&another, (0, 1), ROLL_BACK));
        proxy.serves("new").await;
        assert!(!kept.exists());
    }
}

/// The stored rollback may be of another new generation, from before an edit of the plan.
#[tokio::test]
async fn a_stored_rollback_of_another_new_generation_is_dropped() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let state = tempfile::tempdir().unwrap();
    let flags = ["--state-dir", state.path().to_str().unwrap()];
    let kept = state.path().join("rolled-back.json");
    std::fs::write(
        &kept,
        r#"{"new": ["http://10.0.0.9:8000"], "why": "It was bad."}"#,
    )
    .unwrap();
    let file = PlanFile::new(&plan(&new, (0, 1), ROLL_BACK));
    let proxy = Proxy::planned(&old, &file, &flags).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    assert!(!kept.exists());
}

#[tokio::test]
async fn with_hold_the_split_stays_and_the_log_says_so_once() {
    let old = Upstream::start(healthy("old")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&bad, (1, 1), "analysis: {}"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    for what in ["new fails", "it looks again"] {
        let failed =
            wait_for_analysis(&proxy, what, |analysis| analysis["verdict"] == "fail").await;
        assert_eq!(failed["analysis"]["rolledBack"], false);
        assert_eq!(failed["trafficSplitPercent"], 50);
    }
    let lines = proxy.lines();
    let logged = lines
        .iter()
        .filter(|line| line.contains("has failed the analysis"));
    assert_eq!(logged.count(), 1, "{lines:?}");
}

/// While new gets all requests, the only control group are the requests that old gets after new has failed them.
#[tokio::test]
async fn new_that_fails_while_it_gets_all_requests_is_rolled_back_if_old_completes_them() {
    let old = Upstream::start(healthy("old")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&bad, (0, 1), ROLL_BACK));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let rolled = wait_for_analysis(&proxy, "it rolls back", |analysis| {
        analysis["rolledBack"] == true
    })
    .await;
    let text = rolled["analysis"]["text"].as_str().unwrap();
    let expected = "New fails 100.0% of its requests, and old fails 0.0% (";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(proxy.chat().await.generation(), "old");
}

/// The requests of old before the first request of new count, even those from before the plan named this new generation.
#[tokio::test]
async fn two_failures_of_new_s_first_two_requests_are_enough_if_old_fails_nothing() {
    let old = Upstream::start(healthy("old")).await;
    let unused = Upstream::start(healthy("new")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&unused, (1, 0), ""));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    for _ in 0..250 {
        proxy.chat().await;
    }
    file.write(&plan(&bad, (9, 1), ROLL_BACK));
    until("it has compared", async || {
        let page = page(&proxy).await;
        (page["analysis"] != Value::Null).then_some(())
    })
    .await;
    while bad.count() < 2 {
        proxy.chat().await;
    }
    // With so many successes of old, two failures of new are significant.
    for _ in 0..9 {
        proxy.chat().await;
    }
    until("it rolls back without another request", async || {
        let page = page(&proxy).await;
        (page["analysis"]["rolledBack"] == true).then_some(())
    })
    .await;
    assert_eq!(bad.count(), 2);
}

/// Long after the first requests of new, for which there is another test.
#[tokio::test]
async fn new_that_crashes_after_good_requests_is_rolled_back_and_clients_see_no_error() {
    let old = Upstream::start(healthy("old")).await;
    let crashed = Arc::new(AtomicBool::new(false));
    let crashes = Arc::clone(&crashed);
    let new = Upstream::start(move |request| {
        if crashes.load(Ordering::Relaxed) {
            status(500)
        } else {
            healthy("new")(request)
        }
    })
    .await;
    let file = PlanFile::new(&plan(&new, (9, 1), ROLL_BACK));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    while new.count() < 60 {
        proxy.chat().await;
    }
    wait_for_analysis(&proxy, "new is compared", |analysis| {
        analysis["verdict"] == "inconclusive"
    })
    .await;
    crashed.store(true, Ordering::Relaxed);
    let rolled = until("it rolls back", async || {
        assert_eq!(proxy.chat().await.status, 200);
        let page = self::page(&proxy).await;
        (page["analysis"]["rolledBack"] == true).then_some(page)
    })
    .await;
    assert_eq!(rolled["trafficSplitPercent"], 0, "{rolled}");
}

/// Only another new generation or another process ends a rollback. Changed limits do not.
#[tokio::test]
async fn a_rollback_stays_if_the_plan_changes_to_hold_or_drops_the_analysis() {
    let old = Upstream::start(healthy("old")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&bad, (1, 1), ROLL_BACK));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    wait_for_analysis(&proxy, "it rolls back", |analysis| {
        analysis["rolledBack"] == true
    })
    .await;
    let asked = bad.count();
    for (weight, analysis) in [(2, "analysis: {onFailure: Hold}"), (3, "")] {
        file.write(&plan(&bad, (1, weight), analysis));
        let edited = until("the edit is in force", async || {
            let page = page(&proxy).await;
            (page["spec"]["weights"]["new"] == weight).then_some(page)
        })
        .await;
        assert_eq!(edited["trafficSplitPercent"], 0, "{edited}");
        for _ in 0..20 {
            assert_eq!(proxy.chat().await.generation(), "old");
        }
        assert_eq!(bad.count(), asked);
    }
}

/// Requests that both generations fail are not the fault of new.
#[tokio::test]
async fn new_is_not_rolled_back_for_requests_that_old_fails_as_well() {
    let old = Upstream::start(serving(status(500))).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&bad, (0, 1), ROLL_BACK));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(4);
    while std::time::Instant::now() < end {
        proxy.chat().await;
    }
    let page = page(&proxy).await;
    assert_eq!(page["analysis"]["verdict"], "inconclusive", "{page}");
    assert_eq!(page["trafficSplitPercent"], 100);
}

#[tokio::test]
async fn without_an_analysis_there_is_no_verdict() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    proxy.chat().await;
    assert_eq!(page(&proxy).await["analysis"], Value::Null);
    let metrics = proxy.metrics().await;
    assert!(!metrics.text.contains("crossfade_analysis_verdict"));
    assert!(!metrics.text.contains("crossfade_analysis_reason"));
}

/// The action that follows from a failure can be configured after the failure was detected.
#[tokio::test]
async fn new_that_has_failed_is_rolled_back_once_the_plan_enables_it() {
    let old = Upstream::start(healthy("old")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&bad, (1, 1), "analysis: {onFailure: Hold}"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    wait_for_analysis(&proxy, "it fails", |analysis| analysis["verdict"] == "fail").await;
    file.write(&plan(&bad, (1, 1), ROLL_BACK));
    until("it is rolled back without new requests", async || {
        let page = page(&proxy).await;
        (page["analysis"]["rolledBack"] == true).then_some(())
    })
    .await;
}

/// Equal generations are not enough for a pass: both may be down, or so slow that every client gives up.
#[tokio::test]
async fn new_that_completes_nothing_does_not_pass_although_old_is_no_better() {
    let analysis = "analysis: {warmupSeconds: 0, minSamples: 20, ttftP95Ratio: 100}";
    let gate = Gate::closed();
    let silent = Script::new().sse().wait(&gate);
    for (script, gives_up) in [(status(503), false), (silent, true)] {
        let [old, new] = [
            Upstream::start(serving(script.clone())).await,
            Upstream::start(serving(script)).await,
        ];
        let file = PlanFile::new(&plan(&new, (1, 1), analysis));
        let proxy = Proxy::planned(&old, &file, &[]).await;
        let text = until("enough requests are over", async || {
            if gives_up {
                let mut client = client::open_chat(proxy.address).await;
                client.head().await;
            } else {
                proxy.chat().await;
            }
            let text = page(&proxy).await["analysis"]["text"].to_string();
            text.contains("completed").then_some(text)
        })
        .await;
        assert!(
            text.contains("Not enough data: new completed no requests in ")
                && text.contains("; at least 20 are needed."),
            "{text}"
        );
        assert_eq!(page(&proxy).await["analysis"]["verdict"], "inconclusive");
    }
}
