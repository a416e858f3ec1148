//! The plan comes from a cluster: the update is edited, contested and deleted, and the API server is away.
//!
//! The API server is a fake; `tests/api_server` uses a real one.

use std::time::{Duration, Instant};

use crate::rig::*;
use serde_json::{Value, json};

async fn pair() -> (Upstream, Upstream) {
    (
        Upstream::start(healthy("old")).await,
        Upstream::start(healthy("new")).await,
    )
}

/// A spec with this percentage for `new`.
fn spec(new: &Upstream, percent: u8) -> Value {
    json!({
        "newFrontendService": new.url(), "trafficSplitPercent": percent, "sourceDeployment": "mine",
    })
}

async fn follow(api: &ApiServer, old: &Upstream, more: &[&str]) -> Proxy {
    follow_as("mine", api, old, more).await
}

/// Starts a proxy of this deployment.
async fn follow_as(deployment: &str, api: &ApiServer, old: &Upstream, more: &[&str]) -> Proxy {
    let old = old.url();
    let mut args = vec![
        "--old",
        &old,
        "--kube",
        "--kube-deployment",
        deployment,
        "--kube-namespace",
        "default",
    ];
    args.extend(more);
    if !more.contains(&"--cluster-domain") {
        args.push("--kube-allow-any-target");
    }
    let env = api.env();
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    Proxy::start_with_env(&args, &env).await
}

async fn plan(proxy: &Proxy) -> Value {
    proxy.admin("/plan").await.json()
}

async fn says(proxy: &Proxy, text: &str) {
    eventually(&format!("a line with {text:?}"), async || {
        proxy.lines().iter().any(|line| line.contains(text))
    })
    .await;
}

async fn is_ready(proxy: &Proxy) -> bool {
    proxy.admin("/readyz").await.status == 200
}

async fn lost(proxy: &Proxy) -> f64 {
    let metrics = proxy.metrics().await;
    metrics.sum("crossfade_plan_source_lost_seconds", &[])
}

#[tokio::test]
async fn an_edit_is_in_force_within_30_ms_and_the_delay_is_in_the_metrics() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 0));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    assert_eq!(plan(&proxy).await["identity"]["name"], "u");
    for edit in 1..=20u8 {
        let begin = Instant::now();
        api.apply("u", spec(&new, edit * 5));
        until("the edit is in force", async || {
            (plan(&proxy).await["trafficSplitPercent"] == edit * 5).then_some(())
        })
        .await;
        // Measured by the test, so this includes delays of the test itself.
        assert!(begin.elapsed() < Duration::from_millis(500));
    }
    proxy.serves("new").await;
    let metrics = proxy.metrics().await;
    let applied = |le: &str| metrics.sum("crossfade_plan_apply_seconds_bucket", &[("le", le)]);
    assert!(metrics.sum("crossfade_plan_apply_seconds_count", &[]) >= 20.0);
    assert!(applied("0.03") >= 19.0, "{}", metrics.text);
    // The first plan and twenty edits.
    assert_eq!(metrics.sum("crossfade_plan_generation", &[]), 21.0);
    assert_eq!(lost(&proxy).await, 0.0);
}

#[tokio::test]
async fn a_proxy_follows_only_the_update_of_its_own_deployment() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    let mut other = spec(&new, 100);
    other["sourceDeployment"] = json!("other");
    api.apply("a", other);
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    assert_eq!(proxy.chat().await.generation(), "old");
    api.apply("b", spec(&new, 100));
    proxy.serves("new").await;
    assert!(api.events().is_empty(), "{:?}", api.events());
}

#[tokio::test]
async fn the_first_plan_is_in_force_before_the_proxy_reports_that_it_serves() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    assert_eq!(proxy.chat().await.generation(), "new");
}

#[tokio::test]
async fn while_the_api_server_is_away_the_last_good_plan_stays_and_its_age_is_shown() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    api.stop().await;
    eventually("the change is noticed", async || lost(&proxy).await > 0.0).await;
    assert!(plan(&proxy).await["sourceLostSeconds"].as_f64().unwrap() > 0.0);
    assert_eq!(proxy.chat().await.generation(), "new");
    assert!(is_ready(&proxy).await);
    says(&proxy, "cannot watch updates").await;
    // Changes during the outage are applied.
    api.apply("u", spec(&new, 0));
    api.restart().await;
    proxy.serves("old").await;
    eventually("it is restored", async || lost(&proxy).await == 0.0).await;
    assert_eq!(plan(&proxy).await["sourceLostSeconds"], Value::Null);
    says(&proxy, "the watch on updates has recovered").await;
}

