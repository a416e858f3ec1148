//! What the API server sees of us: watches, Events, the lease of a leader, the addresses behind a Service, and the kinds of
//! objects that own workers.
//!
//! Must not know what an update means nor what becomes of it.

mod cache;
mod connection;
mod events;
mod lease;
mod slices;
mod watch;
pub mod workloads;

pub use cache::{Cache, Changed, NotSynced, Object, Scope};
pub use connection::{Connection, Error};
pub use events::{Notice, Notices, Reporter};
pub use lease::{Leading, Lease};
pub use slices::{Slices, port_of};
pub use watch::{Watch, WatchEvent};
