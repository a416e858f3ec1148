//! The request to a server that continues a stream is an attempt like any other: it has a span, its own `traceparent`, the guard, and
//! the headers of the client.

use super::*;
use crate::rig::plan_file::manifest;

const GUARD: &str = "x-crossfade-guard";
const ANY: &str = "failover: {retryBudgetPercent: 100, continuation: {mode: AnyGeneration}}";

/// Waits until new has proven that it can continue.
async fn proven(proxy: &Proxy) {
    let labels = [("generation", "new"), ("state", "supported")];
    proxy
        .counts("crossfade_continuation_capability", &labels, 1.0)
        .await;
}

/// The requests of clients that a server got.
fn streams(server: &Upstream) -> Vec<std::sync::Arc<Received>> {
    let mut requests = server.requests();
    requests.retain(|received| {
        received.method == "POST" && received.header("x-crossfade-probe").is_none()
    });
    requests
}

/// The headers of a client's request, with a trace.
fn headers(caller: &str) -> [(&str, &str); 4] {
    [
        ("traceparent", caller),
        ("tracestate", "a=1"),
        ("authorization", "Bearer k1"),
        ("x-request-id", "request-7"),
    ]
}

/// Asserts that the second request is the first one, apart from what belongs to the attempt.
fn assert_same_head(first: &Received, second: &Received) {
    for name in [
        "tracestate",
        "authorization",
        "x-request-id",
        "content-type",
        "host",
        "x-forwarded-for",
    ] {
        assert_eq!(first.header(name), second.header(name), "{name}");
    }
    // Only new gets the guard.
    assert_eq!(first.header(GUARD), None);
    assert!(second.header(GUARD).is_some());
}

#[tokio::test]
async fn a_stream_that_new_continues_after_a_reset_has_a_span_for_each_part() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    let old = Counting::new("old", 20).breaking(5, Script::reset);
    let old = Upstream::start(old.handler()).await;
    let new = Upstream::start(Counting::new("new", 20).handler()).await;
    let (old_url, url, plan) = (old.url(), collector.url(), mostly_old(&new, ANY));
    let plan = plan.as_str();
    let args = ["--old", &old_url, "--plan", &plan, "--otlp-endpoint", &url];
    let proxy = Proxy::start_with_env(&args, &[SOON]).await;
    proven(&proxy).await;
    let caller = traceparent("01");
    let response = ask(&proxy, &headers(&caller)).await;
    assert_eq!(response.end, End::Clean, "{}", response.text());

    let spans = collector.exchanges(1).await;
    let (server, attempts) = exchange(&spans, TRACE);
    assert_eq!(server.attribute("crossfade.attempts"), 2);
    assert_eq!(server.attribute("crossfade.outcome"), "completed");
    let [broken, rest] = &attempts[..] else {
        panic!("{attempts:#?}");
    };
    assert_eq!(broken.attribute("crossfade.generation"), "old");
    assert_eq!((broken.status, broken.message.as_str()), (2, "broken"));
    assert_eq!(rest.attribute("crossfade.generation"), "new");
    assert_eq!(rest.status, 0);
    assert!(broken.end <= rest.start);
    let (first, second) = (&streams(&old)[0], &streams(&new)[0]);
    let context = |attempt: &Span| [TRACE.to_owned(), attempt.id.clone(), "01".into()];
    assert_eq!(trace_context(first), context(broken));
    assert_eq!(trace_context(second), context(rest));
    assert_same_head(first, second);
}

#[tokio::test]
async fn a_stream_that_moves_has_a_span_for_each_attempt_and_old_is_not_marked_as_failed() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    // The first frontend of new that is asked fails. Which one that is, is random.
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let server = || {
        let asked = asked.clone();
        let (works, mut fails) = (Counting::new("new", 20).handler(), Counting::new("new", 20));
        fails.breaks_again = Some((0, std::sync::Arc::new(|_| status(500))));
        let fails = fails.handler();
        Upstream::start(move |received| {
            let is_stream =
                received.method == "POST" && received.header("x-crossfade-probe").is_none();
            match is_stream && asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
                true => fails(received),
                false => works(received),
            }
        })
    };
    let pair = [server().await, server().await];
    let old = Counting::new("old", 20).breaking(5, Script::hang);
    let old = Upstream::start(old.handler()).await;
    let targets = format!("{},{}", pair[0].url(), pair[1].url());
    let lines = format!("{ANY}\ndrain: {{moveAfterSeconds: 0}}");
    let file = PlanFile::new(&manifest(&targets, 1, 0, &lines));
    let (old_url, url) = (old.url(), collector.url());
    let plan = file.as_str();
    let args = ["--old", &old_url, "--plan", &plan, "--otlp-endpoint", &url];
    let proxy = Proxy::start_with_env(&args, &[SOON]).await;
    let labels = [("generation", "new"), ("state", "supported")];
    proxy
        .counts("crossfade_continuation_capability", &labels, 2.0)
        .await;
    let caller = traceparent("01");
    let mut client = Client::connect(proxy.address).await;
    client.post(CHAT, &headers(&caller), STREAMING).await;
    let head = client.head().await;
    file.write(&manifest(&targets, 0, 1, &lines));
    let response = client.rest(head).await;
    assert_eq!(response.end, End::Clean, "{}", response.text());

    let spans = collector.exchanges(1).await;
    let (server, attempts) = exchange(&spans, TRACE);
    assert_eq!(server.attribute("crossfade.attempts"), 3);
    assert_eq!(server.attribute("crossfade.outcome"), "completed");
    let [of_old, failed, moved] = &attempts[..] else {
        panic!("{attempts:#?}");
    };
    let generations = attempts
        .iter()
        .map(|span| span.attribute("crossfade.generation"));
    assert_eq!(generations.collect::<Vec<_>>(), ["old", "new", "new"]);
    assert_eq!((of_old.status, moved.status), (0, 0));
    assert_eq!(
        (failed.status, failed.message.as_str()),
        (2, "server_error")
    );
    // Old sends until new has continued the stream.
    assert!(failed.start < failed.end && failed.end <= moved.start);
    assert!(moved.start < of_old.end && of_old.end <= moved.end);
    let mut contexts: Vec<_> = pair.iter().flat_map(streams).collect();
    contexts.sort_by_key(|received| trace_context(received));
    let mut expected: Vec<_> = [failed, moved].map(|span| span.id.clone()).into();
    expected.sort();
    let ids = contexts
        .iter()
        .map(|received| trace_context(received)[1].clone());
    let ids: Vec<_> = ids.collect();
    assert_eq!(ids, expected);
    let first = &streams(&old)[0];
    assert_eq!(trace_context(first)[1], of_old.id);
    for second in &contexts {
        assert_same_head(first, second);
    }
}
