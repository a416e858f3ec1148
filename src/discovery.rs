//! Where plans and addresses come from, and the one writer that folds them into snapshots.

mod cluster;
mod file;
mod probe;
mod publisher;
mod resolve;
mod state;

pub use cluster::Cluster;
pub use file::{PlanFile, read};
pub use probe::probe;
pub use publisher::{News, Publisher, TlsFault, Wanted};
pub use resolve::resolve;
pub use state::State;
