//! The gRPC services on the admin port: state, health and reflection.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use crate::rig::proxy::Metrics;
use crate::rig::*;
use crossfade::state_api::{Client as StateClient, Error, v1};
use futures_util::stream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use v1::proxy_client::ProxyClient;

const DEADLINE: Duration = Duration::from_secs(5);

async fn client(proxy: &Proxy) -> StateClient {
    let address = proxy.admin.to_string();
    StateClient::connect(&address, DEADLINE).await.unwrap()
}

async fn state(proxy: &Proxy) -> v1::State {
    client(proxy).await.get().await.unwrap()
}

async fn channel(proxy: &Proxy) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", proxy.admin)).unwrap();
    endpoint.connect().await.unwrap()
}

fn plan(state: &v1::State) -> &v1::Plan {
    state.plan.as_ref().unwrap()
}

/// A chat up to its first content, and the rest.
fn two_parts(name: &str) -> (String, String) {
    let text = chat_text(name);
    let first = role(name) + &content(name, 0);
    let rest = text.strip_prefix(&first).unwrap().to_owned();
    (first, rest)
}

/// A stream that continues when the gate opens.
fn waiting(name: &str, gate: &Gate) -> Script {
    let (first, rest) = two_parts(name);
    let script = Script::new().sse().events(&first);
    script.wait(gate).events(&rest)
}

/// A complete chat with a pause.
fn paced(name: &str) -> Script {
    let (first, rest) = two_parts(name);
    Script::new().sse().events(&first).pause(2).events(&rest)
}

/// Opens a chat and waits for its first content.
async fn open(proxy: &Proxy, name: &str) -> Client {
    let mut client = client::open_chat(proxy.address).await;
    assert_eq!(client.head().await.status, 200);
    client.until(&content(name, 0)).await;
    client
}

#[tokio::test]
async fn the_state_names_the_process_and_the_plan_in_force() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let url = new.url();
    let file = PlanFile::new(&format!(
        "apiVersion: nvidia.com/v1alpha1\nkind: DynamoUpdateConfig\nmetadata: {{namespace: models, name: update, uid: u-1, generation: 4}}\nspec:\n  newFrontendService: \"{url}\"\n  weights: {{old: 1, new: 2}}\n  maxTrafficSplitPercent: 20\n"
    ));
    let before = SystemTime::now();
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let state = state(&proxy).await;

    let process = state.process.clone().unwrap();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(process.name, host.trim());
    assert_eq!(process.version, env!("CARGO_PKG_VERSION"));
    let started = SystemTime::try_from(process.started.unwrap()).unwrap();
    assert!(started >= before && started <= SystemTime::now());
    assert!(Duration::try_from(process.uptime.unwrap()).unwrap() <= before.elapsed().unwrap());
    let read = SystemTime::try_from(state.time.unwrap()).unwrap();
    assert!(read >= started && read <= SystemTime::now());

    assert_eq!((state.phase(), state.ready), (v1::Phase::Ready, true));
    let plan = plan(&state);
    assert_eq!((plan.epoch, &*plan.source), (1, &*file.as_str()));
    let resource = v1::Resource {
        namespace: Some("models".into()),
        name: Some("update".into()),
        uid: Some("u-1".into()),
        generation: Some(4),
    };
    assert_eq!(plan.resource.as_ref(), Some(&resource));
    assert_eq!(plan.weights, Some(v1::Weights { old: 4, new: 1 }));
    assert_eq!((plan.percent, plan.max_percent), (20, Some(20)));
    assert_eq!(
        plan.weights_before_cap,
        Some(v1::Weights { old: 1, new: 2 })
    );
    assert!(!plan.old_drains);
    let since = SystemTime::try_from(plan.since.unwrap()).unwrap();
    assert!(since >= before && since <= read);
    assert_eq!((&plan.refusal, plan.refused_total), (&None, 0));
    assert_eq!(plan.source_lost_for, None);
    for generation in [&state.old, &state.new] {
        let endpoints = generation.as_ref().unwrap().endpoints.unwrap();
        assert_eq!((endpoints.healthy, endpoints.known), (1, 1));
    }
}

