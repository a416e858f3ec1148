//! crossfade between two stacks of real Dynamo, each a frontend and a scripted worker that says which generation it is; in
//! front of real uvicorn; and behind the official clients.

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
mod bytes;
mod cancel;
mod clients;
mod continuation;
mod ends;
mod pair;
mod peers;
mod refusals;
mod saves;
mod split;
mod traces;
mod uvicorn;