#[tokio::test]
async fn contact_is_restored_although_nothing_has_changed() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    for status in [503, 403, 500] {
        api.fault(Some(status));
        eventually("the loss is noticed", async || lost(&proxy).await > 0.0).await;
        api.fault(None);
        eventually("it is restored", async || lost(&proxy).await == 0.0).await;
    }
    assert_eq!(proxy.chat().await.generation(), "new");
    assert_eq!(
        api.lists_and_watches().0,
        1,
        "the watch must resume without a new list"
    );
}

#[tokio::test]
async fn a_watch_that_ends_is_resumed_and_one_that_has_expired_lists_again() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 0));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    api.end_watches();
    api.watched(2).await;
    api.apply("u", spec(&new, 100));
    proxy.serves("new").await;
    assert_eq!(api.lists_and_watches().0, 1);
    // The history is gone (410), so the proxy lists again and finds what it missed.
    api.stop().await;
    api.compact();
    api.apply("u", spec(&new, 0));
    api.compact();
    api.restart().await;
    proxy.serves("old").await;
    assert_eq!(api.lists_and_watches().0, 2);
    assert_eq!(lost(&proxy).await, 0.0);
}

#[tokio::test]
async fn an_api_server_that_ends_each_watch_at_once_is_not_flooded() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 0));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    api.cut_watches(true);
    // Longer than the burst takes.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (lists, watches) = api.lists_and_watches();
    assert_eq!(lists, 1);
    assert!((5..15).contains(&watches), "{watches}");
    api.apply("u", spec(&new, 100));
    api.cut_watches(false);
    proxy.serves("new").await;

    let proxy = follow(&api, &old, &[]).await;
    api.expire_watches();
    let before = api.lists_and_watches();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = api.lists_and_watches();
    let requests = after.0 + after.1 - before.0 - before.1;
    // Of two proxies.
    assert!((10..30).contains(&requests), "{requests}");
    proxy.serves("new").await;
}

#[tokio::test]
async fn a_proxy_starts_without_an_api_server_and_serves_old() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    api.stop().await;
    let begin = Instant::now();
    let proxy = follow(&api, &old, &[]).await;
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(is_ready(&proxy).await);
    assert_eq!(proxy.chat().await.generation(), "old");
    eventually("the loss is shown", async || lost(&proxy).await > 0.0).await;
    api.restart().await;
    proxy.serves("new").await;
}

#[tokio::test]
async fn a_proxy_starts_without_an_api_server_and_serves_the_last_good_plan() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    let kept = tempfile::tempdir().unwrap();
    let directory = kept.path().display().to_string();
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &["--state-dir", &directory]).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    drop(proxy);
    api.stop().await;
    let proxy = follow(&api, &old, &["--state-dir", &directory]).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    // The update was deleted meanwhile. Old responds, so all requests go there and the stored plan is removed.
    api.delete("u");
    api.restart().await;
    proxy.serves("old").await;
    let file = kept.path().join("last-good-plan.json");
    eventually("nothing is stored", async || !file.exists()).await;
    drop(proxy);
    api.stop().await;
    let proxy = follow(&api, &old, &["--state-dir", &directory]).await;
    assert_eq!(proxy.chat().await.generation(), "old");
}

#[tokio::test]
async fn the_last_good_plan_is_replaced_by_the_clusters_once_the_api_server_is_back() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    let kept = tempfile::tempdir().unwrap();
    let directory = kept.path().display().to_string();
    api.apply("u", spec(&new, 100));
    drop(follow(&api, &old, &["--state-dir", &directory]).await);
    api.stop().await;
    let proxy = follow(&api, &old, &["--state-dir", &directory]).await;
    let page = plan(&proxy).await;
    assert!(
        page["source"]
            .as_str()
            .unwrap()
            .ends_with("last-good-plan.json"),
        "{page}"
    );
    // All fields have an effect in a cluster, so there are no remarks about them, even for a stored plan.
    assert_eq!(page["withoutEffect"], json!([]));
    api.restart().await;
    eventually("the page shows the source", async || {
        plan(&proxy).await["source"] == "cluster: default/u"
    })
    .await;
    let again = plan(&proxy).await;
    assert_eq!(
        (&again["epoch"], &again["since"]),
        (&page["epoch"], &page["since"])
    );
}