#[tokio::test]
async fn a_plan_from_flags_has_no_resource() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let state = state(&proxy).await;
    let plan = plan(&state);
    assert_eq!((&*plan.source, plan.percent), ("flags", 0));
    assert_eq!((&plan.resource, plan.max_percent), (&None, None));
}

/// The histogram with this name and generation on `/metrics`.
fn shown(metrics: &Metrics, name: &str, generation: &str) -> v1::Histogram {
    let labels = [("generation", generation)];
    let mut buckets: Vec<(f64, u64)> = metrics
        .of(&format!("{name}_bucket"))
        .into_iter()
        .filter(|(labels, _)| labels["generation"] == generation)
        .map(|(labels, count)| (labels["le"].parse().unwrap(), count as u64))
        .collect();
    let (_, all) = buckets.pop().unwrap();
    let (bounds, cumulative_counts) = buckets.into_iter().unzip();
    let count = metrics.sum(&format!("{name}_count"), &labels) as u64;
    assert_eq!(all, count);
    v1::Histogram {
        bounds,
        cumulative_counts,
        count,
        sum: metrics.sum(&format!("{name}_sum"), &labels),
    }
}

#[tokio::test]
async fn the_figures_of_the_state_equal_the_metrics() {
    let gate = Gate::closed();
    let old = Upstream::start(serving(paced("old"))).await;
    let waits = waiting("new", &gate);
    let new = Upstream::start(move |received| match received.header("x-case") {
        Some("fails") => status(503),
        Some("cut") => Script::new().sse().events(&content("new", 0)).reset(),
        Some("waits") => waits.clone(),
        None if received.method == "GET" => models(&["tiny"]),
        _ => paced("new"),
    })
    .await;
    let proxy = Proxy::split(&old, &new, 50).await;
    // Seven requests per case, so that each case reaches both generations. Chats in between keep new from being ejected.
    for _ in 0..4 {
        for _ in 0..5 {
            proxy.chat().await;
        }
        for case in ["fails", "cut"] {
            client::post(proxy.address, CHAT, &[("x-case", case)], STREAMING).await;
        }
    }
    client::get(proxy.address, MODELS).await;
    let mut refused = Client::connect(proxy.address).await;
    refused.send("nonsense\r\n\r\n").await;
    refused.until_closed().await;
    proxy.counts("crossfade_requests_total", &[], 29.0).await;
    // One stream that stays open on new.
    let mut left = loop {
        let mut client = Client::connect(proxy.address).await;
        client.post(CHAT, &[("x-case", "waits")], STREAMING).await;
        if client.head().await.headers.get("x-crossfade-generation") == Some("new") {
            break client;
        }
        client.body().await;
    };
    left.until(&content("new", 0)).await;
    proxy
        .counts("crossfade_open_streams", &[("generation", "new")], 1.0)
        .await;
    proxy
        .counts("crossfade_open_streams", &[("generation", "old")], 0.0)
        .await;

    let state = state(&proxy).await;
    let metrics = proxy.metrics().await;
    let sum = |name: &str, labels: &[(&str, &str)]| metrics.sum(name, labels) as u64;
    for (name, generation) in [("old", &state.old), ("new", &state.new)] {
        let generation = generation.as_ref().unwrap();
        let label = ("generation", name);
        assert_eq!(
            generation.open_streams,
            sum("crossfade_open_streams", &[label])
        );
        assert_eq!(generation.open_streams, u64::from(name == "new"));
        let outcomes = generation.outcomes.unwrap();
        for (outcome, count) in [
            ("completed", outcomes.completed),
            ("truncated", outcomes.truncated),
            ("failed", outcomes.failed),
            ("cancelled", outcomes.cancelled),
        ] {
            let labels = [label, ("outcome", outcome)];
            assert_eq!(
                count,
                sum("crossfade_requests_total", &labels),
                "{labels:?}"
            );
        }
        let first_event = generation.first_event.clone().unwrap();
        assert!(first_event.count >= 10, "{first_event:?}");
        assert_eq!(
            first_event,
            shown(&metrics, "crossfade_time_to_first_event_seconds", name)
        );
        let gap = generation.gap.clone().unwrap();
        assert!(gap.count >= 20 && gap.sum > 0.0, "{gap:?}");
        assert_eq!(gap, shown(&metrics, "crossfade_inter_event_seconds", name));
        let lasted = generation.stream_duration.clone().unwrap();
        assert!(lasted.count >= 10 && lasted.sum > gap.sum, "{lasted:?}");
        assert_eq!(
            lasted,
            shown(&metrics, "crossfade_stream_duration_seconds", name)
        );
    }
    let outcomes = state.new.as_ref().unwrap().outcomes.unwrap();
    assert!(outcomes.truncated > 0, "{outcomes:?}");

    let split = |generation| {
        ["weighted", "sticky"]
            .map(|reason| {
                let labels = [("generation", generation), ("reason", reason)];
                sum("crossfade_requests_total", &labels)
            })
            .iter()
            .sum::<u64>()
    };
    let total = state.split_total.unwrap();
    assert_eq!((total.old, total.new), (split("old"), split("new")));
    assert!(total.old + total.new >= 28, "{total:?}");
    let observed = metrics.sum("crossfade_split_ratio", &[("kind", "observed")]);
    let minute = state.assigned_last_minute.unwrap();
    assert_eq!(minute.share_of_new(), Some(observed), "{minute:?}");

    let recovered = BTreeMap::from([(
        "unavailable".to_owned(),
        sum("crossfade_recovered_requests_total", &[]),
    )]);
    assert_eq!(state.recovered_requests, recovered);
    assert!(recovered["unavailable"] > 0);
    let rejects = BTreeMap::from([("malformed_head".to_owned(), 1)]);
    assert_eq!(state.rejected_requests, rejects);
    assert_eq!(
        state.retries_refused,
        sum("crossfade_retries_refused_total", &[])
    );
    gate.open();
    left.body().await;
}

