//! What the API server sees of a proxy: the watch on the updates of one namespace, and the Events it writes.
//!
//! Must not know what an update means nor what becomes of it.

mod connection;
mod events;
mod watch;

pub use connection::{Connection, Error};
pub use events::{Notice, Notices, Reporter};
pub use watch::{Seen, Watch};
