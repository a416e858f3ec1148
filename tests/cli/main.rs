//! The command line as a person uses it: arguments, the demo, and `status` with what it prints. Needs nothing but the machine.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test may panic"
)]

#[path = "../support/manifests.rs"]
mod manifests;
#[path = "../support/rig.rs"]
mod rig;
#[path = "../support/terminal.rs"]
mod terminal;

mod check;
mod command_line;
mod demo;
mod inject;
mod judge;
mod output;
mod plan;
mod program;
mod simulate;
mod status;
