//! The state of a proxy over gRPC: the messages of `proto/crossfade/v1`, conversions to them, and a client.

mod assessment;
mod client;
mod convert;
mod json;
mod limits;
mod total;
#[allow(clippy::all, clippy::pedantic, reason = "generated")]
#[rustfmt::skip]
pub mod v1;

pub use assessment::{Assessment, Level, assess, assess_analysis};
pub use client::{Client, Error, StateStream};
pub use convert::proto_duration;
pub use limits::reported;
pub use total::total;

#[cfg(feature = "kube")]
use crate::resource::status::AnalysisStatus;

/// The descriptors of `proto/crossfade/v1` and of what it imports, a `google.protobuf.FileDescriptorSet`: for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("state_api/v1.binpb");

impl v1::State {
    /// The resource of the plan in force, if it comes from one.
    #[must_use]
    pub fn resource(&self) -> Option<&v1::Resource> {
        self.plan.as_ref()?.resource.as_ref()
    }

    /// The verdict on new, if the proxy evaluates it on its own.
    #[must_use]
    pub fn verdict(&self) -> Option<&v1::Analysis> {
        self.plan.as_ref()?.analysis.as_ref()
    }
}

#[cfg(feature = "kube")]
impl From<&AnalysisStatus> for v1::Analysis {
    fn from(status: &AnalysisStatus) -> Self {
        Self {
            verdict: status.verdict.as_str().to_owned(),
            text: status.message.clone(),
            rolled_back: status.rolled_back,
        }
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