#[tokio::test]
async fn a_refused_plan_is_reported_until_a_good_one_comes() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let file = PlanFile::new(&manifest(&new.url(), 3, 1, ""));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let client = client(&proxy).await;
    file.replace(&manifest(&new.url(), 0, 0, ""));
    let state = until("a refusal", async || {
        let state = client.get().await.unwrap();
        plan(&state).refusal.is_some().then_some(state)
    })
    .await;
    let refusal = plan(&state).refusal.clone().unwrap();
    assert_eq!(refusal.source, file.as_str());
    assert_eq!(refusal.problems.len(), 1, "{refusal:?}");
    assert!(
        refusal.problems[0].path.starts_with("spec.weights"),
        "{refusal:?}"
    );
    assert_eq!(refusal.problems[0].line, Some(6), "{refusal:?}");
    assert_eq!((plan(&state).epoch, plan(&state).percent), (1, 25));
    assert!(plan(&state).refused_total > 0);
    file.replace(&manifest(&new.url(), 1, 1, ""));
    eventually("it is dropped", async || {
        let state = client.get().await.unwrap();
        plan(&state).refusal.is_none() && plan(&state).epoch == 2
    })
    .await;
}

#[tokio::test]
async fn a_watch_reports_at_once_then_after_each_plan_and_at_each_interval() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let file = PlanFile::new(&manifest(&new.url(), 3, 1, ""));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let client = client(&proxy).await;

    // Much longer than any test waits, so only changes cause reports.
    let mut plans = client.watch(Duration::from_secs(3600)).await.unwrap();
    let next = async |watching: &mut crossfade::state_api::StateStream| {
        let state = within("a state", watching.next()).await.unwrap();
        state.expect("the process lives")
    };
    assert_eq!(plan(&next(&mut plans).await).epoch, 1);
    for (epoch, part) in [(2, 1), (3, 3)] {
        file.replace(&manifest(&new.url(), 1, part, ""));
        let state = next(&mut plans).await;
        assert_eq!(plan(&state).epoch, epoch);
        assert_eq!(
            plan(&state).weights,
            Some(v1::Weights { old: 1, new: part })
        );
    }

    let mut often = client.watch(Duration::from_millis(1)).await.unwrap();
    let mut times = Vec::new();
    for _ in 0..4 {
        times.push(SystemTime::try_from(next(&mut often).await.time.unwrap()).unwrap());
    }
    let whole = times[3].duration_since(times[0]).unwrap();
    assert!(
        whole >= Duration::from_millis(290),
        "continued too often: {whole:?}"
    );
}

