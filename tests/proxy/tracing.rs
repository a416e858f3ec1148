//! OpenTelemetry traces: they are off by default; a real collector gets the spans of each exchange; model servers get the trace
//! context; and no fault of a collector affects requests.

mod continuation;

use crate::rig::collector::{Receiver, Span};
use crate::rig::plan_file::{mostly_new, mostly_old};
use crate::rig::proxy::{run, run_with_env};
use crate::rig::tls::Authority;
use crate::rig::*;
use axum::Router;
use axum::routing::post;
use crossfade::app;
use crossfade::config::{Config, PlanSource};
use crossfade::telemetry::trace::{Protocol, TraceSettings};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Shortens the default delay of five seconds before the first batch.
const SOON: (&str, &str) = ("OTEL_BSP_SCHEDULE_DELAY", "30");

const OVER_HTTP: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

/// The trace context that a model server received: trace, parent and flags.
fn trace_context(received: &Received) -> [String; 3] {
    assert_eq!(received.all("traceparent").count(), 1);
    let text = received.header("traceparent").unwrap();
    let parts: Vec<&str> = text.split('-').collect();
    assert_eq!((parts.len(), parts[0]), (4, "00"), "{text}");
    [parts[1], parts[2], parts[3]].map(str::to_owned)
}

async fn ask(proxy: &Proxy, headers: &[(&str, &str)]) -> Response {
    client::post(proxy.address, CHAT, headers, STREAMING).await
}

/// The span of the exchange, and those of its attempts in order.
fn exchange(spans: &[Span], trace: &str) -> (Span, Vec<Span>) {
    let (mut servers, mut attempts): (Vec<_>, Vec<_>) = spans
        .iter()
        .filter(|span| span.trace == trace)
        .cloned()
        .partition(Span::is_server);
    assert_eq!(servers.len(), 1, "{spans:#?}");
    let server = servers.remove(0);
    attempts.sort_by_key(|span| span.start);
    for attempt in &attempts {
        assert_eq!((attempt.kind, &attempt.parent), (3, &server.id));
        assert!(server.start <= attempt.start && attempt.end <= server.end);
        assert!(attempt.start <= attempt.end);
    }
    (server, attempts)
}

#[tokio::test]
async fn by_default_trace_headers_pass_unchanged_and_no_spans_are_created() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
    assert_eq!(old.last().header("traceparent"), None);
    for value in [&traceparent("01"), &traceparent("00"), "nonsense"] {
        ask(&proxy, &[("traceparent", value), ("tracestate", "a=1")]).await;
        assert_eq!(old.last().header("traceparent"), Some(value));
        assert_eq!(old.last().header("tracestate"), Some("a=1"));
    }
    proxy.outcomes("completed", 4).await;
    let metrics = proxy.metrics().await;
    assert!(metrics.has("crossfade_spans_total"));
    assert_eq!(metrics.sum("crossfade_spans_total", &[]), 0.0);
}

