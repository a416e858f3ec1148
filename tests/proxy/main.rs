//! The running program between clients and model servers that do as told. Needs nothing but the machine.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test may panic"
)]

#[path = "../support/rig.rs"]
mod rig;

mod access;
mod cancel;
mod capability;
mod comparison;
mod continuation;
mod descriptors;
mod embedded;
mod grpc;
mod guard;
mod hardening;
mod heads;
mod honest_end;
mod http1;
mod http2;
mod kube_embedded;
mod kube_watch;
mod late_switch;
mod lifecycle;
mod limits;
mod metrics;
mod models;
mod moves;
mod plan_file;
mod pools;
mod ports;
mod rollback;
mod split;
mod spread;
mod stream;
mod tls;
mod tracing;