#[tokio::test]
async fn a_watch_continues_through_the_drain_and_ends_with_the_process() {
    let gate = Gate::closed();
    let old = Upstream::start(serving(waiting("old", &gate))).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let client = client(&proxy).await;
    let mut watching = client.watch(Duration::from_millis(100)).await.unwrap();
    let mut stream = open(&proxy, "old").await;
    proxy.terminate();
    let mut last = None;
    let open = |state: &v1::State| state.old.as_ref().unwrap().open_streams;
    within("draining", async {
        loop {
            let state = watching.next().await.unwrap().unwrap();
            assert_eq!(state.ready, state.phase() == v1::Phase::Ready);
            if state.phase() == v1::Phase::Draining && open(&state) == 1 {
                break;
            }
        }
    })
    .await;
    gate.open();
    stream.body().await;
    within("the end", async {
        while let Some(state) = watching.next().await.unwrap() {
            last = Some(state);
        }
    })
    .await;
    let last = last.unwrap();
    assert_eq!((last.phase(), open(&last)), (v1::Phase::Ending, 0));
    assert_eq!(last.old.unwrap().outcomes.unwrap().completed, 1);
    assert_eq!(proxy.end().await, Some(0));
    let error = client.get().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
}

#[tokio::test]
async fn watchers_that_do_not_read_do_not_block_the_process() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let client = client(&proxy).await;
    let mut watchings = Vec::new();
    let busy = loop {
        match client.watch(Duration::from_secs(60)).await {
            Ok(watching) => watchings.push(watching),
            Err(error) => break error,
        }
    };
    assert!(matches!(busy, Error::TooManyWatches), "{busy:?}");
    assert_eq!(watchings.len(), 8);
    client.get().await.unwrap();
    // Another address has its own quota.
    let other = other_address(&proxy).await;
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(watch_from(other.clone()).await.unwrap());
    }
    let busy = watch_from(other).await.unwrap_err();
    assert_eq!(busy.code(), Code::ResourceExhausted);
    // Dropping a watch frees its quota.
    watchings.pop();
    let again = until("a place", async || client.watch(DEADLINE).await.ok()).await;
    watchings.push(again);
    let asked = Instant::now();
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    assert!(
        asked.elapsed() < Duration::from_secs(3),
        "{:?}",
        asked.elapsed()
    );
}

