//! What is measured, or takes most of a machine: many streams, the memory bound, many proxies at one API server.
//!
//! A test that measures takes [`alone`], so that no other one of this binary runs beside it.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test may panic"
)]

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

#[path = "../support/cluster.rs"]
mod cluster;
#[path = "../support/rig.rs"]
mod rig;

mod fleet;
mod memory;
mod streams;

static MACHINE: RwLock<()> = RwLock::const_new(());

/// The machine for one test. Hold it to the test's end.
async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// The machine shared with tests that also share it. Hold it to the test's end.
async fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}
