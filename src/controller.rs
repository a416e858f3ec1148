//! The Kubernetes controller: keeps the split of every update in line with the capacity of both generations, and carries out
//! managed updates (`rollouts`).
//!
//! ```text
//! watches, proxies, frontends ──▶ observe ──▶ rollout::step ──▶ apply: actions, status, Events
//!                                    ▲                              │
//!                                    └───── the resource itself ◀───┘
//! ```
//!
//! An update is reconciled when a related object changes, at the time that its last decision requested, and on a periodic resync.
//! All state that must survive a reconcile is in the resource's status, so a restarted controller continues from there. An error
//! delays only the affected update, with backoff. Only the replica that holds the lease reconciles and writes.
//!
//! This module observes, applies and reports. It contains no policy: [`crate::rollout`] makes the decisions.

mod admission;
mod apply;
mod comparisons;
mod dashboard;
mod deletion_check;
mod dry_run;
mod endpoints;
mod http;
mod index;
mod invalid;
mod job;
mod last_valid;
mod leader_client;
mod limits;
mod metrics;
mod models;
mod observer;
mod old_frontends;
mod outcome;
mod pages;
mod parsed;
mod poller;
mod proxies;
mod queue;
mod reconcile;
mod rejected_writes;
mod rollouts;
mod settings;
mod spec_fields;
mod status;
mod tls_cache;
mod tracked;
mod verdict;
mod work_loop;
mod worker_load;

pub use self::{
    admission::UpdateLimits,
    metrics::{Described, Metrics},
    pages::{Pages, serve},
    settings::{ControllerOptions, ControllerSettings, ProxyPods},
    work_loop::Controller,
};

use std::fmt;

/// Namespace and name of an update or a rollout.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    namespace: String,
    name: String,
}

impl Key {
    /// The name to print in a message about `other`: without the namespace if both have the same.
    fn name_relative_to(&self, other: &Self) -> String {
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
