//! Runs the program between scripted clients and scripted model servers. Has no prerequisites.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test may panic"
)]

#[path = "../support/rig.rs"]
mod rig;

mod access_log;
mod broken_streams;
mod cancel;
mod capability;
mod comparison;
mod continuation;
mod embedded;
mod failover;
mod file_descriptors;
mod grpc;
mod guard;
mod hardening;
mod http1;
mod http2;
mod http2_fields;
mod http2_overhead;
mod http2_shared;
mod kube_embedded;
mod kube_watch;
mod lifecycle;
mod limits;
mod load_balancing;
mod metrics;
mod models;
mod moving_streams;
mod plan_file;
mod pools;
mod port_exhaustion;
mod request_smuggling;
mod rollback;
mod split;
mod stream;
mod tls;
mod tracing;
mod unread_heads;
