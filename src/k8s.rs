//! What the API server sees of a proxy: the watch on the updates of one namespace, the Events it writes and, where it
//! may, the watch on the addresses behind a Service.
//!
//! Must not know what an update means nor what becomes of it.

mod connection;
mod events;
mod slices;
mod watch;

pub use connection::{Connection, Error};
pub use events::{Notice, Notices, Reporter};
pub use slices::Slices;
pub use watch::{Seen, Watch};