/// A connection from another address of this machine.
async fn other_address(proxy: &Proxy) -> Channel {
    let admin = proxy.admin;
    let connect = tower::service_fn(move |_: http::Uri| async move {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind("127.0.0.2:0".parse().unwrap())?;
        let stream = socket.connect(admin).await?;
        Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connect).await.unwrap()
}

async fn watch_from(channel: Channel) -> Result<impl std::fmt::Debug, Status> {
    let service = String::new();
    let request = HealthCheckRequest { service };
    HealthClient::new(channel).watch(request).await
}

async fn health(channel: &Channel, service: &str) -> Result<ServingStatus, Status> {
    let service = service.into();
    let asked = HealthClient::new(channel.clone())
        .check(HealthCheckRequest { service })
        .await;
    asked.map(|answer| answer.into_inner().status())
}

#[tokio::test]
async fn health_follows_readyz() {
    let gate = Gate::closed();
    let old = Upstream::start(serving(waiting("old", &gate))).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let channel = channel(&proxy).await;
    for service in ["", "crossfade.v1.Proxy"] {
        assert_eq!(
            health(&channel, service).await.unwrap(),
            ServingStatus::Serving
        );
    }
    let unknown = health(&channel, "no.such").await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let mut watching = HealthClient::new(channel.clone())
        .watch(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner();
    let reported = within("a status", watching.message())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(reported.status(), ServingStatus::Serving);

    let mut stream = open(&proxy, "old").await;
    proxy.terminate();
    let reported = within("a status", watching.message())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(reported.status(), ServingStatus::NotServing);
    assert_eq!(
        health(&channel, "").await.unwrap(),
        ServingStatus::NotServing
    );
    assert_eq!(proxy.admin("/readyz").await.status, 503);
    gate.open();
    stream.body().await;
    assert_eq!(within("the end", watching.message()).await.unwrap(), None);
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn a_proxy_that_cannot_reach_a_model_server_is_not_serving() {
    let nobody = Upstream::nobody();
    let proxy = Proxy::start(&["--old", &nobody.to_string()]).await;
    let channel = channel(&proxy).await;
    assert_eq!(
        health(&channel, "").await.unwrap(),
        ServingStatus::NotServing
    );
    assert_eq!(proxy.admin("/readyz").await.status, 503);
    let state = state(&proxy).await;
    assert_eq!((state.phase(), state.ready), (v1::Phase::Ready, false));
}

#[tokio::test]
async fn reflection_lists_the_services_and_describes_the_state() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = ServerReflectionClient::new(channel(&proxy).await);
    let questions = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol("crossfade.v1.State".into()),
        MessageRequest::FileByFilename("google/protobuf/timestamp.proto".into()),
    ];
    let requests = questions.map(|question| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(question),
    });
    let mut answers = client
        .server_reflection_info(stream::iter(requests))
        .await
        .unwrap()
        .into_inner();
    let mut next = async || {
        let answer: Option<ServerReflectionResponse> = answers.message().await.unwrap();
        answer.unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(services) = next().await else {
        panic!("no list")
    };
    let mut services: Vec<_> = services.service.into_iter().map(|one| one.name).collect();
    services.sort();
    let wanted = [
        "crossfade.v1.Proxy",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ];
    assert_eq!(services, wanted);
    for file in [
        "crossfade/v1/state.proto",
        "google/protobuf/timestamp.proto",
    ] {
        let MessageResponse::FileDescriptorResponse(files) = next().await else {
            panic!("no descriptor of {file}")
        };
        let bytes = &*files.file_descriptor_proto[0];
        let found: prost_types::FileDescriptorProto = prost::Message::decode(bytes).unwrap();
        assert_eq!(found.name(), file);
    }
}

#[tokio::test]
async fn nothing_else_can_be_called() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let channel = channel(&proxy).await;
    for path in [
        "/crossfade.v1.Proxy/Set",
        "/crossfade.v2.Proxy/Get",
        "/grpc.health.v1.Health/Set",
        "/plan",
        "/",
    ] {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<v1::GetRequest, v1::State>::default();
        let path = http::uri::PathAndQuery::from_static(path);
        let request = Request::new(v1::GetRequest {});
        let answer = client.unary(request, path.clone(), codec).await;
        assert_eq!(answer.unwrap_err().code(), Code::Unimplemented, "{path}");
    }
    // gRPC needs HTTP/2. A request that a page in a browser can send is treated as a request for a page.
    let head = "POST /crossfade.v1.Proxy/Get HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n";
    for kind in ["application/grpc", "application/grpc-web", "text/plain"] {
        let mut client = Client::connect(proxy.admin).await;
        let text = format!("{head}content-type: {kind}\r\n\r\n\0\0\0\0\0");
        client.send(text).await;
        assert_eq!(client.response().await.status, 404, "{kind}");
    }
    state(&proxy).await;
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = HealthClient::new(channel(&proxy).await);
    let service = "x".repeat(100_000);
    let error = client
        .check(HealthCheckRequest { service })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error:?}");
}

