//! The events that sources of plans and addresses send to the writer of snapshots.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::resource::{Manifest, Plan, Problems, TargetAddress};

/// A plan from a source.
#[derive(Clone, Debug)]
pub struct RequestedPlan {
    pub plan: Arc<Plan>,
    /// The manifest that the plan was read from, if any.
    pub manifest: Option<Arc<Manifest>>,
}

impl From<Plan> for RequestedPlan {
    fn from(plan: Plan) -> Self {
        Self {
            plan: Arc::new(plan),
            manifest: None,
        }
    }
}

impl From<(Manifest, Plan)> for RequestedPlan {
    fn from((manifest, plan): (Manifest, Plan)) -> Self {
        Self {
            plan: Arc::new(plan),
            manifest: Some(Arc::new(manifest)),
        }
    }
}

/// An event from a source.
#[derive(Debug)]
pub enum SourceEvent {
    Plan {
        wanted: RequestedPlan,
        source: Arc<str>,
        received: Instant,
        /// Receives the outcome, if the source waits for it.
        done: Option<oneshot::Sender<Result<(), Problems>>>,
    },
    Rejected {
        problems: Problems,
        source: Arc<str>,
    },
    /// The source of the plan in force no longer has a readable plan.
    Lost {
        problems: Problems,
        source: Arc<str>,
    },
    /// The rejected plan is no longer wanted.
    Withdrawn,
    /// The plan in force is no longer wanted, and old can take all requests. A rejection stays.
    AllOld { source: Arc<str> },
    /// New, at these targets, has failed the analysis of this process: all requests go to old until a plan names a different new
    /// generation.
    Failed {
        new: Vec<TargetAddress>,
        why: String,
    },
    /// The addresses behind a target, from a source that takes precedence over the resolver. An empty list hands the target
    /// back to the resolver.
    Addresses {
        target: TargetAddress,
        addresses: Vec<SocketAddr>,
    },
}
