//! What happens to a request between a client and the two generations: [`Proxy::handle`] turns a request into a response.
//!
//! `service` is the life of a request, `attempt` its attempts, `backend` where they go; `respond` and `body` are the life of its
//! answer. `context` is what all requests share. How requests arrive is not known here: [`downstream`](crate::downstream)
//! serves connections, [`SplitLayer`] a tower service.

mod attempt;
mod attributes;
mod backend;
mod body;
mod body_timeout;
mod context;
mod error;
mod exchange;
mod head;
mod layer;
mod models;
mod prefetch;
mod respond;
mod route;
mod service;
mod tunnel;

pub use backend::{OldBackend, OldPool, Proxy};
pub use body::{Cut, SplitBody};
pub use body_timeout::{BodyLimit, Paced};
pub use context::{ConnectionPermit, Permit, ProxyContext, ProxySettings};
pub use error::{Error, answer as error_answer};
pub use head::Client;
pub use layer::{SplitLayer, SplitService};
pub use prefetch::prefetch;
pub use route::Routes;
pub use tunnel::{Tunnel, TunnelIdle};