#[tokio::test]
async fn an_exchange_joins_its_callers_trace_and_reports_its_decisions() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    for (generation, percent) in [("old", "0"), ("new", "100")] {
        let (old_url, new_url, url) = (old.url(), new.url(), collector.url());
        let args = [
            "--old",
            &old_url,
            "--new",
            &new_url,
            "--split",
            percent,
            "--otlp-endpoint",
            &url,
        ];
        let proxy = Proxy::start_with_env(&args, &[SOON]).await;
        let trace = TRACE.replace("0af", if percent == "0" { "0af" } else { "1af" });
        let caller = format!("00-{trace}-{CALLER}-01");
        let headers = [("traceparent", caller.as_str()), ("tracestate", "a=1,b=2")];
        ask(&proxy, &headers).await.assert_is(chat_text(generation));

        let spans = collector.exchanges(1 + usize::from(percent != "0")).await;
        let (server, attempts) = exchange(&spans, &trace);
        assert_eq!(server.parent, CALLER);
        assert_eq!(server.state, "a=1,b=2");
        assert_eq!(server.name, "POST /v1/chat/completions");
        for (name, value) in [
            ("http.request.method", "POST"),
            ("http.route", CHAT),
            ("url.path", CHAT),
            ("crossfade.generation", generation),
            ("crossfade.answered", generation),
            ("crossfade.reason", "weighted"),
            ("crossfade.class", "chat"),
            ("crossfade.outcome", "completed"),
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.response.model", "tiny"),
        ] {
            assert_eq!(server.attribute(name), value, "{name}");
        }
        for (name, value) in [
            ("http.response.status_code", 200),
            ("crossfade.attempts", 1),
            (
                "http.response.body.size",
                i64::try_from(chat_text(generation).len()).unwrap(),
            ),
        ] {
            assert_eq!(server.attribute(name), value, "{name}");
        }
        for name in ["crossfade.cause", "error.type", "gen_ai.usage.input_tokens"] {
            assert!(server.attribute(name).is_null(), "{name}");
        }
        assert_eq!((server.status, server.message.as_str()), (0, ""));
        let [(event, first)] = &server.events[..] else {
            panic!("{:?}", server.events);
        };
        assert_eq!(event, "first token");
        assert!((server.start..=server.end).contains(first));
        let seconds = server.attribute("crossfade.first_event_seconds");
        let after = (first - server.start) as f64 / 1e9;
        assert!(
            (seconds.as_f64().unwrap() - after).abs() < 1e-6,
            "{seconds} {after}"
        );
        assert_eq!(server.resource["service.name"], "crossfade");
        assert_eq!(
            server.resource["service.version"],
            env!("CARGO_PKG_VERSION")
        );

        // The model server's spans are children of the attempt.
        let [attempt] = &attempts[..] else {
            panic!("{attempts:#?}");
        };
        assert_eq!(attempt.name, server.name);
        assert_eq!(attempt.attribute("crossfade.generation"), generation);
        let received = if percent == "0" {
            old.last()
        } else {
            new.last()
        };
        assert_eq!(
            trace_context(&received),
            [trace.clone(), attempt.id.clone(), "01".into()]
        );
        assert_eq!(received.header("tracestate"), Some("a=1,b=2"));
        assert_eq!(proxy.access_line(1).await["trace_id"], trace);
        let exported = [("result", "exported")];
        proxy.counts("crossfade_spans_total", &exported, 2.0).await;
    }
}

#[tokio::test]
async fn without_a_valid_caller_the_exchange_starts_a_trace() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let (old_url, url) = (old.url(), collector.url());
    let args = ["--old", &old_url, "--otlp-endpoint", &url];
    let proxy = Proxy::start_with_env(&args, &[SOON]).await;
    let malformed = traceparent("01").to_uppercase();
    for (n, headers) in [
        &[][..],
        &[("traceparent", malformed.as_str()), ("tracestate", "a=1")],
        &[("tracestate", "a=1")],
    ]
    .into_iter()
    .enumerate()
    {
        client::post(proxy.address, CHAT, headers, UNARY).await;
        let [trace, parent, flags] = trace_context(&old.last());
        assert_eq!(flags, "01");
        assert_eq!(
            old.last().header("tracestate"),
            None,
            "it belongs to another trace"
        );
        assert_ne!(trace, TRACE);
        let spans = collector.exchanges(n + 1).await;
        let (server, attempts) = exchange(&spans, &trace);
        assert_eq!((server.parent.as_str(), &attempts[0].id), ("", &parent));
        assert_eq!(server.attribute("gen_ai.operation.name"), "chat");
        assert_eq!(server.attribute("gen_ai.usage.input_tokens"), 5);
        assert_eq!(server.attribute("gen_ai.usage.output_tokens"), 1);
        assert!(
            server.events.is_empty(),
            "an answer that is no stream has no first token"
        );
        assert_eq!(proxy.access_line(n + 1).await["trace_id"], trace);
    }
    let traces: std::collections::BTreeSet<_> = collector
        .spans()
        .into_iter()
        .map(|span| span.trace)
        .collect();
    assert_eq!(traces.len(), 3);
}