#[tokio::test]
async fn a_stored_plan_is_validated_against_the_current_flags() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    let kept = tempfile::tempdir().unwrap();
    let directory = kept.path().display().to_string();
    let state = ["--state-dir", &directory];
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &state).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    drop(proxy);
    api.stop().await;
    // As another deployment, and without the flag that allowed the target outside the namespace.
    let other = follow_as("other", &api, &old, &state).await;
    assert_eq!(other.chat().await.generation(), "old");
    says(&other, "belongs to another deployment").await;
    let within = [&state[..], &["--cluster-domain", "cluster.local"]].concat();
    let proxy = follow(&api, &old, &within).await;
    assert_eq!(proxy.chat().await.generation(), "old");
    says(&proxy, "only Services of namespace 'default' are allowed").await;
}

#[tokio::test]
async fn an_unresolvable_name_does_not_delay_edits() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 0));
    let proxy = follow(&api, &old, &["--old-peers", "http://nobody.invalid:1"]).await;
    api.watched(1).await;
    for edit in 1..=10u8 {
        api.apply("u", spec(&new, edit * 10));
        until("the edit is in force", async || {
            (plan(&proxy).await["trafficSplitPercent"] == edit * 10).then_some(())
        })
        .await;
    }
    let metrics = proxy.metrics().await;
    let within = [("le", "0.1")];
    let quick = metrics.sum("crossfade_plan_apply_seconds_bucket", &within);
    assert!(quick >= 9.0, "{}", metrics.text);
}

#[tokio::test]
async fn certificates_are_checked_against_the_names_as_written() {
    let api = ApiServer::start().await;
    let old = Upstream::start(healthy("old")).await;
    let authority = crate::rig::tls::Authority::new();
    let of = |name: &str| {
        let files = authority.issue_for(name, &[name]);
        authority.server(&files, &["http/1.1"], false)
    };
    let new = Upstream::listen("127.0.0.1:0", Some(of("new")), healthy("new")).await;
    let more = Upstream::listen("127.0.0.2:0", Some(of("more.default")), healthy("more")).await;
    api.slice("new", new.address.port(), &["127.0.0.1"]);
    api.slice("more", more.address.port(), &["127.0.0.2"]);
    let to = |targets: &str| json!({"newFrontendService": targets, "trafficSplitPercent": 100, "sourceDeployment": "mine"});
    api.apply("u", to("https://new:8000"));
    let ca = authority.file();
    let flags = [
        "--kube-endpoints",
        "--cluster-domain",
        "cluster.local",
        "--upstream-ca",
        &ca,
    ];
    let proxy = follow(&api, &old, &flags).await;
    let serves = async |server: &Upstream| {
        let before = server.count();
        eventually("it serves", async || {
            proxy.chat().await;
            server.count() > before
        })
        .await;
    };
    serves(&new).await;
    // Each target has its own name.
    api.apply("u", to("https://new:8000,https://more.default:8000"));
    serves(&more).await;
    serves(&new).await;
    // A name that is not on the certificate: old recovers the requests.
    api.apply("u", to("https://new.default:8000"));
    serves(&old).await;
    let mut named = to("https://new.default:8000");
    named["tls"] = json!({"serverName": "new"});
    api.apply("u", named);
    serves(&new).await;
}

#[tokio::test]
async fn a_proxy_without_an_update_reports_which_deployment_it_looks_for() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    let proxy = follow(&api, &old, &[]).await;
    says(&proxy, "following the updates of the namespace").await;
    let remark = "no update of namespace 'default' names 'mine' in spec.sourceDeployment";
    eventually("the remark", async || {
        plan(&proxy).await["remarks"] == json!([remark])
    })
    .await;
    api.apply("u", spec(&new, 100));
    eventually("no remark", async || {
        plan(&proxy).await["remarks"] == json!([])
    })
    .await;
}

