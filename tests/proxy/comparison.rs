//! What both generations are compared by: failed attempts by who failed them, and samples per kind of request.

use std::time::Duration;

use crate::rig::*;
use crossfade::analysis::{Counts, Side, Stratum};
use crossfade::state_api::Client as StateClient;

const FAILED: &str = "crossfade_failed_attempts_total";
/// Latencies count at once.
const AT_ONCE: &str = "analysis: {warmupSeconds: 0}";
/// No other target is tried.
const NO_FAILOVER: &str = "failover: {enabled: false}";

async fn counts(proxy: &Proxy) -> Counts {
    let address = proxy.admin.to_string();
    let client = StateClient::connect(&address, Duration::from_secs(5)).await;
    let told = client.unwrap().compare(false).await.unwrap();
    let told = told.expect("the proxy knows");
    assert_eq!(told.counts.len(), 1, "no past was asked for");
    told.counts[0].read()
}

/// Both sides over all strata, once `count` first attempts are over.
async fn sides(proxy: &Proxy, count: u64) -> [Side; 2] {
    until("the exchanges are over", async || {
        let sides = counts(proxy).await.total();
        (sides[0].attempts.ended + sides[1].attempts.ended == count).then_some(sides)
    })
    .await
}

/// Requests that began, and that failed.
fn figures(side: &Side) -> (u64, u64) {
    assert_eq!(side.attempts.started, side.attempts.ended);
    (side.attempts.started, side.attempts.failed)
}

#[tokio::test]
async fn what_new_fails_counts_against_it_though_old_recovers_it() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(500))).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for _ in 0..20 {
        let response = proxy.chat().await;
        assert_eq!((response.status, response.generation()), (200, "old"));
    }
    let [old_side, new_side] = sides(&proxy, 20).await;
    assert_eq!(
        figures(&old_side),
        (10, 0),
        "the recovered ones are no first attempts"
    );
    assert_eq!(figures(&new_side), (10, 10));
    assert_eq!(new_side.first_event.count(), 0);
    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum(FAILED, &[("generation", "new")]), 10.0);
    assert_eq!(metrics.sum(FAILED, &[("generation", "old")]), 0.0);
    let of_new = [("generation", "new"), ("cause", "server_error")];
    assert!(
        metrics.sum(FAILED, &of_new) >= 9.0,
        "{:?}",
        metrics.of(FAILED)
    );
    let moved = [("from", "new"), ("to", "old")];
    proxy.recovers(&moved, 10.0).await;
    proxy.recovers(&[("from", "old")], 0.0).await;

    let address = proxy.admin.to_string();
    let client = StateClient::connect(&address, Duration::from_secs(5)).await;
    let state = client.unwrap().get().await.unwrap();
    let failed = state.new.unwrap().failed_attempts.unwrap().counts;
    assert_eq!(failed.values().sum::<u64>(), 10, "{failed:?}");
    let failed = state.old.unwrap().failed_attempts.unwrap().counts;
    assert!(failed.is_empty(), "{failed:?}");
    let moves = state.recovered.iter();
    let moves: Vec<_> = moves.map(|moved| (&*moved.from, &*moved.to)).collect();
    assert!(
        !moves.is_empty() && moves.iter().all(|moved| *moved == ("new", "old")),
        "{moves:?}"
    );
    assert_eq!(
        state.recovered.iter().map(|moved| moved.count).sum::<u64>(),
        10
    );
}

#[tokio::test]
async fn each_failed_attempt_counts_once_whatever_failed_and_whoever_hears_of_it() {
    for (script, cause) in [
        (status(503), Some("unavailable")),
        (status(500), Some("server_error")),
        (empty_404(), Some("no_workers")),
        (error_first(503), Some("error_event")),
        (Script::new().sse().reset(), Some("broken")),
        (Script::new().reset(), Some("broken")),
        (Script::new().sse().event("data: x").reset(), None),
        (Script::new().sse().events(&content("new", 0)).eof(), None),
    ] {
        let old = Upstream::start(healthy("old")).await;
        let new = Upstream::start(serving(script)).await;
        let plan = PlanFile::new(&manifest(&new.url(), 0, 1, NO_FAILOVER));
        let proxy = Proxy::planned(&old, &plan, &[]).await;
        proxy.chat().await;
        let [_, side] = sides(&proxy, 1).await;
        assert_eq!(figures(&side), (1, 1), "{cause:?}");
        let metrics = proxy.metrics().await;
        let expected = f64::from(u8::from(cause.is_some()));
        assert_eq!(metrics.sum(FAILED, &[]), expected, "{cause:?}");
        if let Some(cause) = cause {
            let labels = [("generation", "new"), ("cause", cause)];
            assert_eq!(
                metrics.sum(FAILED, &labels),
                1.0,
                "{:?}",
                metrics.of(FAILED)
            );
        }
    }
}

