//! The sources of plans and addresses, and the single writer that turns them into snapshots.

mod analysis;
mod capability;
mod probe;
mod publisher;
mod resolve;
mod rolled_back;
mod source;
mod source_event;
mod state;

pub use analysis::analyse;
pub use capability::prove_continuations;
pub use probe::probe;
pub use publisher::{Publisher, TlsFault};
pub use resolve::resolve;
pub use source::{Context, Error, First, Source, open};
pub use source_event::{RequestedPlan, SourceEvent};
pub use state::State;
