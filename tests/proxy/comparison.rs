//! The data by which generations are compared: failed attempts by generation, and latency samples by kind of request.

use std::time::Duration;

use crate::rig::*;
use crossfade::analysis::{Counts, GenerationCounts, Stratum};
use crossfade::state_api::Client as StateClient;

const FAILED: &str = "crossfade_failed_attempts_total";
/// Latencies count from the start.
const AT_ONCE: &str = "analysis: {warmupSeconds: 0}";
/// Requests are not retried on another target.
const NO_FAILOVER: &str = "failover: {enabled: false}";

async fn counts(proxy: &Proxy) -> Counts {
    let address = proxy.admin.to_string();
    let client = StateClient::connect(&address, Duration::from_secs(5)).await;
    let reply = client.unwrap().compare(false).await.unwrap();
    let reply = reply.expect("the proxy knows");
    assert_eq!(reply.counts.len(), 1, "past counts were not requested");
    reply.counts[0].read()
}

/// Waits for `count` first attempts, and returns both generations summed over all strata.
async fn generations(proxy: &Proxy, count: u64) -> [GenerationCounts; 2] {
    until("the exchanges are over", async || {
        let generations = counts(proxy).await.total();
        (generations[0].attempts.ended + generations[1].attempts.ended == count)
            .then_some(generations)
    })
    .await
}

/// The numbers of started and of failed requests.
fn figures(generation: &GenerationCounts) -> (u64, u64) {
    assert_eq!(generation.attempts.started, generation.attempts.ended);
    (generation.attempts.started, generation.attempts.failed)
}

#[tokio::test]
async fn a_failure_of_new_counts_against_it_although_old_recovers_the_request() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(500))).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for _ in 0..20 {
        let response = proxy.chat().await;
        assert_eq!((response.status, response.generation()), (200, "old"));
    }
    let [old, new] = generations(&proxy, 20).await;
    assert_eq!(
        figures(&old),
        (10, 0),
        "the recovered ones are no first attempts"
    );
    assert_eq!(figures(&new), (10, 10));
    assert_eq!(new.first_event.count(), 0);
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
async fn each_failed_attempt_counts_once_regardless_of_the_cause() {
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
        let [_, generation] = generations(&proxy, 1).await;
        assert_eq!(figures(&generation), (1, 1), "{cause:?}");
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
async fn a_refused_connection_counts_against_its_generation() {
    let old = Upstream::start(healthy("old")).await;
    let nobody = Upstream::nobody().to_string();
    let args = ["--old", &old.url(), "--new", &nobody, "--split", "50"];
    let proxy = Proxy::start(&args).await;
    for _ in 0..10 {
        assert_eq!(proxy.chat().await.generation(), "old");
    }
    let [old, new] = generations(&proxy, 10).await;
    assert_eq!((figures(&old), figures(&new)), ((5, 0), (5, 5)));
    let labels = [("generation", "new"), ("cause", "connect")];
    proxy.counts(FAILED, &labels, 5.0).await;
}

#[tokio::test]
async fn failures_that_no_server_caused_count_against_no_generation() {
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
    // The client disconnects.
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    client.until(&content("new", 0)).await;
    drop(client);
    let [_, generation] = generations(&proxy, 1).await;
    assert_eq!(figures(&generation), (1, 0));
    // The split does not assign this request, so it is not compared.
    let forced = [("x-generation", "old")];
    let response = client::post(proxy.address, CHAT, &forced, STREAMING).await;
    assert_eq!(response.generation(), "old");
    client::get(proxy.address, MODELS).await;
    proxy.outcomes("completed", 2).await;
    let [old, new] = counts(&proxy).await.total();
    assert_eq!((figures(&old), figures(&new)), ((0, 0), (1, 0)));
    assert_eq!(
        new.attempts.completed, 0,
        "the client disconnected before the end"
    );
    assert_eq!(proxy.metrics().await.sum(FAILED, &[]), 0.0);
}

#[tokio::test]
async fn streams_are_sampled_by_class_and_body_size() {
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
    let [old, new] = generations(&proxy, 8).await;
    for generation in [&old, &new] {
        assert_eq!(generation.attempts.started, 4);
        assert_eq!(
            (generation.first_event.count(), generation.gap.count()),
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
async fn latencies_of_a_new_server_that_was_just_added_do_not_count() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for _ in 0..4 {
        proxy.chat().await;
    }
    let [old, new] = generations(&proxy, 4).await;
    assert_eq!((old.first_event.count(), new.first_event.count()), (2, 0));
    assert_eq!((old.gap.count(), new.gap.count()), (2, 0));
    assert_eq!(new.attempts.started, 2, "its requests count");
}

#[tokio::test]
async fn past_counts_are_reported_on_request() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    let address = proxy.admin.to_string();
    let client = StateClient::connect(&address, Duration::from_secs(5))
        .await
        .unwrap();
    let reply = until("a second has passed", async || {
        let reply = client.compare(true).await.unwrap().unwrap();
        (reply.counts.len() == 2).then_some(reply)
    })
    .await;
    assert!(reply.process.unwrap().started.is_some());
    let ages = reply
        .counts
        .iter()
        .map(|counts| counts.age.unwrap().seconds);
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
    // Another weight does not make another generation.
    plan.write(&manifest(&bad.url(), 1, 1, NO_FAILOVER));
    proxy.counts("crossfade_plan_epoch", &[], 2.0).await;
    assert_eq!(counts(&proxy).await.total()[1].attempts.started, 1);

    plan.write(&manifest(&good.url(), 0, 1, NO_FAILOVER));
    proxy.counts("crossfade_plan_epoch", &[], 3.0).await;
    assert_eq!(
        counts(&proxy).await.total(),
        <[GenerationCounts; 2]>::default()
    );
    // The end of a stream of the earlier generation does not count against this one.
    gate.open();
    client.rest(head).await;
    proxy.outcomes("truncated", 1).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    let [_, new] = generations(&proxy, 1).await;
    assert_eq!(figures(&new), (1, 0));
}

/// New may reject requests that old accepts. Without a session, only the split selects the generation, so clients cannot cause
/// this.
#[tokio::test]
async fn a_rejected_request_counts_against_its_generation() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(422))).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for _ in 0..10 {
        proxy.chat().await;
    }
    let [old, new] = generations(&proxy, 10).await;
    assert_eq!((figures(&old), figures(&new)), ((5, 0), (5, 5)));
    assert_eq!((old.attempts.completed, new.attempts.completed), (5, 0));
    assert_eq!(new.attempts.unanswered, 0, "it is not tried on old");
    assert_eq!(proxy.metrics().await.sum(FAILED, &[]), 0.0);
}

