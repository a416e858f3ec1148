//! crossfade fades live LLM traffic from an old generation of frontends to a new one without losing a stream.
//!
//! This page is the architecture: which rooms there are, how a request walks through them, and what must not be done.
//! How to run it is in the README and in `docs/`.
//!
//! # Rooms by floor
//!
//! A room is a top-level module. It names only rooms on lower floors, or on its own, and never in a circle;
//! `tests/contracts/architecture.rs` holds this table against the code. Rooms of floor 0 are pure: no clock, randomness, task,
//! socket, file, log or metric; `now` and random draws are arguments.
//!
//! | floor | room | what it answers for |
//! | --- | --- | --- |
//! | 5 | [`app`] | puts a process together; the only room that knows all others |
//! | 5 | [`cli`] | the arguments, and what they mean together |
//! | 4 | [`config`] | static settings of a process, from flags and environment |
//! | 4 | [`controller`] | keeps the split of every update of a cluster where the capacity is |
//! | 4 | [`discovery`] | where plans and addresses come from, and the one writer that folds them into snapshots |
//! | 4 | [`status`] | what an update and its proxies say of themselves, asked by a person, and a person's edits |
//! | 4 | [`downstream`] | clients' connections: accepting, protocol detection, HTTP/1.1 and HTTP/2 |
//! | 3 | [`proxy`] | what happens to a request between a client and the two generations |
//! | 3 | [`admin`] | `/metrics`, `/livez`, `/readyz`, `/plan`, gRPC: shows, and changes nothing but when a drain begins |
//! | 3 | [`k8s`] | what the API server sees of us: watches, Events, a leader's lease, and who owns workers |
//! | 3 | [`demo`] | two model servers, a load and a live view, around a proxy that it is handed |
//! | 2 | [`snapshot`] | what is in force: plan, pools and guard, replaced as a whole |
//! | 2 | [`upstream`] | a generation's pool: endpoints, connections, one attempt at sending a request |
//! | 2 | [`pages`] | what all admin ports have in common: answers, the live page, its last minutes |
//! | 1 | [`resource`] | the `DynamoUpdateConfig` as people write it, and the plan it means |
//! | 1 | [`guard`] | the mark by which a forwarded request is never forwarded again |
//! | 1 | [`request_body`] | a request's body, kept while it may have to be sent once more |
//! | 1 | [`files`] | small files that people name, read with a limit and replaced as a whole |
//! | 1 | [`transport`] | TCP and TLS streams as one type |
//! | 1 | [`tls`] | TLS configurations whose files are read again when they change |
//! | 1 | [`lifecycle`] | ready, settling, draining, ending |
//! | 1 | [`state_api`] | what a process tells of itself over gRPC: messages and client |
//! | 1 | [`telemetry`] | metrics, access lines, logs, traces |
//! | 0 | [`memory`] | one budget for what strangers can make the process hold |
//! | 0 | [`split`] | weights, exact assignment, affinity |
//! | 0 | [`rollout`] | from the capacity of both generations to the split, and the end of an update |
//! | 0 | [`rescue`] | when a failed request is tried on another place, and where |
//! | 0 | [`sse`] | event streams: framing, what an event means per API family, how a stream went |
//! | 0 | [`http1`] | HTTP/1.1 message syntax, strict |
//! | 0 | [`inject`] | manifests with crossfade as a sidecar, and without it again |
//! | 0 | [`printable`] | text of strangers, escaped so that it can be printed |
//!
//! Modules are `foo.rs` beside `foo/`. What decides is a pure function on floor 0; what translates sits at an edge and is
//! total or has a typed error; what does (socket, clock, task, metric) holds no policy: gather, call, match on the result.
//!
//! # The life of a request
//!
//! 1. `downstream::accept` accepts on the thread's own listener; `downstream::h1` or `downstream::h2` reads a head, or refuses it.
//! 2. `proxy::service` loads the snapshot, once: `snapshots.load()`. A request keeps it to its end, whatever plan comes.
//! 3. `proxy::route` tells what kind of request it is; `guard` whether it came from here; `proxy::traits` reads its
//!    session, its worker, its override.
//! 4. [`split::assign`] answers with a generation *and why*. One atomic operation.
//! 5. `proxy::exchange` opens the record of the exchange: a guard object that rides in the answer's body from now on.
//! 6. `proxy::attempt` sends the request to a place. When that fails, [`rescue::refuge`] says where else to try, if
//!    anywhere, and the retry budget whether there is credit for it.
//! 7. The head goes to the client at once. `proxy::body` relays the body: [`sse`] reads along, events without content are
//!    held for some seconds, and until the first content the whole request can still move to another place.
//! 8. The first content commits: the kept request body is let go, from here on bytes only pass.
//! 9. The body ends, breaks or is dropped by a client that left. The exchange records its outcome, exactly once: metrics,
//!    access line, open streams, and where they are wanted spans.
//!
//! A plan comes the other way: `discovery::file` reads it, [`resource`] judges it, `discovery::publisher` builds the
//! pools and stores a snapshot. A plan that is refused changes nothing and is told in log, metric and `/plan`.
//!
//! # The hot path
//!
//! Each thread has a current-thread runtime, a listener (`SO_REUSEPORT`) and idle connections of its own, and a request is
//! served on the thread that accepted it. With HTTP/1.1 on both sides the answer's body polls the upstream connection
//! itself: between the upstream's read and the client's write there is no task and no channel, and what ends at an event's
//! end is handed on without a copy. (HTTP/2 connections are driven by a task each, which is hyper's way.) Per request there
//! is one snapshot load and one atomic operation for the split; metric handles are resolved before. Per event after the
//! first content there is a scan for its end and a few comparisons. Access lines are gathered per thread and queued
//! together for the one thread that writes, which drops what does not fit.
//! Where a thread has many heads or small slices to write at once, it reads all that is there before it writes the first
//! (`transport::turn`). Whoever is waited for does not pay for time in which the process stood still (`transport::deadline`).
//! Traces cost one look at an `Option` while they are off; while they are on, ids at the beginning and a try to queue a span at the end.
//!
//! # What must not be done
//!
//! - Alter bytes while observing them. The decoder sees the slices that pass; where it cannot follow it goes quiet. What
//!   does alter a stream (half an event that waits, a late switch with the ids it goes on with, a closing error event) is a policy in `proxy::body`.
//! - Make up an end: never a `[DONE]` that no model server sent, never a clean close after a cut.
//! - Load the snapshot twice for a request, keep state of a request in it, or write it from a second place.
//! - Take a lock that another thread may hold, block, or spawn a task on the way of a request.
//! - Begin the split anew with a plan: its accumulator lives outside the snapshot.
//! - Send a request again after content went out, after its body was let go, or to a generation of weight 0 (except old,
//!   until it drains).
//! - Label a metric with anything that a client or a plan can choose, or log a header's value or a prompt.
//! - Panic but for a broken invariant, with `expect("why it cannot be")`.

pub mod admin;
pub mod app;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
#[cfg(feature = "kube")]
pub mod controller;
#[cfg(feature = "demo")]
pub mod demo;
pub mod discovery;
pub mod downstream;
pub mod files;
pub mod guard;
pub mod http1;
#[cfg(feature = "cli")]
pub mod inject;
#[cfg(feature = "kube")]
pub mod k8s;
pub mod lifecycle;
pub mod memory;
pub mod pages;
pub mod printable;
pub mod proxy;
pub mod request_body;
pub mod rescue;
pub mod resource;
pub mod rollout;
pub mod snapshot;
pub mod split;
pub mod sse;
pub mod state_api;
#[cfg(feature = "kube")]
pub mod status;
pub mod telemetry;
pub mod tls;
pub mod transport;
pub mod upstream;