#[tokio::test]
async fn a_bad_update_changes_nothing_and_is_reported_in_log_metric_page_and_one_event() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    let other = follow(&api, &old, &[]).await;
    api.watched(2).await;
    api.apply("u", spec(&new, 101));
    for proxy in [&proxy, &other] {
        proxy
            .counts("crossfade_plans_rejected_total", &[], 1.0)
            .await;
        says(proxy, "must be from 0 to 100, not 101").await;
        let page = plan(proxy).await;
        assert_eq!(
            page["lastRejection"]["problems"][0]["path"],
            "spec.trafficSplitPercent"
        );
        assert_eq!(proxy.chat().await.generation(), "new");
    }
    let note = api.event("Invalid").await;
    assert!(
        note.contains("spec.trafficSplitPercent: must be from 0 to 100, not 101"),
        "{note}"
    );
    assert!(
        note.ends_with("The last good plan stays in force."),
        "{note}"
    );
    // Both proxies have written it, and there is one Event.
    eventually("both proxies have written", async || api.event_tries() == 2).await;
    assert_eq!(api.events().len(), 1);
    // A change outside of the spec causes no new report. A fix clears the page.
    api.phase("u", "Degraded");
    api.apply("u", spec(&new, 0));
    proxy.serves("old").await;
    assert_eq!(plan(&proxy).await["lastRejection"], Value::Null);
    assert_eq!(
        proxy
            .metrics()
            .await
            .sum("crossfade_plans_rejected_total", &[]),
        1.0
    );
}

#[tokio::test]
async fn a_target_outside_the_namespace_is_rejected() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &["--cluster-domain", "cluster.local"]).await;
    let note = api.event("Invalid").await;
    assert!(
        note.contains("only Services of namespace 'default' are allowed"),
        "{note}"
    );
    assert_eq!(proxy.chat().await.generation(), "old");
}

#[tokio::test]
async fn unusable_certificates_make_an_update_invalid_also_at_startup() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    let mut bad = spec(&new, 100);
    bad["newFrontendService"] = json!("https://127.0.0.1:1");
    bad["tls"] = json!({"caFile": "/nowhere.pem"});
    api.apply("u", bad);
    let proxy = follow(&api, &old, &[]).await;
    assert_eq!(proxy.chat().await.generation(), "old");
    let note = api.event("Invalid").await;
    assert!(note.contains("spec.tls"), "{note}");
    api.apply("u", spec(&new, 100));
    proxy.serves("new").await;
}

#[tokio::test]
async fn an_endless_certificate_file_makes_an_update_invalid() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    let mut bad = spec(&new, 0);
    bad["newFrontendService"] = json!("https://127.0.0.1:1");
    bad["tls"] = json!({"caFile": "/dev/zero"});
    api.apply("u", bad);
    let note = api.event("Invalid").await;
    assert!(note.contains("/dev/zero is not a regular file"), "{note}");
    assert_eq!(proxy.chat().await.generation(), "new");
}

#[tokio::test]
async fn missing_certificates_are_reported_once_and_used_when_they_appear() {
    let (api, old) = (
        ApiServer::start().await,
        Upstream::start(healthy("old")).await,
    );
    let authority = crate::rig::tls::Authority::new();
    let config = authority.server(&authority.issue("new"), &["http/1.1"], false);
    let new = Upstream::listen("127.0.0.1:0", Some(config), healthy("new")).await;
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("ca.pem");
    let mut early = spec(&new, 100);
    early["newFrontendService"] = json!(format!("https://{}", new.address));
    early["tls"] = json!({"caFile": file});
    api.apply("u", spec(&new, 0));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    api.apply("u", early);
    let note = api.event("Invalid").await;
    assert!(note.contains("ca.pem: No such file"), "{note}");
    // The status is written repeatedly.
    for phase in ["Pending", "Degraded", "Pending"] {
        api.phase("u", phase);
    }
    api.end_watches();
    api.watched(2).await;
    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum("crossfade_plans_rejected_total", &[]), 1.0);
    assert_eq!(api.event_tries(), 1);
    assert_eq!(proxy.chat().await.generation(), "old");
    std::fs::copy(authority.file(), &file).unwrap();
    proxy.serves("new").await;
    assert_eq!(plan(&proxy).await["lastRejection"], Value::Null);
    // The deletion of this update has an effect.
    api.delete("u");
    proxy.serves("old").await;
}

