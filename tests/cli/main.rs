//! The command line as users run it: arguments, output, exit statuses, and the demo. Has no prerequisites.

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
