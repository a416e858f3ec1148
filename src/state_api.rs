//! What a proxy tells of itself over gRPC: the messages of `proto/crossfade/v1`, how our types become them, and a client.
//!
//! Must not know where the figures come from, nor how they are served.

mod client;
mod convert;
mod json;
mod standing;
mod total;
#[allow(clippy::all, clippy::pedantic, reason = "generated")]
#[rustfmt::skip]
pub mod v1;

use std::fmt::Write;

pub use client::{Client, Error, Watching};
pub use standing::{Level, Standing, standing};
pub use total::total;

/// The descriptors of `proto/crossfade/v1` and of what it imports, a `google.protobuf.FileDescriptorSet`: for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("state_api/v1.binpb");

impl v1::State {
    /// The resource whose edit is in force, if the plan is one's.
    #[must_use]
    pub fn resource(&self) -> Option<&v1::Resource> {
        self.plan.as_ref()?.resource.as_ref()
    }
}

impl v1::Requests {
    /// The share of new, 0 to 1; `None` without requests.
    #[must_use]
    pub fn share_of_new(&self) -> Option<f64> {
        let all = self.old.checked_add(self.new)?;
        (all > 0).then(|| self.new as f64 / all as f64)
    }
}

impl v1::Histogram {
    /// Upper bounds in seconds with cumulative counts, the last bound infinite, as [`crate::telemetry::quantile`] takes
    /// them.
    #[must_use]
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied();
        bounds
            .zip(self.cumulative_counts.iter().copied())
            .chain([(f64::INFINITY, self.count)])
            .collect()
    }
}

/// An error with all its causes, in one line.
#[must_use]
pub fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Some name their cause in their own message already.
        if !text.contains(&said) {
            let _ = write!(text, ": {said}");
        }
        cause = error.source();
    }
    text
}
