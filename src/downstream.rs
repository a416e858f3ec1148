//! Serves client connections: accepts them, detects HTTP/1.1 or HTTP/2, reads requests and writes responses.
//!
//! Each request goes through [`Proxy::handle`](crate::proxy::Proxy::handle). Otherwise, this module uses only the parts of
//! `proxy` that concern connections: permits, body limits, tunnels, and error responses. Contains no policy about which
//! generation responds or how many times a request is attempted.

mod accept;
mod body_channel;
mod h1;
mod h2;
mod limits;
mod linger;
mod listener;
mod protocol;
mod refusal;

pub use accept::serve;
pub use limits::Limits;
pub use listener::Listener;
