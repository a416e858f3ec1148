//! The scale on which latencies are counted, and the counts themselves.

mod scale;
mod sketch;

pub use scale::{BUCKETS, FIRST_EVENT_BOUNDS, GAP_BOUNDS, Scale};
pub use sketch::{ENOUGH, Sketch};