#[tokio::test]
async fn faults_that_only_a_proxy_can_detect_are_reported_by_an_event() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    for (change, expected) in [
        (json!({"newFrontendService": "new:0"}), "has the port '0'"),
        (
            json!({"newFrontendService": "new:99999"}),
            "has the port '99999'",
        ),
        (
            json!({"newFrontendService": "new:1,new:1"}),
            "names http://new:1 twice",
        ),
        (json!({"newFrontendService": "-a:1"}), "is not a DNS name"),
        (
            json!({"newFrontendService": "1.2.3:1"}),
            "is not an IPv4 address",
        ),
        (
            json!({"newFrontendService": "a:1,https://b"}),
            "mixes http and https",
        ),
        (
            json!({"newFrontendService": "https://a", "tls": {"serverName": "a..b"}}),
            "spec.tls.serverName",
        ),
        (json!({"probe": {"path": "/%\u{7f}"}}), "spec.probe.path"),
    ] {
        let mut bad = spec(&new, 0);
        for (field, value) in change.as_object().unwrap() {
            bad[field] = value.clone();
        }
        api.apply("u", bad);
        eventually(&format!("an Event with {expected:?}"), async || {
            let mut events = api.events().into_iter();
            events.any(|(reason, note)| reason == "Invalid" && note.contains(expected))
        })
        .await;
        assert_eq!(proxy.chat().await.generation(), "new", "{change}");
    }
}

#[tokio::test]
async fn a_proxy_serves_old_until_the_resource_definition_exists_and_then_follows() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    api.fault(Some(404));
    let proxy = follow(&api, &old, &[]).await;
    assert!(is_ready(&proxy).await);
    assert_eq!(proxy.chat().await.generation(), "old");
    eventually("it is shown", async || lost(&proxy).await > 0.0).await;
    api.fault(None);
    proxy.serves("new").await;
}

#[tokio::test]
async fn when_read_permission_is_revoked_the_current_update_stays_in_force() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    api.fault(Some(403));
    says(&proxy, "cannot watch updates").await;
    eventually("the change is noticed", async || lost(&proxy).await > 0.0).await;
    // An update that cannot be read is not treated as deleted.
    assert_eq!(proxy.chat().await.generation(), "new");
    api.delete("u");
    for _ in 0..10 {
        assert_eq!(proxy.chat().await.generation(), "new");
    }
    api.fault(None);
    proxy.serves("old").await;
}

#[tokio::test]
async fn an_update_that_conflicts_with_two_others_is_reported_for_both() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("a", spec(&new, 0));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    api.apply("b", spec(&new, 100));
    api.apply("c", spec(&new, 0));
    let wait_for_conflict = async |text: &str| {
        eventually(text, async || {
            let mut events = api.events().into_iter();
            events.any(|(reason, note)| reason == "Conflict" && note.contains(text))
        })
        .await;
    };
    wait_for_conflict("'c' has no effect: the older 'a' controls").await;
    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum("crossfade_plan_conflicts", &[]), 2.0);
    api.delete("a");
    wait_for_conflict("'c' has no effect: the older 'b' controls").await;
    proxy.serves("new").await;
    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum("crossfade_plan_conflicts", &[]), 1.0);
}

#[tokio::test]
async fn the_older_of_two_updates_controls_until_the_younger_supersedes_it() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("b", spec(&new, 0));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    api.apply("a", spec(&new, 100));
    let note = api.event("Conflict").await;
    assert!(
        note.contains("'a' has no effect: the older 'b' controls"),
        "{note}"
    );
    says(&proxy, "'a' has no effect").await;
    let remark = plan(&proxy).await["remarks"][0].clone();
    assert!(
        remark.as_str().unwrap().contains("'a' has no effect"),
        "{remark}"
    );
    assert_eq!(proxy.chat().await.generation(), "old");
    let mut superseding = spec(&new, 100);
    superseding["supersedes"] = json!("b");
    api.apply("a", superseding);
    proxy.serves("new").await;
    eventually("the conflict is over", async || {
        plan(&proxy).await["remarks"] == json!([])
    })
    .await;
    // The superseded update may be deleted.
    api.delete("b");
    api.apply("c", spec(&new, 0));
    says(&proxy, "'c' has no effect: the older 'a' controls").await;
    assert_eq!(proxy.chat().await.generation(), "new");
}

