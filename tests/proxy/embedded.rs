//! The proxy inside an axum frontend, as in `examples/embedded.rs`: the frontend's own service is the old generation.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::rig::plan_file::{mostly_new, mostly_old};
use crate::rig::*;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use crossfade::app::{Builder, Handle};
use crossfade::proxy::SplitLayer;
use crossfade::resource::DynamoUpdateConfigSpec;
use crossfade::split::Generation;
use crossfade::sse::Outcome;
use futures_util::stream::{self, StreamExt};
use http::{StatusCode, header};

/// What the old generation, which runs in this process, does with a chat.
#[derive(Clone, Copy)]
enum Old {
    Answers,
    /// Status 503.
    Refuses,
    /// A 200 whose first event is an error.
    FailsLate,
    /// One content event, and then nothing.
    Hangs,
}

#[derive(Clone)]
struct OldState {
    old: Old,
    bodies: Arc<Mutex<Vec<String>>>,
    /// The number of open responses of old.
    open: Arc<AtomicUsize>,
}

struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn chat(State(state): State<OldState>, body: String) -> Response {
    state.bodies.lock().unwrap().push(body);
    let text = match state.old {
        Old::Answers => chat_text("old"),
        Old::Refuses => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Old::FailsLate => role("old") + &error_event(503) + DONE,
        Old::Hangs => role("old") + &content("old", 0),
    };
    state.open.fetch_add(1, Ordering::SeqCst);
    let alive = Alive(Arc::clone(&state.open));
    let events: Vec<String> = text.split_inclusive("\n\n").map(str::to_owned).collect();
    let events = stream::iter(events.into_iter().map(Ok::<_, Infallible>));
    let body = match state.old {
        Old::Hangs => Body::from_stream(events.chain(stream::pending()).map(move |event| {
            let _ = &alive;
            event
        })),
        _ => Body::from_stream(events),
    };
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// A frontend that embeds the layer, under a plan.
struct Frontend {
    address: SocketAddr,
    handle: Handle,
    state: OldState,
}

impl Frontend {
    async fn start(plan: &PlanFile, old: Old) -> Self {
        Self::of(SplitLayer::builder().file(plan.path()), old).await
    }

    async fn of(builder: Builder, old: Old) -> Self {
        let embedded = builder.start().await.unwrap();
        tokio::spawn(embedded.follow);
        let state = OldState {
            old,
            bodies: Arc::default(),
            open: Arc::default(),
        };
        let router = Router::new()
            .route(CHAT, post(chat))
            .route("/health", get(async || "healthy"))
            .with_state(state.clone())
            .layer(embedded.layer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            address,
            handle: embedded.handle,
            state,
        }
    }

    async fn chat(&self) -> crate::rig::Response {
        client::chat(self.address).await
    }

    fn served_by_old(&self) -> usize {
        self.state.bodies.lock().unwrap().len()
    }

    async fn counts(&self, generation: Generation, outcome: Outcome, count: u64) {
        let metrics = &self.handle.context.metrics;
        eventually("the outcome is counted", async || {
            metrics.outcomes(generation, outcome) == count
        })
        .await;
    }
}

#[tokio::test]
async fn the_plan_splits_requests_between_the_embedded_service_and_new() {
    let new = Upstream::start(healthy("new")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 3, 1, ""));
    let frontend = Frontend::start(&plan, Old::Answers).await;
    for _ in 0..20 {
        let response = frontend.chat().await;
        let generation = response.generation().to_owned();
        response.assert_is(chat_text(&generation));
    }
    assert!((4..=6).contains(&new.count()), "{}", new.count());
    assert_eq!(frontend.served_by_old() + new.count(), 20);
    let to_new = u64::try_from(new.count()).unwrap();
    frontend
        .counts(Generation::New, Outcome::Completed, to_new)
        .await;
    frontend
        .counts(Generation::Old, Outcome::Completed, 20 - to_new)
        .await;
}

#[tokio::test]
async fn requests_without_inference_go_to_the_embedded_service() {
    let new = Upstream::start(healthy("new")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, ""));
    let frontend = Frontend::start(&plan, Old::Answers).await;
    client::get(frontend.address, "/health")
        .await
        .assert_is("healthy");
    assert_eq!(new.count(), 0);
    frontend.chat().await.assert_is(chat_text("new"));
}