#[tokio::test]
async fn a_connection_that_no_one_accepts_counts_against_its_generation() {
    let old = Upstream::start(healthy("old")).await;
    let nobody = Upstream::nobody().to_string();
    let args = ["--old", &old.url(), "--new", &nobody, "--split", "50"];
    let proxy = Proxy::start(&args).await;
    for _ in 0..10 {
        assert_eq!(proxy.chat().await.generation(), "old");
    }
    let [old_side, new_side] = sides(&proxy, 10).await;
    assert_eq!((figures(&old_side), figures(&new_side)), ((5, 0), (5, 5)));
    let labels = [("generation", "new"), ("cause", "connect")];
    proxy.counts(FAILED, &labels, 5.0).await;
}

#[tokio::test]
async fn what_no_server_did_counts_against_none() {
    let old = Upstream::start(healthy("old")).await;
    let gate = Gate::closed();
    let waits = Script::new().sse().events(&content("new", 0)).wait(&gate);
    let new = Upstream::start(serving(waits)).await;
    let more = [
        "--max-body-bytes",
        "1000",
        "--override-header",
        "x-generation",
    ];
    let proxy = Proxy::split_with(&old, &new, 100, &more).await;
    // The client leaves.
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    client.until(&content("new", 0)).await;
    drop(client);
    let [_, side] = sides(&proxy, 1).await;
    assert_eq!(figures(&side), (1, 0));
    // Not the split sends it to old, so it is not compared.
    let forced = [("x-generation", "old")];
    let response = client::post(proxy.address, CHAT, &forced, STREAMING).await;
    assert_eq!(response.generation(), "old");
    client::get(proxy.address, MODELS).await;
    proxy.outcomes("completed", 2).await;
    let [old_side, new_side] = counts(&proxy).await.total();
    assert_eq!((figures(&old_side), figures(&new_side)), ((0, 0), (1, 0)));
    assert_eq!(
        new_side.attempts.completed, 0,
        "the client did not stay to the end"
    );
    assert_eq!(proxy.metrics().await.sum(FAILED, &[]), 0.0);
}

#[tokio::test]
async fn streams_are_sampled_by_class_and_size_of_the_body() {
    let paced = |name: &'static str| {
        serving(stream_of(
            &(0..5).map(|index| content(name, index)).collect::<String>(),
        ))
    };
    let old = Upstream::start(paced("old")).await;
    let new = Upstream::start(paced("new")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 1, 1, AT_ONCE));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let padded = STREAMING.replace("hello", &"x".repeat(5000));
    for body in [STREAMING, &padded] {
        for _ in 0..4 {
            client::post(proxy.address, CHAT, &[], body).await;
        }
    }
    let [old_side, new_side] = sides(&proxy, 8).await;
    for side in [&old_side, &new_side] {
        assert_eq!(side.attempts.started, 4);
        assert_eq!(
            (side.first_event.count(), side.gap.count()),
            (4, 4),
            "one each"
        );
    }
    let counts = counts(&proxy).await.0;
    let strata: Vec<_> = counts.keys().cloned().collect();
    let stratum = |size| Stratum {
        class: "chat".into(),
        size,
    };
    assert_eq!(strata, [stratum(1), stratum(3)]);
}

#[tokio::test]
async fn latencies_of_a_server_of_new_that_was_added_just_now_do_not_count() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for _ in 0..4 {
        proxy.chat().await;
    }
    let [old_side, new_side] = sides(&proxy, 4).await;
    assert_eq!(
        (old_side.first_event.count(), new_side.first_event.count()),
        (2, 0)
    );
    assert_eq!((old_side.gap.count(), new_side.gap.count()), (2, 0));
    assert_eq!(new_side.attempts.started, 2, "its requests count");
}

#[tokio::test]
async fn the_past_is_reported_if_asked_for() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    let address = proxy.admin.to_string();
    let client = StateClient::connect(&address, Duration::from_secs(5))
        .await
        .unwrap();
    let told = until("a second has passed", async || {
        let told = client.compare(true).await.unwrap().unwrap();
        (told.counts.len() == 2).then_some(told)
    })
    .await;
    assert!(told.process.unwrap().started.is_some());
    let ages = told.counts.iter().map(|counts| counts.age.unwrap().seconds);
    let ages: Vec<_> = ages.collect();
    assert!(ages[0] >= 1 && ages[1] == 0, "{ages:?}");
}