#[tokio::test]
async fn each_attempt_of_a_recovered_stream_has_its_own_span() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    let url = collector.url();
    // Once before the response head, once after it.
    for (n, (cause, script)) in [
        ("unavailable", status(503)),
        ("error_event", error_first(502)),
    ]
    .into_iter()
    .enumerate()
    {
        let old = Upstream::start(healthy("old")).await;
        let new = Upstream::always(script).await;
        let (old_url, plan) = (old.url(), mostly_new(&new, ""));
        let plan = plan.as_str();
        let args = ["--old", &old_url, "--plan", &plan, "--otlp-endpoint", &url];
        let proxy = Proxy::start_with_env(&args, &[SOON]).await;
        let trace = TRACE.replace("0af", &format!("{n}bf"));
        let caller = format!("00-{trace}-{CALLER}-01");
        ask(&proxy, &[("traceparent", &caller)])
            .await
            .assert_is(chat_text("old"));

        let spans = collector.exchanges(n + 1).await;
        let (server, attempts) = exchange(&spans, &trace);
        assert_eq!(server.attribute("crossfade.generation"), "new");
        assert_eq!(server.attribute("crossfade.answered"), "old");
        assert_eq!(server.attribute("crossfade.attempts"), 2);
        assert_eq!(server.attribute("crossfade.cause"), cause);
        assert_eq!(server.attribute("crossfade.outcome"), "completed");
        assert_eq!(server.status, 0, "it was not recovered");
        let [failed, saving] = &attempts[..] else {
            panic!("{attempts:#?}");
        };
        assert_eq!(failed.attribute("crossfade.generation"), "new");
        assert_eq!(failed.attribute("crossfade.cause"), cause);
        assert_eq!(failed.attribute("error.type"), cause);
        assert_eq!((failed.status, failed.message.as_str()), (2, cause));
        assert_eq!(saving.attribute("crossfade.generation"), "old");
        assert_eq!(saving.attribute("http.request.resend_count"), 1);
        assert_eq!(saving.status, 0);
        assert!(failed.end <= saving.start);
        assert_eq!(
            trace_context(&new.last()),
            [trace.clone(), failed.id.clone(), "01".into()]
        );
        assert_eq!(
            trace_context(&old.last()),
            [trace, saving.id.clone(), "01".into()]
        );
    }
}

#[tokio::test]
async fn failures_are_short_span_errors_and_a_client_disconnect_is_not_an_error() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    let begun = || stream_of(&(role("old") + &content("old", 0)));
    let ends = [
        ("truncated", begun().reset(), 2),
        ("failed", status(500), 2),
        ("cancelled", begun().hang(), 0),
    ];
    for (n, (outcome, script, code)) in ends.into_iter().enumerate() {
        let old = Upstream::always(script).await;
        let (old_url, url) = (old.url(), collector.url());
        let args = ["--old", &old_url, "--otlp-endpoint", &url];
        let proxy = Proxy::start_with_env(&args, &[SOON]).await;
        let mut client = client::open_chat(proxy.address).await;
        if outcome == "cancelled" {
            client.head().await;
            client.until(&content("old", 0)).await;
            drop(client);
        } else {
            client.response().await;
        }
        let [trace, _, _] = trace_context(&*old.request(1).await);
        let spans = collector.exchanges(n + 1).await;
        let (server, attempts) = exchange(&spans, &trace);
        assert_eq!(server.attribute("crossfade.outcome"), outcome);
        assert_eq!(server.status, code, "{outcome}");
        assert_eq!(attempts[0].status, code, "{outcome}");
        let error = match outcome {
            "truncated" => serde_json::json!("truncated"),
            "failed" => serde_json::json!("500"),
            _ => serde_json::Value::Null,
        };
        assert_eq!(*server.attribute("error.type"), error);
        assert_eq!(server.message.is_empty(), code == 0, "{}", server.message);
        if outcome == "truncated" {
            assert_eq!(server.message, proxy.access_line(1).await["why"]);
        }
    }
}

