//! Checks the project itself: architecture, documents, reference, protocol, image and release.
//!
//! Needs only the sources. `make reference` and `make proto` write the files that two of these compare.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test may panic"
)]

#[path = "../support/rig.rs"]
mod rig;

mod architecture;
mod charts;
mod docs;
mod features;
mod image;
mod proto;
mod reference;
mod release;
mod vocabulary;
