//! The sources of plans and addresses, and the single writer that turns them into snapshots.

#[cfg(feature = "kube")]
mod cluster;
mod file;
mod probe;
mod publisher;
mod resolve;
mod source_event;
mod state;

#[cfg(feature = "kube")]
pub use cluster::Cluster;
pub use file::{PlanFile, read, read_text};
pub use probe::probe;
pub use publisher::{Publisher, TlsFault};
pub use resolve::resolve;
pub use source_event::{RequestedPlan, SourceEvent};
pub use state::State;
