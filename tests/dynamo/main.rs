//! Runs crossfade between two stacks of real Dynamo, in front of real uvicorn, and behind the official clients. Each Dynamo stack is
//! a frontend and a scripted worker whose text names its generation.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test may panic"
)]

#[path = "../support/rig.rs"]
mod rig;

#[path = "../support/dynamo.rs"]
mod dynamo;

mod analysis;
mod broken_streams;
mod cancel;
mod client_errors;
mod clients;
mod continuation;
mod failover;
mod pair;
mod passthrough;
mod peers;
mod split;
mod traces;
mod uvicorn;
