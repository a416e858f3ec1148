//! The command line as a person uses it: arguments, the demo, and `status` with what it prints. Needs nothing but the machine.

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
mod plan;
mod program;
mod simulate;
mod status;
