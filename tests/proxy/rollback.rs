//! A proxy that has its plan from a file judges new by itself, and takes its requests away if it fails.

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

/// Sends chats until the page's analysis is as `wanted` says.
async fn judged(proxy: &Proxy, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
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
    let rolled = judged(&proxy, "it rolls back", |analysis| {
        analysis["rolledBack"] == true
    })
    .await;
    assert_eq!(rolled["analysis"]["verdict"], "fail", "{rolled}");
    let text = rolled["analysis"]["text"].as_str().unwrap();
    assert!(
        text.starts_with("New fails 100.0 % of requests, old 0.0 % ("),
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

    // Another split of the same new changes nothing.
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

    // Nor does another spelling of it.
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

    // Nor does another server beside it.
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

    // Another new does.
    file.write(&plan(&good, (1, 1), ROLL_BACK));
    proxy.serves("new").await;
    let fresh = judged(&proxy, "it judges anew", |analysis| {
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
    let rolled = judged(&proxy, "it rolls back", |analysis| {
        analysis["rolledBack"] == true
    })
    .await;
    eventually("it is kept", async || kept.exists()).await;
    proxy.signal(libc::SIGKILL);
    assert_eq!(proxy.end().await, None);

    // The plan's share may have been edited meanwhile.
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

    // Not where old drains, because new gets all requests: it could not take them.
    let draining = format!("{ROLL_BACK}\noldDraining: true");
    file.write(&plan(&bad, (0, 1), &draining));
    until("the split is that of the plan", async || {
        (page(&proxy).await["trafficSplitPercent"] == 100).then_some(())
    })
    .await;
    // With another split it does not drain.
    file.write(&plan(&bad, (1, 9), &draining));
    until("it is rolled back again", async || {
        (page(&proxy).await["trafficSplitPercent"] == 0).then_some(())
    })
    .await;
    file.write(&plan(&bad, (1, 9), ROLL_BACK));
    proxy.serves("old").await;
    assert!(kept.exists());

    // Another new ends it, also for the next process.
    let good = Upstream::start(healthy("new")).await;
    file.write(&plan(&good, (0, 1), ROLL_BACK));
    proxy.serves("new").await;
    assert!(!kept.exists());
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    let proxy = Proxy::planned(&old, &file, &flags).await;
    assert_eq!(proxy.chat().await.generation(), "new");
}

/// Something was rolled back, and what cannot be known: old takes the requests.
#[tokio::test]
async fn if_what_was_kept_of_a_roll_back_is_damaged_new_gets_nothing_until_the_plan_names_another()
{
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

/// It may be of another new generation, from before an edit of the plan.
#[tokio::test]
async fn what_was_kept_of_another_new_is_forgotten() {
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
async fn if_it_is_to_hold_the_split_stays_and_the_log_says_so_once() {
    let old = Upstream::start(healthy("old")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&bad, (1, 1), "analysis: {}"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    for what in ["new fails", "it looks again"] {
        let failed = judged(&proxy, what, |analysis| analysis["verdict"] == "fail").await;
        assert_eq!(failed["analysis"]["rolledBack"], false);
        assert_eq!(failed["trafficSplitPercent"], 50);
    }
    let lines = proxy.lines();
    let logged = lines
        .iter()
        .filter(|line| line.contains("has failed the analysis"));
    assert_eq!(logged.count(), 1, "{lines:?}");
}

/// While new gets all requests, there is no control group but those that old gets after new has failed them.
#[tokio::test]
async fn new_that_fails_while_it_gets_all_requests_is_rolled_back_by_what_old_makes_of_them() {
    let old = Upstream::start(healthy("old")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&bad, (0, 1), ROLL_BACK));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let rolled = judged(&proxy, "it rolls back", |analysis| {
        analysis["rolledBack"] == true
    })
    .await;
    let text = rolled["analysis"]["text"].as_str().unwrap();
    let expected = "New fails 100.0 % of requests, old 0.0 % (";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(proxy.chat().await.generation(), "old");
}

/// What old did before new's first request counts, even before the plan named this new.
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
    until("it has looked", async || {
        let page = page(&proxy).await;
        (page["analysis"] != Value::Null).then_some(())
    })
    .await;
    while bad.count() < 2 {
        proxy.chat().await;
    }
    // That they are new's is no chance beside so many of old.
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

/// Long after its first requests, for which there is a test of its own.
#[tokio::test]
async fn new_that_crashes_after_it_was_good_is_rolled_back_and_clients_notice_nothing() {
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
    judged(&proxy, "new is good so far", |analysis| {
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

/// A person who wants new back says so by another new or another process, not by the margins.
#[tokio::test]
async fn a_roll_back_stays_if_the_plan_only_holds_or_has_no_analysis_any_more() {
    let old = Upstream::start(healthy("old")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&bad, (1, 1), ROLL_BACK));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    judged(&proxy, "it rolls back", |analysis| {
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

/// What both fail is not new's fault.
#[tokio::test]
async fn new_that_fails_what_old_fails_as_well_is_not_rolled_back() {
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
async fn without_an_analysis_nothing_is_judged() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    proxy.chat().await;
    assert_eq!(page(&proxy).await["analysis"], Value::Null);
    let metrics = proxy.metrics().await;
    assert!(!metrics.text.contains("crossfade_analysis_verdict"));
    assert!(!metrics.text.contains("crossfade_analysis_reason"));
}

/// What follows from a failure is not what it is found by.
#[tokio::test]
async fn new_that_has_failed_is_rolled_back_once_the_plan_says_so() {
    let old = Upstream::start(healthy("old")).await;
    let bad = Upstream::start(serving(status(500))).await;
    let file = PlanFile::new(&plan(&bad, (1, 1), "analysis: {onFailure: Hold}"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    judged(&proxy, "it fails", |analysis| analysis["verdict"] == "fail").await;
    file.write(&plan(&bad, (1, 1), ROLL_BACK));
    until(
        "it is rolled back, though nothing new is seen",
        async || {
            let page = page(&proxy).await;
            (page["analysis"]["rolledBack"] == true).then_some(())
        },
    )
    .await;
}

/// Equal sides are not enough for a pass: both may be down, or so slow that every client gives up.
#[tokio::test]
async fn new_that_completes_nothing_does_not_pass_though_old_is_no_better() {
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
            text.contains("Not enough data: new completed 0 requests in ")
                && text.contains("; 20 are needed."),
            "{text}"
        );
        assert_eq!(page(&proxy).await["analysis"]["verdict"], "inconclusive");
    }
}