#[tokio::test]
async fn another_new_generation_starts_without_a_record() {
    let old = Upstream::start(healthy("old")).await;
    let gate = Gate::closed();
    let waits = Script::new().sse().events(&content("new", 0)).wait(&gate);
    let bad = Upstream::start(serving(waits.reset())).await;
    let good = Upstream::start(healthy("new")).await;
    let plan = PlanFile::new(&manifest(&bad.url(), 0, 1, NO_FAILOVER));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let mut client = client::open_chat(proxy.address).await;
    let head = client.head().await;
    assert_eq!(counts(&proxy).await.total()[1].attempts.started, 1);
    // Another weight is no other generation.
    plan.write(&manifest(&bad.url(), 1, 1, NO_FAILOVER));
    proxy.counts("crossfade_plan_epoch", &[], 2.0).await;
    assert_eq!(counts(&proxy).await.total()[1].attempts.started, 1);

    plan.write(&manifest(&good.url(), 0, 1, NO_FAILOVER));
    proxy.counts("crossfade_plan_epoch", &[], 3.0).await;
    assert_eq!(counts(&proxy).await.total(), <[Side; 2]>::default());
    // What the earlier one does to its last stream is not this one's.
    gate.open();
    client.rest(head).await;
    proxy.outcomes("truncated", 1).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    let [_, new] = sides(&proxy, 1).await;
    assert_eq!(figures(&new), (1, 0));
}

/// New may refuse what old takes. Requests without a session go to either side by the split alone, so clients cannot cause that.
#[tokio::test]
async fn a_request_that_is_refused_counts_against_its_generation() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(422))).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for _ in 0..10 {
        proxy.chat().await;
    }
    let [old_side, new_side] = sides(&proxy, 10).await;
    assert_eq!((figures(&old_side), figures(&new_side)), ((5, 0), (5, 5)));
    assert_eq!(
        (old_side.attempts.completed, new_side.attempts.completed),
        (5, 0)
    );
    assert_eq!(new_side.attempts.unanswered, 0, "it is not tried on old");
    assert_eq!(proxy.metrics().await.sum(FAILED, &[]), 0.0);
}

/// A client knows where its session leads, and could send what any server refuses to new only.
#[tokio::test]
async fn a_refusal_in_a_session_says_nothing_of_a_generation() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(400))).await;
    let plan = manifest(&new.url(), 0, 1, "affinity: {headers: [x-session]}");
    let plan = PlanFile::new(&plan);
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    for session in ["one", "other"] {
        client::post(proxy.address, CHAT, &[("x-session", session)], STREAMING).await;
    }
    let [_, new_side] = sides(&proxy, 2).await;
    assert_eq!(figures(&new_side), (2, 0));
    assert_eq!(new_side.attempts.decided, 0, "it is no success either");
}

/// Nor does what fails there on any server: an unknown model, or a prompt that crashes its server.
#[tokio::test]
async fn a_failure_in_a_session_counts_once_the_other_generation_has_answered_the_request() {
    let answers = || chat_stream("old");
    let no_budget = "failover: {retryBudgetPercent: 0}";
    for (case, old, new, failover, failed) in [
        ("old answers it", answers(), status(503), "", 1),
        ("old fails it, too", status(503), status(503), "", 0),
        ("no such model", model_not_found(), model_not_found(), "", 0),
        ("without a budget", answers(), status(503), no_budget, 1),
        ("without failover", answers(), status(503), NO_FAILOVER, 1),
    ] {
        let old = Upstream::start(serving(old)).await;
        let new = Upstream::start(serving(new)).await;
        let more = format!("affinity: {{headers: [x-session]}}\n{failover}");
        let plan = PlanFile::new(&manifest(&new.url(), 0, 1, &more));
        let proxy = Proxy::planned(&old, &plan, &[]).await;
        client::post(proxy.address, CHAT, &[("x-session", "one")], STREAMING).await;
        let [_, side] = sides(&proxy, 1).await;
        assert_eq!(figures(&side), (1, failed), "{case}");
        assert_eq!(
            (side.attempts.decided, side.attempts.completed),
            (failed, 0),
            "{case}"
        );
    }
    // While the retry budget is used up, nothing is known of the others.
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(503))).await;
    let more = "affinity: {headers: [x-session]}\nfailover: {retryBudgetPercent: 1}";
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, more));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    for session in 0..20 {
        let session = session.to_string();
        client::post(proxy.address, CHAT, &[("x-session", &session)], STREAMING).await;
    }
    let [_, side] = sides(&proxy, 20).await;
    assert!((1..20).contains(&side.attempts.failed), "{side:?}");
    assert_eq!(side.attempts.decided, side.attempts.failed);
}

