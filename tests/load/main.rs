//! Measurements, and tests that need most of the machine: many streams, the memory limit, and many proxies on one API server.
//!
//! A test that measures holds the guard [`alone`], so that no other test of this binary runs at the same time.

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

/// Reserves the machine for one test. Hold the guard to the end of the test.
async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// Shares the machine with other tests that also share it. Hold the guard to the end of the test.
async fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}