#[tokio::test]
async fn a_session_stays_on_its_generation() {
    let new = Upstream::start(healthy("new")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 1, 1, ""));
    let frontend = Frontend::start(&plan, Old::Answers).await;
    let mut to_new = 0;
    for session in 0..16 {
        let session = session.to_string();
        let ask = async || {
            let headers = [("x-session-id", session.as_str())];
            let response = client::post(frontend.address, CHAT, &headers, STREAMING).await;
            response.assert_is(chat_text(response.generation()));
            response.generation().to_owned()
        };
        let first = ask().await;
        for _ in 0..2 {
            assert_eq!(ask().await, first);
        }
        to_new += usize::from(first == "new");
    }
    assert!((1..16).contains(&to_new), "{to_new}");
}

#[tokio::test]
async fn new_recovers_requests_that_the_embedded_service_fails() {
    let new = Upstream::start(healthy("new")).await;
    for (old, head) in [(Old::Refuses, "new"), (Old::FailsLate, "old")] {
        let plan = mostly_old(&new, "");
        let frontend = Frontend::start(&plan, old).await;
        let response = frontend.chat().await;
        response.assert_is(chat_text("new"));
        assert_eq!(response.generation(), head);
        assert_eq!(frontend.served_by_old(), 1);
        assert_eq!(new.last().body(), STREAMING.as_bytes());
        assert_eq!(frontend.handle.context.metrics.recovered_total(), 1);
    }
}

#[tokio::test]
async fn the_embedded_service_recovers_requests_that_new_fails() {
    let new = Upstream::always(error_first(502)).await;
    let plan = mostly_new(&new, "");
    let frontend = Frontend::start(&plan, Old::Answers).await;
    frontend.chat().await.assert_is(chat_text("old"));
    drop(new);
    frontend.chat().await.assert_is(chat_text("old"));
    let bodies = frontend.state.bodies.lock().unwrap().clone();
    assert_eq!(bodies, [STREAMING, STREAMING]);
    assert_eq!(frontend.handle.context.metrics.recovered_total(), 2);
}

#[tokio::test]
async fn a_changed_plan_takes_effect_and_a_bad_one_does_not() {
    let new = Upstream::start(healthy("new")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 1, 0, ""));
    let frontend = Frontend::start(&plan, Old::Answers).await;
    frontend.chat().await.assert_is(chat_text("old"));
    plan.replace(&manifest(&new.url(), 0, 1, ""));
    eventually("new serves", async || {
        frontend.chat().await.generation() == "new"
    })
    .await;
    plan.replace("spec: {}");
    let metrics = &frontend.handle.context.metrics;
    eventually("the plan is refused", async || {
        metrics.plans_rejected.get() == 1
    })
    .await;
    frontend.chat().await.assert_is(chat_text("new"));
    assert_eq!(frontend.handle.context.snapshots.load().epoch, 2);
}

#[tokio::test]
async fn a_builder_accepts_flags_and_without_a_plan_source_all_requests_go_to_old() {
    let new = Upstream::start(healthy("new")).await;
    let spec = |percent| DynamoUpdateConfigSpec {
        traffic_split_percent: Some(percent),
        ..DynamoUpdateConfigSpec::to(new.url())
    };
    let frontend = Frontend::of(SplitLayer::builder(), Old::Answers).await;
    frontend.chat().await.assert_is(chat_text("old"));
    let by_flags = SplitLayer::builder().flags(spec(100));
    let frontend = Frontend::of(by_flags.clone(), Old::Answers).await;
    frontend.chat().await.assert_is(chat_text("new"));
    // Other settings of the builder.
    let limited = by_flags.with(|config| config.proxy.max_requests = 0);
    let frontend = Frontend::of(limited, Old::Answers).await;
    assert_eq!(frontend.chat().await.status, 503);
    let wrong = SplitLayer::builder().flags(spec(101)).start().await;
    assert!(
        wrong
            .err()
            .unwrap()
            .to_string()
            .contains("must be from 0 to 100")
    );
}

#[tokio::test]
async fn a_client_that_disconnects_cancels_the_embedded_service() {
    let new = Upstream::start(healthy("new")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 1, 0, ""));
    let frontend = Frontend::start(&plan, Old::Hangs).await;
    let mut client = client::open_chat(frontend.address).await;
    assert_eq!(client.head().await.status, 200);
    client.until(&content("old", 0)).await;
    assert_eq!(frontend.state.open.load(Ordering::SeqCst), 1);
    drop(client);
    eventually("the answer of old is dropped", async || {
        frontend.state.open.load(Ordering::SeqCst) == 0
    })
    .await;
    frontend
        .counts(Generation::Old, Outcome::Cancelled, 1)
        .await;
}
