//! The companion controller: keeps the split of every update where the capacity is.
//!
//! ```text
//! watches, proxies, frontends ──▶ observe ──▶ rollout::step ──▶ story ──▶ apply: spec, status, Events
//!                                    ▲                                       │
//!                                    └────────── the resource itself ◀───────┘
//! ```
//!
//! Each update is looked at when something that concerns it has changed, at the moment that its last decision named, and
//! now and then. All that outlives a look is in the resource's status, so a restart goes on from there. One update's error
//! holds up that update alone, for longer each time. Only the replica that surely leads looks and writes. What decides is
//! [`crate::rollout`]; this room only observes, applies and tells. Must not know how a split is decided.

mod apply;
mod backoff;
mod dashboard;
mod dry_run;
mod http;
mod index;
mod invalid;
mod job;
mod limits;
mod metrics;
mod models;
mod observer;
mod old_frontends;
mod pages;
mod parsed;
mod poller;
mod proxies;
mod queue;
mod reconcile;
mod settings;
mod status;
mod tls_cache;
mod work_loop;

pub use self::{
    metrics::{Described, Metrics},
    pages::{Pages, serve},
    settings::{ControllerSettings, ProxyPods},
    work_loop::Controller,
};

use std::fmt;

/// Which update: its namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    namespace: String,
    name: String,
}

impl Key {
    /// Its name as it is told where `other` is spoken of.
    fn told_from(&self, other: &Self) -> String {
        match self.namespace == other.namespace {
            true => self.name.clone(),
            false => self.to_string(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
