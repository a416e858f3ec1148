//! The data plane: what happens to a request between a client and the two generations.
//!
//! `service` is the life of a request, `attempt` its attempts, `backend` where they go; `respond` and `body` are the life of its
//! answer; `server` and below it the connections of clients. `context` is what all of them share.

mod attempt;
mod backend;
mod body;
mod body_timeout;
mod context;
mod error;
mod exchange;
mod feed;
mod h1;
mod h2;
mod head;
mod layer;
mod limits;
mod listener;
mod models;
mod prefetch;
mod respond;
mod route;
mod server;
mod service;
mod traits;
mod tunnel;

pub use backend::{OldPool, OldSide, Proxy};
pub use body::SplitBody;
pub use context::{ProxySettings, Shared};
pub use error::Error;
pub use head::Client;
pub use layer::{SplitLayer, SplitService};
pub use limits::Limits;
pub use listener::Listener;
pub use route::Routes;
pub use server::serve;