/// What is not tried on old has no control group while new gets all requests.
#[tokio::test]
async fn only_failures_of_a_kind_that_is_retried_are_compared_with_retries() {
    let old = Upstream::start(healthy("old")).await;
    for (script, unanswered) in [
        (status(503), 1),
        (status(529), 0),
        (status(400), 0),
        (error_first(400), 0),
        (Script::new().sse().reset(), 1),
    ] {
        let new = Upstream::start(serving(script)).await;
        let proxy = Proxy::split(&old, &new, 100).await;
        proxy.chat().await;
        let [old_side, new_side] = sides(&proxy, 1).await;
        assert_eq!(figures(&new_side), (1, 1));
        assert_eq!(
            (new_side.attempts.unanswered, old_side.attempts.retried),
            (unanswered, unanswered)
        );
    }
}

/// The second attempts that old gets are its figures while it gets no first ones.
#[tokio::test]
async fn second_attempts_on_old_are_counted_apart() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(500))).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    assert_eq!(proxy.chat().await.generation(), "old");
    let [old_side, new_side] = sides(&proxy, 1).await;
    assert_eq!(
        (
            old_side.attempts.started,
            old_side.attempts.retried,
            old_side.attempts.retries_failed
        ),
        (0, 1, 0)
    );
    assert_eq!(
        (new_side.attempts.failed, new_side.attempts.unanswered),
        (1, 1)
    );
    let failing = Upstream::start(serving(status(500))).await;
    let proxy = Proxy::split(&failing, &new, 100).await;
    assert_eq!(proxy.chat().await.status, 500);
    let [old_side, _] = sides(&proxy, 1).await;
    assert_eq!(
        (old_side.attempts.retried, old_side.attempts.retries_failed),
        (1, 1)
    );
}

/// What old recovers is an error of new, though no client sees it.
#[tokio::test]
async fn the_error_ratio_of_a_generation_has_what_another_one_completed() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(500))).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for _ in 0..120 {
        assert_eq!(proxy.chat().await.status, 200);
    }
    proxy.outcomes("completed", 120).await;
    let address = proxy.admin.to_string();
    let client = StateClient::connect(&address, Duration::from_secs(5)).await;
    let state = client.unwrap().get().await.unwrap();
    let ratio = |side: &Option<crossfade::state_api::v1::Generation>| {
        let recent = side.as_ref().unwrap().last_five_minutes.as_ref().unwrap();
        recent.error_ratio()
    };
    assert_eq!(
        (ratio(&state.old), ratio(&state.new)),
        (Some(0.0), Some(1.0))
    );
}

/// What is odd about the requests of one session is the session's doing.
#[tokio::test]
async fn a_session_counts_once_however_many_requests_it_sends() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let affinity = "affinity: {headers: [x-session]}";
    let plan = PlanFile::new(&manifest(&new.url(), 1, 1, affinity));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    for _ in 0..20 {
        for session in ["one", "other"] {
            client::post(proxy.address, CHAT, &[("x-session", session)], STREAMING).await;
        }
    }
    proxy.outcomes("completed", 40).await;
    let [old_side, new_side] = counts(&proxy).await.total();
    let all = old_side.attempts.started + new_side.attempts.started;
    // A minute may have begun meanwhile.
    assert!((2..=4).contains(&all), "{all}");
}

#[tokio::test]
async fn a_client_that_gives_up_has_waited_at_least_so_long() {
    let old = Upstream::start(healthy("old")).await;
    let gate = Gate::closed();
    let silent = Script::new().sse().wait(&gate);
    let hangs = Script::new().sse().events(&content("new", 0)).wait(&gate);
    for (script, has_content) in [(silent, false), (hangs, true)] {
        let new = Upstream::start(serving(script)).await;
        let plan = PlanFile::new(&manifest(&new.url(), 0, 1, AT_ONCE));
        let proxy = Proxy::planned(&old, &plan, &[]).await;
        let mut client = client::open_chat(proxy.address).await;
        if has_content {
            client.head().await;
            client.until(&content("new", 0)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(client);
        let [_, side] = sides(&proxy, 1).await;
        assert_eq!(figures(&side), (1, 0));
        let values = if has_content {
            side.gap
        } else {
            side.first_event
        };
        assert_eq!(values.count(), 1);
        assert!(
            values.quantile(0.5) > Some(0.25),
            "{:?}",
            values.quantile(0.5)
        );
    }
}