#[tokio::test]
async fn unsampled_requests_are_marked_and_not_sent() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let (old_url, url) = (old.url(), collector.url());
    let args = ["--old", &old_url, "--otlp-endpoint", &url];
    let mut sampled = 0;
    for (sampler, argument, caller, flags) in [
        ("", "", "00", "00"),
        ("", "", "01", "01"),
        ("parentbased_traceidratio", "0", "", "00"),
        ("parentbased_traceidratio", "0", "01", "01"),
        ("parentbased_traceidratio", "1", "", "01"),
        ("always_on", "", "00", "01"),
        ("always_off", "", "01", "00"),
    ] {
        let what = format!("{sampler} {argument} {caller}");
        let env = [
            SOON,
            ("OTEL_TRACES_SAMPLER", sampler),
            ("OTEL_TRACES_SAMPLER_ARG", argument),
        ];
        let proxy = Proxy::start_with_env(&args, &env).await;
        let parent = traceparent(caller);
        let headers = [("traceparent", parent.as_str()), ("tracestate", "a=1")];
        let headers = if caller.is_empty() { &[] } else { &headers[..] };
        ask(&proxy, headers).await.assert_is(chat_text("old"));
        let [trace, parent, trace_context] = trace_context(&old.last());
        assert_eq!(trace_context, flags, "{what}");
        assert_ne!(parent, CALLER, "{what}");
        if !caller.is_empty() {
            assert_eq!(trace, TRACE, "{what}");
            assert_eq!(old.last().header("tracestate"), Some("a=1"));
        }
        // Queued spans are sent before the exit, so none can arrive later.
        let mut proxy = proxy;
        proxy.terminate();
        assert_eq!(proxy.end().await, Some(0));
        sampled += usize::from(flags == "01");
        let spans = collector.exchanges(sampled).await;
        assert_eq!(spans.len(), 2 * sampled, "{what}");
    }
}

#[tokio::test]
async fn the_opentelemetry_variables_enable_tracing_and_name_the_service() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let (old_url, url) = (old.url(), collector.url());
    for (n, (name, service)) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME"),
        (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_RESOURCE_ATTRIBUTES",
        ),
        ("CROSSFADE_OTLP_ENDPOINT", "OTEL_SERVICE_NAME"),
    ]
    .into_iter()
    .enumerate()
    {
        let value = match service {
            "OTEL_SERVICE_NAME" => "mine",
            _ => "service.name=mine,k8s.pod.name=pod-1",
        };
        let gzip = ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip");
        let env = [SOON, gzip, (name, url.as_str()), (service, value)];
        let proxy = Proxy::start_with_env(&["--old", &old_url], &env).await;
        proxy.chat().await.assert_is(chat_text("old"));
        let spans = collector.exchanges(n + 1).await;
        let [trace, _, _] = trace_context(&old.last());
        let (server, _) = exchange(&spans, &trace);
        assert_eq!(server.resource["service.name"], "mine", "{name}");
        if service == "OTEL_RESOURCE_ATTRIBUTES" {
            assert_eq!(server.resource["k8s.pod.name"], "pod-1");
        }
    }
    // They also disable it, whatever else is configured.
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("OTEL_SDK_DISABLED", "true"),
    ];
    let proxy = Proxy::start_with_env(&["--old", &old_url], &env).await;
    proxy.chat().await.assert_is(chat_text("old"));
    assert_eq!(old.last().header("traceparent"), None);
}

#[tokio::test]
async fn a_collector_gets_the_same_spans_over_http() {
    let receiver = Receiver {
        protocol: "http",
        tls: None,
    };
    let Some(collector) = Collector::start_as(receiver, "127.0.0.1:0").await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let (old_url, base) = (old.url(), collector.url());
    let exact = format!("{base}/v1/traces");
    let of_traces = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf");
    let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    for (n, env) in [
        vec![OVER_HTTP, ("CROSSFADE_OTLP_ENDPOINT", &base)],
        vec![
            OVER_HTTP,
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("CROSSFADE_OTLP_ENDPOINT", &exact),
        ],
        vec![OVER_HTTP, ("OTEL_EXPORTER_OTLP_ENDPOINT", &base)],
        vec![
            of_traces,
            grpc,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &exact),
        ],
    ]
    .into_iter()
    .enumerate()
    {
        let env = [&env[..], &[SOON]].concat();
        let proxy = Proxy::start_with_env(&["--old", &old_url], &env).await;
        ask(&proxy, &[("traceparent", &traceparent("01"))]).await;
        let spans = collector.exchanges(n + 1).await;
        let (server, attempts) = exchange(&spans[spans.len() - 2..], TRACE);
        assert_eq!(server.parent, CALLER, "{env:?}");
        assert_eq!(server.attribute("crossfade.outcome"), "completed");
        assert_eq!(server.resource["service.name"], "crossfade");
        assert_eq!(trace_context(&old.last())[1], attempts[0].id);
        let exported = [("result", "exported")];
        proxy.counts("crossfade_spans_total", &exported, 2.0).await;
    }
}

