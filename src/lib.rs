//! crossfade moves live LLM traffic from an old generation of frontends to a new one without losing a stream.
//!
//! This page describes the architecture: the modules, the path of a request through them, and the rules of the code. The README
//! and `docs/` describe how to use crossfade.
//!
//! # Modules by level
//!
//! Each top-level module has a level, and uses only top-level modules on lower levels; `tests/contracts/architecture.rs` checks
//! the code against this table. The pure modules (analysis, backoff, continuation, duration, error_chain, failover, http1,
//! latency, memory, printable, rollout, scaling, simulation, split, sse) use no clock, randomness, task, socket, file, log, or
//! metric: `now` and random draws are arguments.
//!
//! | level | module | responsibility |
//! | --- | --- | --- |
//! | 11 | [`cli`] | command-line arguments and their validation |
//! | 10 | [`app`] | assembles the processes from the modules below |
//! | 9 | [`discovery`] | sources of plans and addresses, and the single writer that turns them into snapshots |
//! | 8 | [`config`] | static settings of a proxy process, from flags and environment |
//! | 7 | [`downstream`] | client connections: accepting, protocol detection, HTTP/1.1 and HTTP/2 |
//! | 6 | [`admin`] | the admin port of a proxy: metrics, health, plan, live page, gRPC; read-only except for drain and log level |
//! | 6 | [`proxy`] | from a request to its response: assignment, attempts, relay, outcome |
//! | 5 | [`controller`] | sets the split of every update according to the capacity; finds out whether old can be deleted; scales workers and routes clients for managed updates |
//! | 5 | [`snapshot`] | the plan in force with its pools, replaced atomically |
//! | 4 | [`managed_update`] | translates a `DynamoRollout` for `scaling` |
//! | 4 | [`pages`] | the shared parts of all admin ports: responses, quotas, the live page and its history |
//! | 4 | [`simulation`] | predicts the duration and cost of a managed update by running its decisions on a modelled cluster |
//! | 4 | [`status`] | reads, judges, and edits an update or a rollout from a user's machine |
//! | 4 | [`upstream`] | the pool of a generation: endpoints, connections, sending one attempt |
//! | 3 | [`guard`] | the header that prevents forwarding a request twice for one update |
//! | 3 | [`k8s`] | the Kubernetes API: watches, Events, the leader's Lease, counting and scaling workers |
//! | 3 | [`scaling`] | how a managed update scales both generations, one action at a time |
//! | 3 | [`state_api`] | the gRPC state of a process: messages, conversions, and client |
//! | 2 | [`request_body`] | the body of a request, kept while the request may be retried |
//! | 2 | [`resource`] | `DynamoUpdateConfig` and `DynamoRollout` as users write them, and the plan that an update defines |
//! | 2 | [`telemetry`] | metrics, access lines, logs, traces, and the counts that the analysis compares |
//! | 1 | [`analysis`] | compares new with old on the same traffic: pass, fail, or inconclusive |
//! | 1 | [`continuation`] | whether another server continues a broken stream, and how the two parts are joined |
//! | 1 | [`demo`] | two model servers, load, and a live view around a given proxy |
//! | 1 | [`failover`] | whether a failed request is retried, and on which target |
//! | 1 | [`http1`] | strict HTTP/1.1 message syntax |
//! | 1 | [`next_generation`] | creates the manifests of the next generation from the current and the edited ones |
//! | 1 | [`rollout`] | decides the split from the capacity of both generations, and the end of an update |
//! | 1 | [`tls`] | TLS configurations that are reloaded when their files change |
//! | 1 | [`transport`] | TCP and TLS streams as one type; HTTP/2 bodies; deadlines, batching, name resolution, and file descriptors |
//! | 0 | [`backoff`] | exponential backoff with jitter |
//! | 0 | [`duration`] | durations as users write them: `5s`, `1m30s`, or plain seconds |
//! | 0 | [`dynamo_graph`] | the components of a `DynamoGraphDeployment`, in both versions of its API, and the labels of their pods |
//! | 0 | [`error_chain`] | an error and its causes, in one line |
//! | 0 | [`files`] | small files named by users, read with a limit and replaced atomically; output to standard output and standard error |
//! | 0 | [`inject`] | adds crossfade to manifests as a sidecar, and removes it |
//! | 0 | [`latency`] | the scale on which latencies are counted, and the counts themselves |
//! | 0 | [`lifecycle`] | the phases of a process: ready, settling, draining, ending |
//! | 0 | [`memory`] | the budget for memory that clients and servers can make the process hold |
//! | 0 | [`model_list`] | reads and merges lists of models |
//! | 0 | [`printable`] | escapes text from outside, and formats numbers, for printing |
//! | 0 | [`split`] | weights, exact assignment, affinity |
//! | 0 | [`sse`] | event streams: framing, one file per API family, outcomes |
//!
//! A module is `foo.rs` beside `foo/`. Decisions are pure functions. Code at the edges translates (bytes, YAML, protobuf), and is
//! either total or returns a typed error. Code that acts (on a socket, clock, task, or metric) contains no policy: it gathers
//! inputs, calls a decision, and matches on the result.
//!
//! # The life of a request
//!
//! 1. `downstream::accept` accepts on the thread's own listener. `downstream::h1` or `downstream::h2` reads a head, or rejects
//!    it, and passes the request to `proxy`, which the tower layer also calls.
//! 2. `proxy::service` loads the snapshot once. The request uses it until it ends, even if the plan changes.
//! 3. `proxy::route` classifies the request, `guard` checks whether it has been forwarded before, and `proxy::attributes` reads
//!    the session, the pinned worker, and the override.
//! 4. [`split::SplitPolicy::assign`] returns a generation *and the reason*, with one atomic operation.
//! 5. `proxy::exchange` opens the record of the exchange: a guard object that later travels in the response body.
//! 6. `proxy::attempt` sends the request to a target. If that fails, [`failover::next_target`] decides where to retry, if
//!    anywhere, and the retry budget decides whether to.
//! 7. The response head goes to the client immediately. `proxy::body` relays the body while [`sse`] inspects it. Events without
//!    content are held for a few seconds; until the first content, the whole request can still be retried.
//! 8. The first content commits the response: the request body is released, and all further bytes only pass through. If the plan
//!    enables continuation, the request body is kept and [`continuation`] collects the text. When such a stream breaks,
//!    `proxy::continuing` asks other servers for the rest, under the plan that is then in force.
//! 9. The body ends, breaks, or is dropped because the client disconnected. The exchange records its outcome exactly once, in
//!    metrics, the access line, the number of open streams, and spans if tracing is on.
//!
//! A plan takes a different path: `discovery::source::file` reads it, [`resource`] validates it, `discovery::publisher` builds the pools
//! and stores a snapshot. A rejected plan changes nothing, and is reported in the log, in a metric, and on `/plan`.
//!
//! # The hot path
//!
//! Each thread has its own current-thread runtime, listener (`SO_REUSEPORT`) and idle connections, and serves a request on the
//! thread that accepted it. With HTTP/1.1 on both sides, the response body polls the upstream connection itself: between the
//! upstream's read and the client's write there is no task and no channel, and data that ends at an event boundary is passed on
//! without a copy. (Each HTTP/2 connection has a task.) A request costs one snapshot load and one atomic operation for the split;
//! metric handles are resolved in advance. After the first content, an event costs a scan for its end and a few comparisons.
//! Access lines are collected per thread, queued together for a single thread that writes them, and dropped if they do not fit. A
//! thread that has many heads or small slices to write reads everything available before the first write (`transport::batching`).
//! Time during which the process did not run does not count against a peer's deadline (`transport::deadline`). While tracing is
//! off, a request costs one additional check of an `Option`. While tracing is on, a request gets IDs at its start, and
//! crossfade tries to queue a span at its end.
//!
//! # Rules
//!
//! - Do not alter bytes while observing them. The decoder sees the slices that pass; if it cannot follow them, it stops reporting.
//!   Whatever does alter a stream (holding an incomplete event, rewriting IDs after a failover or for a continuation, adding a
//!   final error event) is a policy in `proxy::body`.
//! - Do not fake the end of a stream: send `[DONE]` only if a model server sent it, and do not close cleanly after a truncated
//!   response.
//! - Do not load the snapshot twice for a request, keep request state in it, or write it from a second place. Only a continuation
//!   loads the current snapshot, because the request's own may be hours old.
//! - Do not take a lock that another thread may hold, block, or spawn a task on the request path.
//! - Do not restart the split with a new plan: the split policies of all snapshots share one accumulator.
//! - Do not retry a request after content was sent (from then on, [`continuation`] decides what may be sent), after its body was
//!   released, or on a generation of weight 0 (except old, until it drains).
//! - Do not label a metric with anything that a client or a plan can choose, or log a header value or a prompt.
//! - Do not panic except for a broken invariant, with `expect("why it cannot be")`.

pub mod admin;
pub mod analysis;
pub mod app;
pub mod backoff;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod continuation;
#[cfg(feature = "kube")]
pub mod controller;
#[cfg(feature = "demo")]
pub mod demo;
pub mod discovery;
pub mod downstream;
#[cfg(feature = "demo")]
pub mod duration;
pub mod dynamo_graph;
pub mod error_chain;
pub mod failover;
pub mod files;
pub mod guard;
pub mod http1;
#[cfg(feature = "cli")]
pub mod inject;
#[cfg(feature = "kube")]
pub mod k8s;
pub mod latency;
pub mod lifecycle;
pub mod managed_update;
pub mod memory;
pub mod model_list;
#[cfg(feature = "cli")]
pub mod next_generation;
pub mod pages;
pub mod printable;
pub mod proxy;
pub mod request_body;
pub mod resource;
pub mod rollout;
pub mod scaling;
#[cfg(feature = "cli")]
pub mod simulation;
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
