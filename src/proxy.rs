//! The data plane: what happens to a request between a client and the two generations.
//!
//! `service` is the life of a request; `body` the life of its answer; `server` and below it the connections of clients.

mod attempt;
mod body;
mod body_timeout;
mod connections;
mod error;
mod exchange;
mod feed;
mod h1;
mod h2;
mod head;
mod layer;
mod listener;
mod models;
mod prefetch;
mod route;
mod server;
mod service;
mod traits;
mod tunnel;

pub use body::SplitBody;
pub use error::Error;
pub use head::Client;
pub use layer::{SplitLayer, SplitService};
pub use listener::Listener;
pub use route::Routes;
pub use server::{Limits, serve};
pub use service::{OldPool, OldSide, Proxy, ProxySettings, Shared};
