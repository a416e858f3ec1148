//! Routes, forwards and relays requests: [`Proxy::handle`] turns a request into a response.
//!
//! `service` handles one request, `attempt` makes its attempts, and `backend` sends them to a target; `respond` and `body` relay
//! the response, and `continuing` asks other servers for the rest of a stream that breaks. `context` is the state that all
//! requests share. Does not depend on how requests arrive: [`downstream`](crate::downstream) serves connections, [`SplitLayer`]
//! serves as a tower layer.

mod attempt;
mod attributes;
mod backend;
mod body;
mod body_timeout;
mod classify;
mod context;
mod continuing;
mod error;
mod exchange;
mod gap_sample;
mod head;
mod layer;
mod media;
mod models;
mod prefetch;
mod rejection;
mod request_id;
mod respond;
mod route;
mod service;
mod tunnel;

pub use backend::{OldBackend, OldPool, Proxy};
pub use body::{Cut, SplitBody};
pub use body_timeout::{BodyLimit, TimedBody};
pub use context::{ConnectionPermit, Permit, ProxyContext, ProxySettings};
pub use error::{Error, answer as error_answer};
pub use head::{Client, charge as charge_head};
pub use layer::{SplitLayer, SplitService};
pub use prefetch::prefetch;
pub use rejection::Rejected;
pub use route::Routes;
pub use tunnel::{Tunnel, TunnelIdle};