#[tokio::test]
async fn a_collector_that_requires_client_certificates_gets_spans_from_a_proxy_that_has_one() {
    let authority = Authority::new();
    let (own, files) = (authority.issue("proxy"), authority.issue("collector"));
    let ca = authority.file();
    let trust = ("OTEL_EXPORTER_OTLP_CERTIFICATE", ca.as_str());
    let identity = [
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", own.cert()),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", own.key()),
    ];
    let old = Upstream::start(healthy("old")).await;
    let old_url = old.url();
    for (protocol, variable) in [("grpc", "grpc"), ("http", "http/protobuf")] {
        let tls = Some((&authority, &files));
        let receiver = Receiver { protocol, tls };
        let Some(collector) = Collector::start_as(receiver, "127.0.0.1:0").await else {
            return;
        };
        let url = collector.url();
        let args = ["--old", &old_url, "--otlp-endpoint", &url];
        let env = [SOON, trust, ("OTEL_EXPORTER_OTLP_PROTOCOL", variable)];
        let refused = Proxy::start_with_env(&args, &env).await;
        refused.chat().await.assert_is(chat_text("old"));
        let failed = [("result", "failed")];
        refused.counts("crossfade_spans_total", &failed, 2.0).await;
        assert!(collector.spans().is_empty(), "{protocol}");

        let proxy = Proxy::start_with_env(&args, &[&env[..], &identity].concat()).await;
        proxy.chat().await.assert_is(chat_text("old"));
        assert_eq!(collector.exchanges(1).await.len(), 2, "{protocol}");
    }
}

#[tokio::test]
async fn no_client_input_is_in_the_name_or_attributes_of_a_span() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let (old_url, url) = (old.url(), collector.url());
    let args = [
        "--old",
        &old_url,
        "--otlp-endpoint",
        &url,
        "--inference-prefix",
        "/hush/,/v1/",
    ];
    let proxy = Proxy::start_with_env(&args, &[SOON]).await;
    let secrets = [("authorization", "Bearer hush"), ("x-session-id", "hush")];
    let mut names = Vec::new();
    for (method, path, name) in [
        (
            "POST",
            "/hush/v1/chat/completions?hush=1",
            "POST /v1/chat/completions",
        ),
        ("POST", "/v1/hush", "POST"),
        ("GET", "/hush", "GET"),
        ("GET", "/v1/models/hush", "GET /v1/models/{model}"),
        ("GET", "/v1/models", "GET /v1/models"),
        ("HUSH", "/health", "HTTP /health"),
    ] {
        let mut client = Client::connect(proxy.address).await;
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: hush\r\nConnection: close\r\n");
        for (name, value) in secrets {
            head += &format!("{name}: {value}\r\n");
        }
        let body = STREAMING.replace("hello", "hush");
        let length = if method == "POST" { body.len() } else { 0 };
        client
            .send(format!("{head}Content-Length: {length}\r\n\r\n"))
            .await;
        client.send(&body[..length]).await;
        assert_eq!(client.response().await.status, 200, "{method} {path}");
        names.push(name);
    }
    let spans = collector.exchanges(names.len()).await;
    let mut seen: Vec<_> = spans.iter().filter(|span| span.is_server()).collect();
    seen.sort_by_key(|span| span.start);
    let seen: Vec<_> = seen.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(seen, names);
    let text = format!("{spans:?}").to_lowercase();
    assert!(
        text.contains("crossfade.outcome") && !text.contains("hush"),
        "{text}"
    );
}