#[tokio::test]
async fn pages_are_served_over_http2_too_and_to_head() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let io = tokio::net::TcpStream::connect(proxy.admin).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(connection);
    for (method, path, status) in [
        ("GET", "/readyz", 200),
        ("HEAD", "/metrics", 200),
        ("POST", "/plan", 405),
        ("GET", "/crossfade.v1.Proxy/Get", 404),
    ] {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", proxy.admin))
            .body(())
            .unwrap();
        let (answer, _) = sender.send_request(request, true).unwrap();
        let answer = within("an answer", answer).await.unwrap();
        assert_eq!(answer.status(), status, "{method} {path}");
    }
    let mut client = Client::connect(proxy.admin).await;
    client.send("HEAD /livez HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let answer = client.bodiless().await;
    assert_eq!(
        (answer.status, answer.header("content-length")),
        (200, Some("6"))
    );
}

#[tokio::test]
async fn the_client_reports_what_is_wrong_with_the_server() {
    let connect = async |address: &str, millis| {
        StateClient::connect(address, Duration::from_millis(millis)).await
    };
    for address in [
        "",
        "host",
        "a:b:c",
        "user@host:1",
        "http://host:1",
        "h ost:1",
    ] {
        let error = connect(address, 1000).await.unwrap_err();
        assert!(matches!(error, Error::Address(_)), "{address:?}: {error:?}");
    }
    let nobody = Upstream::nobody().to_string();
    let error = connect(&nobody, 1000).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");

    // Accepts connections and sends nothing.
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = mute.local_addr().unwrap().to_string();
    let error = match connect(&address, 200).await {
        Ok(client) => client.get().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error, Error::Timeout(_)), "{error:?}");

    // Uses HTTP/2 but is not an admin port: the data port of a proxy.
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let client = connect(&proxy.address.to_string(), 2000).await.unwrap();
    let error = client.get().await.unwrap_err();
    assert!(
        matches!(error, Error::Refused(_) | Error::Unsupported),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_watch_without_an_interval_uses_the_default() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = ProxyClient::new(channel(&proxy).await);
    let watching = client.watch(v1::WatchRequest::default()).await.unwrap();
    let mut watching = watching.into_inner();
    for _ in 0..2 {
        within("a state", watching.message())
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn a_client_that_opens_no_window_for_responses_is_closed_and_others_are_served() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    // As many connections as one host may have.
    let mut silent = Vec::new();
    for _ in 0..2 {
        let io = tokio::net::TcpStream::connect(proxy.admin).await.unwrap();
        let handshake = h2::client::Builder::new()
            .initial_window_size(0)
            .handshake::<_, bytes::Bytes>(io);
        let (mut sender, connection) = handshake.await.unwrap();
        let connection = tokio::spawn(connection);
        let mut answers = Vec::new();
        for _ in 0..32 {
            let request = http::Request::get(format!("http://{}/metrics", proxy.admin));
            let (answer, _) = sender
                .send_request(request.body(()).unwrap(), true)
                .unwrap();
            answers.push(within("a head", answer).await.unwrap().into_body());
        }
        silent.push((connection, answers));
    }
    let asks = async || {
        let mut client = Client::connect(proxy.admin).await;
        client.send("GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await;
        client.try_head().await
    };
    assert!(asks().await.is_err(), "none is left for this host");
    let closed = async {
        for (connection, _) in &mut silent {
            let _ = connection.await;
        }
    };
    let closed = tokio::time::timeout(Duration::from_secs(60), closed).await;
    assert!(closed.is_ok(), "idle connections were closed");
    assert_eq!(asks().await.map(|head| head.status), Ok(200));
}
