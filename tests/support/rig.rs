//! Everything that a test of the running program needs: model servers that follow scripts, clients that see every byte, and the
//! program itself.
//!
//! Test files include this one with `#[path]`. Does not depend on any test.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses its own part"
)]

pub mod api_server;
pub mod client;
pub mod collector;
pub mod counting;
pub mod frames;
pub mod plan_file;
pub mod port;
pub mod proxy;
pub mod scripts;
pub mod tls;
pub mod upstream;
pub mod wait;

pub use api_server::ApiServer;
pub use client::{Client, End, Response};
pub use collector::Collector;
pub use counting::{Counting, Flags, words};
pub use plan_file::{PlanFile, manifest};
pub use port::Port;
pub use proxy::Proxy;
pub use scripts::*;
pub use upstream::{Gate, Received, Script, Upstream};
pub use wait::{POLL, eventually, stands_still, stands_still_by, until, within};