#[tokio::test]
async fn when_the_update_is_deleted_and_old_responds_all_requests_go_to_old() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    api.delete("u");
    proxy.serves("old").await;
    let note = api.event("DeletedAllToOld").await;
    assert!(
        note.contains("old responds and gets all requests"),
        "{note}"
    );
    assert_eq!(plan(&proxy).await["identity"]["name"], Value::Null);
    // The next update starts like the first.
    api.apply("v", spec(&new, 100));
    proxy.serves("new").await;
}

#[tokio::test]
async fn when_the_update_is_deleted_and_old_is_silent_new_keeps_its_share() {
    let new = Upstream::start(healthy("new")).await;
    // Old accepts connections and never responds.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let old = format!("http://{}", silent.local_addr().unwrap());
    let api = ApiServer::start().await;
    api.apply("u", spec(&new, 100));
    let env = api.env();
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let args = [
        "--old",
        &old,
        "--kube",
        "--kube-deployment",
        "mine",
        "--kube-namespace",
        "default",
        "--kube-allow-any-target",
    ];
    let proxy = Proxy::start_with_env(&args, &env).await;
    api.watched(1).await;
    api.delete("u");
    let note = api.event("DeletedNewKept").await;
    assert!(note.contains("new keeps its share"), "{note}");
    assert_eq!(proxy.chat().await.generation(), "new");
    let remark = plan(&proxy).await["remarks"][0].clone();
    assert!(
        remark.as_str().unwrap().contains("new keeps its share"),
        "{remark}"
    );
}

/// The response of old to the query, and whether it then gets all requests.
#[tokio::test]
async fn when_the_update_is_deleted_old_gets_all_requests_unless_it_responds_that_it_cannot_serve()
{
    for (shown, response, answers) in [
        ("models", models(&["tiny"]), true),
        ("404", model_not_found(), true),
        (
            "no list",
            Script::new().answer(200, "text/plain", "hello"),
            true,
        ),
        ("401", status(401), true),
        ("no model", models(&[]), false),
        ("503", status(503), false),
    ] {
        let new = Upstream::start(healthy("new")).await;
        let serves = healthy("old");
        let old = Upstream::start(move |received| match &*received.target {
            MODELS => response.clone(),
            // The plan requires a model that only new has.
            target if target.contains("only-new") => model_not_found(),
            _ => serves(received),
        });
        let old = old.await;
        let api = ApiServer::start().await;
        let mut probed = spec(&new, 100);
        probed["probe"] = json!({"model": "only-new"});
        api.apply("u", probed);
        let proxy = follow(&api, &old, &[]).await;
        api.watched(1).await;
        api.delete("u");
        let (reason, serving) = match answers {
            true => ("DeletedAllToOld", "old"),
            false => ("DeletedNewKept", "new"),
        };
        api.event(reason).await;
        eventually(shown, async || proxy.chat().await.generation() == serving).await;
    }
}

#[tokio::test]
async fn a_bad_successor_does_not_keep_a_deleted_update_in_force() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("a", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    api.apply("b", spec(&new, 101));
    says(&proxy, "'b' has no effect").await;
    api.delete("a");
    api.event("DeletedAllToOld").await;
    proxy.serves("old").await;
    // The error of the other update stays reported.
    let note = api.event("Invalid").await;
    assert!(note.contains("must be from 0 to 100"), "{note}");
    let page = plan(&proxy).await;
    assert_eq!(page["lastRejection"]["source"], "cluster: default/b");
    api.apply("b", spec(&new, 100));
    proxy.serves("new").await;
    assert_eq!(plan(&proxy).await["lastRejection"], Value::Null);
}

