//! The proxy's live page in a real browser. Needs Chromium. Without it, the tests are skipped.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test may panic"
)]

#[path = "../support/browser.rs"]
mod browser;
#[path = "../support/page.rs"]
mod page;
#[path = "../support/rig.rs"]
mod rig;

mod live_page;
