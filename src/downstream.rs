//! Clients' connections: accepting them, telling HTTP/1.1 from HTTP/2, reading requests and writing the answers.
//!
//! Each request goes through [`Proxy::handle`](crate::proxy::Proxy::handle); which generation answers, and after how many
//! attempts, is not known here.

mod accept;
mod body_channel;
mod h1;
mod h2;
mod limits;
mod listener;
mod protocol;

pub use accept::serve;
pub use limits::Limits;
pub use listener::Listener;
