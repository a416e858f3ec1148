//! Where plans and addresses come from, and the one writer that folds them into snapshots.

#[cfg(feature = "kube")]
mod cluster;
mod file;
mod news;
mod probe;
mod publisher;
mod resolve;
mod state;

#[cfg(feature = "kube")]
pub use cluster::Cluster;
pub use file::{PlanFile, read, read_text};
pub use news::{News, Wanted};
pub use probe::probe;
pub use publisher::{Publisher, TlsFault};
pub use resolve::resolve;
pub use state::State;