#[tokio::test]
async fn an_update_whose_deployment_is_edited_is_reported_as_far_as_the_proxy_knows() {
    // A proxy that watches only its own updates cannot distinguish this from a deletion.
    for (selects, expected) in [
        (
            true,
            "update 'u' was deleted or no longer names this deployment",
        ),
        (false, "update 'u' no longer names this deployment"),
    ] {
        let (api, (old, new)) = (ApiServer::start().await, pair().await);
        if !selects {
            api.cannot_select();
        }
        api.apply("u", spec(&new, 100));
        let proxy = follow(&api, &old, &[]).await;
        api.watched(1).await;
        let mut other = spec(&new, 100);
        other["sourceDeployment"] = json!("other");
        api.apply("u", other);
        let note = api.event("DeletedAllToOld").await;
        assert!(note.starts_with(expected), "{note}");
        proxy.serves("old").await;
        // Edited back.
        api.apply("u", spec(&new, 100));
        proxy.serves("new").await;
    }
}

#[tokio::test]
async fn a_proxy_of_one_deployment_does_not_watch_the_updates_of_others() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    let mut other = spec(&new, 100);
    other["sourceDeployment"] = json!("other");
    api.apply("other", other.clone());
    api.apply("u", spec(&new, 0));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    for _ in 0..5 {
        api.phase("other", "Progressing");
    }
    api.apply("u", spec(&new, 100));
    proxy.serves("new").await;
    assert_eq!(api.events_sent(), 1);
    // A field selector cannot select several names.
    let both = follow_as("mine,mine-too", &api, &old, &[]).await;
    api.watched(2).await;
    api.phase("other", "Draining");
    eventually("the summary reports it", async || api.events_sent() == 2).await;
    assert_eq!(both.chat().await.generation(), "new");
}

#[tokio::test]
async fn without_field_selectors_a_proxy_watches_all_updates() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    // The definition is downgraded while the proxy watches.
    api.cannot_select();
    says(&proxy, "cannot select updates by spec.sourceDeployment").await;
    api.apply("u", spec(&new, 0));
    proxy.serves("old").await;
    let lines = proxy.lines();
    assert!(
        !lines
            .iter()
            .any(|line| line.contains("cannot watch updates")),
        "{lines:#?}"
    );
    // The same for a proxy that starts now.
    let late = follow(&api, &old, &[]).await;
    api.apply("u", spec(&new, 100));
    late.serves("new").await;
    assert_eq!(lost(&late).await, 0.0);
}

#[tokio::test]
async fn a_deletion_also_clears_a_rejection() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    api.apply("u", spec(&new, 101));
    proxy
        .counts("crossfade_plans_rejected_total", &[], 1.0)
        .await;
    api.delete("u");
    proxy.serves("old").await;
    assert_eq!(plan(&proxy).await["lastRejection"], Value::Null);
}

#[tokio::test]
async fn a_new_update_ends_the_query_of_old() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    api.delete("u");
    api.apply("u", spec(&new, 100));
    eventually("the new one is in force", async || {
        let page = plan(&proxy).await;
        page["identity"]["generation"] == 1 && page["trafficSplitPercent"] == 100
    })
    .await;
    assert_eq!(proxy.chat().await.generation(), "new");
}

#[tokio::test]
async fn nothing_is_retried_on_old_once_the_controller_lets_it_drain() {
    let new = Upstream::start(serving(status(503))).await;
    let old = Upstream::start(healthy("old")).await;
    let api = ApiServer::start().await;
    api.apply("u", spec(&new, 100));
    let proxy = follow(&api, &old, &[]).await;
    api.watched(1).await;
    assert_eq!(proxy.chat().await.generation(), "old", "saved");
    api.phase("u", "Draining");
    eventually("old drains", async || proxy.chat().await.status == 503).await;
}

#[tokio::test]
async fn many_proxies_write_one_event() {
    let (api, (old, new)) = (ApiServer::start().await, pair().await);
    api.apply("u", spec(&new, 0));
    let mut proxies = Vec::new();
    for _ in 0..8 {
        proxies.push(follow(&api, &old, &[]).await);
    }
    api.watched(8).await;
    api.apply("u", spec(&new, 200));
    eventually("all have written", async || api.event_tries() == 8).await;
    assert_eq!(api.events().len(), 1);
}