#[tokio::test]
async fn queued_spans_are_sent_before_the_exit() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let (old_url, url) = (old.url(), collector.url());
    let args = ["--old", &old_url, "--otlp-endpoint", &url];
    // The batch delay is one hour.
    let env = [("OTEL_BSP_SCHEDULE_DELAY", "3600000")];
    let mut proxy = Proxy::start_with_env(&args, &env).await;
    for _ in 0..3 {
        proxy.chat().await.assert_is(chat_text("old"));
    }
    proxy.outcomes("completed", 3).await;
    assert!(collector.spans().is_empty());
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    assert_eq!(collector.exchanges(3).await.len(), 6);
}

#[tokio::test]
async fn an_unreachable_collector_costs_only_spans_and_one_log_line() {
    let old = Upstream::start(healthy("old")).await;
    let (old_url, nobody) = (old.url(), Upstream::nobody());
    let url = format!("http://{nobody}");
    let args = ["--old", &old_url, "--otlp-endpoint", &url];
    let mut proxy = Proxy::start_with_env(&args, &[SOON]).await;
    let failed = [("result", "failed")];
    for count in [2.0, 4.0] {
        proxy.chat().await.assert_is(chat_text("old"));
        proxy.counts("crossfade_spans_total", &failed, count).await;
    }
    let logged = |what: &str| {
        let lines = proxy.lines().into_iter();
        lines.filter(|line| line.contains(what)).count()
    };
    assert_eq!(logged("cannot export spans"), 1, "{:?}", proxy.lines());
    assert_eq!(logged("spans can be exported again"), 0);

    // The collector comes back.
    if let Some(collector) = Collector::start_at(&nobody.to_string()).await {
        eventually("spans can be exported again", async || {
            proxy.chat().await.assert_is(chat_text("old"));
            !collector.spans().is_empty()
        })
        .await;
        eventually("it is logged", async || {
            logged("spans can be exported again") == 1
        })
        .await;
        drop(collector);
    }
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn a_collector_that_hangs_fills_a_bounded_queue_and_does_not_delay_the_exit() {
    let old = Upstream::start(healthy("old")).await;
    let hanging = Upstream::always(Script::new().hang()).await;
    let (old_url, url) = (old.url(), format!("http://{}", hanging.address));
    let args = ["--old", &old_url, "--otlp-endpoint", &url];
    let env = [
        SOON,
        ("OTEL_BSP_MAX_QUEUE_SIZE", "4"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=word"),
    ];
    let mut proxy = Proxy::start_with_env(&args, &env).await;
    for _ in 0..5 {
        proxy.chat().await.assert_is(chat_text("old"));
    }
    let dropped = [("result", "dropped")];
    proxy.counts("crossfade_spans_total", &dropped, 6.0).await;
    let export = hanging.request(1).await;
    assert!(
        export.target.ends_with("TraceService/Export"),
        "{}",
        export.head
    );
    assert_eq!(export.header("api-key"), Some("word"));
    let signalled = tokio::time::Instant::now();
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    // The export timeout is 10 s, and the exit has a shorter limit.
    assert!(
        signalled.elapsed().as_secs() < 8,
        "{:?}",
        signalled.elapsed()
    );
}

#[tokio::test]
async fn an_unreachable_collector_over_http_costs_one_log_line_with_the_reason() {
    let old = Upstream::start(healthy("old")).await;
    let (old_url, nobody) = (old.url(), Upstream::nobody());
    let url = format!("http://{nobody}");
    let args = ["--old", &old_url, "--otlp-endpoint", &url];
    let mut proxy = Proxy::start_with_env(&args, &[SOON, OVER_HTTP]).await;
    let failed = [("result", "failed")];
    for count in [2.0, 4.0] {
        proxy.chat().await.assert_is(chat_text("old"));
        proxy.counts("crossfade_spans_total", &failed, count).await;
    }
    let lines = proxy.lines();
    let mut matching = lines
        .iter()
        .filter(|line| line.contains("cannot export spans"));
    let line = matching.next().expect("a line");
    assert!(line.contains("Connection refused"), "{line}");
    assert_eq!(matching.next(), None);
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn a_collector_that_hangs_over_http_fills_a_bounded_queue_and_does_not_delay_the_exit() {
    let old = Upstream::start(healthy("old")).await;
    let hanging = Upstream::always(Script::new().hang()).await;
    let (old_url, url) = (old.url(), format!("http://{}", hanging.address));
    let args = ["--old", &old_url, "--otlp-endpoint", &url];
    let env = [
        SOON,
        OVER_HTTP,
        ("OTEL_BSP_MAX_QUEUE_SIZE", "4"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=word"),
    ];
    let mut proxy = Proxy::start_with_env(&args, &env).await;
    for _ in 0..5 {
        proxy.chat().await.assert_is(chat_text("old"));
    }
    let dropped = [("result", "dropped")];
    proxy.counts("crossfade_spans_total", &dropped, 6.0).await;
    let export = hanging.request(1).await;
    assert_eq!(export.target, "/v1/traces");
    assert_eq!(export.header("api-key"), Some("word"));
    assert_eq!(
        export.header("content-type"),
        Some("application/x-protobuf")
    );
    let signalled = tokio::time::Instant::now();
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    // The export timeout is 10 s, and the exit has a shorter limit.
    assert!(
        signalled.elapsed().as_secs() < 8,
        "{:?}",
        signalled.elapsed()
    );
}

#[tokio::test]
async fn a_collector_over_http_that_is_slow_or_rejects_or_responds_too_much_costs_only_spans() {
    let old = Upstream::start(healthy("old")).await;
    let old_url = old.url();
    for (collector, expected) in [
        (
            Upstream::always(Script::new().hang()).await,
            "no response within 200 ms",
        ),
        (
            Upstream::listen("127.0.0.1:0", None, |_| status(400)).await,
            "400",
        ),
        (
            Upstream::always(Script::new().answer(200, "text/plain", vec![b'x'; 5 << 20])).await,
            "limit",
        ),
    ] {
        let url = format!("http://{}", collector.address);
        let args = ["--old", &old_url, "--otlp-endpoint", &url];
        let env = [SOON, OVER_HTTP, ("OTEL_EXPORTER_OTLP_TIMEOUT", "200")];
        let proxy = Proxy::start_with_env(&args, &env).await;
        proxy.chat().await.assert_is(chat_text("old"));
        let failed = [("result", "failed")];
        proxy.counts("crossfade_spans_total", &failed, 2.0).await;
        // The line follows the count.
        let reported = || {
            let lines = proxy.lines();
            lines
                .into_iter()
                .find(|line| line.contains("cannot export spans"))
        };
        eventually("the failure is logged", async || reported().is_some()).await;
        let line = reported().unwrap();
        assert!(line.contains(expected), "{line}");
    }
}

#[tokio::test]
async fn a_collector_with_tls_gets_spans_if_it_is_trusted() {
    let authority = Authority::new();
    let files = authority.issue("collector");
    let old = Upstream::start(healthy("old")).await;
    let (old_url, ca) = (old.url(), authority.file());
    let trust = ("OTEL_EXPORTER_OTLP_CERTIFICATE", ca.as_str());
    for (alpn, protocol) in [("h2", "grpc"), ("http/1.1", "http/protobuf")] {
        let server = authority.server(&files, &[alpn], false);
        let collector = Upstream::listen("127.0.0.1:0", Some(server), |_| status(503)).await;
        let url = format!("https://localhost:{}", collector.address.port());
        let args = ["--old", &old_url, "--otlp-endpoint", &url];
        let protocol = ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol);
        for (env, requests) in [
            (&[SOON, protocol][..], false),
            (&[SOON, protocol, trust], true),
        ] {
            let proxy = Proxy::start_with_env(&args, env).await;
            proxy.chat().await.assert_is(chat_text("old"));
            let failed = [("result", "failed")];
            proxy.counts("crossfade_spans_total", &failed, 2.0).await;
            assert_eq!(collector.count() > 0, requests, "{protocol:?}");
        }
    }
}

#[tokio::test]
async fn spans_are_compressed_if_the_environment_enables_it() {
    let old = Upstream::start(healthy("old")).await;
    let old_url = old.url();
    for protocol in ["grpc", "http/protobuf"] {
        let collector = Upstream::listen("127.0.0.1:0", None, |_| status(503)).await;
        let url = format!("http://{}", collector.address);
        let args = ["--old", &old_url, "--otlp-endpoint", &url];
        let env = [
            SOON,
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ];
        let proxy = Proxy::start_with_env(&args, &env).await;
        proxy.chat().await.assert_is(chat_text("old"));
        let export = collector.request(1).await;
        let encoding = export
            .header("grpc-encoding")
            .or(export.header("content-encoding"));
        assert_eq!(encoding, Some("gzip"), "{}", export.head);
    }
}

#[test]
fn invalid_settings_are_reported_at_startup() {
    let proxy = ["proxy", "--old", "127.0.0.1:9", "--listen", "127.0.0.1:0"];
    for (url, expected) in [
        ("localhost:4317", "http://HOST:PORT"),
        ("ftp://localhost:4317", "http://HOST:PORT"),
        ("http://localhost:x", "http://HOST:PORT"),
        ("http://localhost:4318/v1/traces?key=x", "query"),
        (
            "http://me:word@localhost:4317",
            "OTEL_EXPORTER_OTLP_HEADERS",
        ),
    ] {
        let output = run(&[&proxy[..], &["--otlp-endpoint", url]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{url}: {stderr}");
        assert!(
            stderr.contains("--otlp-endpoint") && stderr.contains(expected),
            "{stderr}"
        );
    }
    let on = [
        "--otlp-endpoint",
        "http://127.0.0.1:9",
        "--admin",
        "127.0.0.1:0",
    ];
    for (name, value, expected) in [
        (
            "OTEL_TRACES_SAMPLER",
            "sometimes",
            "parentbased_traceidratio",
        ),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10s", "milliseconds"),
        (
            "OTEL_EXPORTER_OTLP_CLIENT_KEY",
            "/etc/passwd",
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        ),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "http://localhost:4318/v1/traces",
            "http/protobuf",
        ),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip, none"),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "/no/such/file",
            "/no/such/file",
        ),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "from 1"),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "localhost:4317",
            "http://HOST:PORT",
        ),
    ] {
        let flags: &[&str] = if name.ends_with("ENDPOINT") { &[] } else { &on };
        let output = run_with_env(&[&proxy[..], flags].concat(), &[(name, value)]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {stderr}");
        assert!(stderr.contains("cannot start"), "{stderr}");
        assert!(
            stderr.contains(name) && stderr.contains(expected),
            "{stderr}"
        );
    }
}

#[tokio::test]
async fn a_frontend_that_embeds_the_layer_gets_its_exchanges_traced() {
    let receiver = Receiver {
        protocol: "http",
        tls: None,
    };
    let Some(collector) = Collector::start_as(receiver, "127.0.0.1:0").await else {
        return;
    };
    let new = Upstream::start(healthy("new")).await;
    let plan = mostly_old(&new, "");
    let embedded = app::embed(Config {
        plan: PlanSource::File(plan.path()),
        traces: Some(
            TraceSettings::new(collector.url().parse().unwrap())
                .with_protocol(Protocol::HttpProtobuf),
        ),
        ..Config::default()
    })
    .await
    .unwrap();
    tokio::spawn(embedded.follow);
    // The embedded service, which is old, returns the trace context that it received.
    let heard = |headers: http::HeaderMap| async move {
        headers["traceparent"].to_str().unwrap().to_owned()
    };
    let router = Router::new().route(CHAT, post(heard)).layer(embedded.layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let caller = traceparent("01");
    let answer = client::post(address, CHAT, &[("traceparent", &caller)], UNARY).await;
    let metrics = &embedded.handle.context.metrics;
    eventually("the exchange has ended", async || {
        metrics.open_streams(crossfade::split::Generation::Old) == 0
    })
    .await;
    embedded
        .handle
        .end_traces(std::time::Duration::from_secs(5))
        .await;
    let (server, attempts) = exchange(&collector.exchanges(1).await, TRACE);
    assert_eq!(server.attribute("crossfade.generation"), "old");
    answer.assert_is(format!("00-{TRACE}-{}-01", attempts[0].id));
}