/// A client can find out the generation of its session, and could send invalid requests only to new.
#[tokio::test]
async fn a_rejection_in_a_session_does_not_count() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(400))).await;
    let plan = manifest(&new.url(), 0, 1, "affinity: {headers: [x-session]}");
    let plan = PlanFile::new(&plan);
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    for session in ["one", "other"] {
        client::post(proxy.address, CHAT, &[("x-session", session)], STREAMING).await;
    }
    let [_, new] = generations(&proxy, 2).await;
    assert_eq!(figures(&new), (2, 0));
    assert_eq!(new.attempts.decided, 0, "it counted as a success");
}

/// A request could fail on any server, for example because of an unknown model or a prompt that crashes its server.
#[tokio::test]
async fn a_failure_in_a_session_counts_once_the_other_generation_has_served_the_request() {
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
        let [_, generation] = generations(&proxy, 1).await;
        assert_eq!(figures(&generation), (1, failed), "{case}");
        assert_eq!(
            (generation.attempts.decided, generation.attempts.completed),
            (failed, 0),
            "{case}"
        );
    }
    // Without retry budget, it is unknown whether the other generation would have served the request.
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(503))).await;
    let more = "affinity: {headers: [x-session]}\nfailover: {retryBudgetPercent: 1}";
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, more));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    for session in 0..20 {
        let session = session.to_string();
        client::post(proxy.address, CHAT, &[("x-session", &session)], STREAMING).await;
    }
    let [_, generation] = generations(&proxy, 20).await;
    assert!(
        (1..20).contains(&generation.attempts.failed),
        "{generation:?}"
    );
    assert_eq!(generation.attempts.decided, generation.attempts.failed);
}

/// While new gets all requests, only retries on old are a control group.
#[tokio::test]
async fn only_retryable_failures_are_compared_with_retries() {
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
        let [old, new] = generations(&proxy, 1).await;
        assert_eq!(figures(&new), (1, 1));
        assert_eq!(
            (new.attempts.unanswered, old.attempts.retried),
            (unanswered, unanswered)
        );
    }
}

/// While old gets no first attempts, its second attempts are its figures.
#[tokio::test]
async fn second_attempts_on_old_are_counted_separately() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(500))).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    assert_eq!(proxy.chat().await.generation(), "old");
    let [of_old, of_new] = generations(&proxy, 1).await;
    assert_eq!(
        (
            of_old.attempts.started,
            of_old.attempts.retried,
            of_old.attempts.retries_failed
        ),
        (0, 1, 0)
    );
    assert_eq!((of_new.attempts.failed, of_new.attempts.unanswered), (1, 1));
    let failing = Upstream::start(serving(status(500))).await;
    let proxy = Proxy::split(&failing, &new, 100).await;
    assert_eq!(proxy.chat().await.status, 500);
    let [old, _] = generations(&proxy, 1).await;
    assert_eq!((old.attempts.retried, old.attempts.retries_failed), (1, 1));
}

/// A request that old recovers is an error of new, although no client sees it.
#[tokio::test]
async fn the_error_ratio_of_a_generation_includes_requests_that_the_other_recovered() {
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
    let ratio = |generation: &Option<crossfade::state_api::v1::Generation>| {
        let recent = generation
            .as_ref()
            .unwrap()
            .last_five_minutes
            .as_ref()
            .unwrap();
        recent.error_ratio()
    };
    assert_eq!(
        (ratio(&state.old), ratio(&state.new)),
        (Some(0.0), Some(1.0))
    );
}

/// Failures in one session may all have the same cause in the session itself.
#[tokio::test]
async fn a_session_counts_once_regardless_of_its_number_of_requests() {
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
    let [old, new] = counts(&proxy).await.total();
    let all = old.attempts.started + new.attempts.started;
    // Another minute may have started meanwhile.
    assert!((2..=4).contains(&all), "{all}");
}

#[tokio::test]
async fn the_wait_of_a_client_that_gives_up_is_a_lower_bound_of_the_latency() {
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
        // The client waits for this long before it gives up.
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(client);
        let [_, generation] = generations(&proxy, 1).await;
        assert_eq!(figures(&generation), (1, 0));
        let values = if has_content {
            generation.gap
        } else {
            generation.first_event
        };
        assert_eq!(values.count(), 1);
        assert!(
            values.quantile(0.5) > Some(0.25),
            "{:?}",
            values.quantile(0.5)
        );
    }
}