#[tokio::test]
async fn the_addresses_behind_the_service_are_balanced_and_followed() {
    let old = Upstream::start(healthy("old")).await;
    let first = Upstream::start(healthy("new")).await;
    let port = first.address.port();
    let second = Upstream::listen(&format!("127.0.0.2:{port}"), None, healthy("new")).await;
    let api = ApiServer::start().await;
    let mut to_new = spec(&first, 100);
    to_new["newFrontendService"] = json!("new:8000");
    api.apply("u", to_new);
    api.slice("new", port, &["127.0.0.1", "127.0.0.2"]);
    let proxy = follow(
        &api,
        &old,
        &["--kube-endpoints", "--cluster-domain", "cluster.local"],
    )
    .await;
    proxy.serves("new").await;
    let (one, two) = (first.count(), second.count());
    for _ in 0..40 {
        assert_eq!(proxy.chat().await.generation(), "new");
    }
    let (one, two) = (first.count() - one, second.count() - two);
    assert!(one > 5 && two > 5, "{one} {two}");
    // One address is removed.
    api.slice("new", port, &["127.0.0.2"]);
    eventually("only the second is left", async || {
        let before = first.count();
        for _ in 0..10 {
            proxy.chat().await;
        }
        first.count() == before
    })
    .await;
    assert_eq!(proxy.chat().await.generation(), "new");
}

#[tokio::test]
async fn after_the_store_of_the_api_server_was_restored_updates_and_addresses_are_followed() {
    let old = Upstream::start(healthy("old")).await;
    let first = Upstream::start(healthy("new")).await;
    let port = first.address.port();
    let second = Upstream::listen(&format!("127.0.0.2:{port}"), None, healthy("new")).await;
    let api = ApiServer::start().await;
    let mut to_new = spec(&first, 100);
    to_new["newFrontendService"] = json!("new:8000");
    api.apply("u", to_new.clone());
    api.slice("new", port, &["127.0.0.1"]);
    let proxy = follow(
        &api,
        &old,
        &["--kube-endpoints", "--cluster-domain", "cluster.local"],
    )
    .await;
    proxy.serves("new").await;
    api.restore();
    api.slice("new", port, &["127.0.0.2"]);
    eventually("the other address is used", async || {
        proxy.chat().await;
        second.count() > 0
    })
    .await;
    to_new["trafficSplitPercent"] = json!(0);
    api.apply("u", to_new);
    proxy.serves("old").await;
}

#[test]
fn invalid_cluster_flags_are_explained() {
    for (args, reason) in [
        (&["--kube"][..], "--kube-deployment"),
        (
            &["--kube", "--kube-deployment", ""],
            "does the pod have the label",
        ),
        (
            &["--kube", "--kube-deployment", "a,"],
            "does the pod have the label",
        ),
        (
            &["--kube", "--kube-deployment", "d", "--new", "n:1"],
            "cannot be used with",
        ),
        (
            &["--kube", "--kube-deployment", "d", "--plan", "p"],
            "cannot be used with",
        ),
        (
            &["--kube", "--kube-deployment", "d", "--hold", "1"],
            "cannot be used with",
        ),
        (
            &[
                "--kube",
                "--kube-deployment",
                "d",
                "--cluster-domain",
                "1.2.3.4",
            ],
            "is not a domain",
        ),
    ] {
        let mut all = vec!["proxy", "--old", "o:1"];
        all.extend(args);
        let output = crate::rig::proxy::run(&all);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(reason), "{args:?}: {text}");
    }
}

/// As the process with the ID 1 of a container, it would not get signals for which it has no handler.
#[test]
fn a_signal_during_the_start_is_handled() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    let mut kubeconfig = tempfile::NamedTempFile::new().unwrap();
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    std::io::Write::write_all(&mut kubeconfig, config.to_string().as_bytes()).unwrap();
    let proxy: &[&str] = &[
        "proxy",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--old",
        "127.0.0.1:9",
        "--kube",
        "--kube-deployment",
        "a",
        "--kube-namespace",
        "n",
    ];
    let controller: &[&str] = &["controller", "--admin", "127.0.0.1:0", "--namespace", "n"];
    for args in [proxy, controller] {
        let child = crate::rig::proxy::program()
            .args(args)
            .env("KUBECONFIG", kubeconfig.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It waits for a response from now on.
        let _connection = silent.accept().unwrap();
        let pid = libc::pid_t::try_from(child.id()).unwrap();
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    }
}
