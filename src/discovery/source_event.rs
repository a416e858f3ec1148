//! What a source of plans or addresses tells the one writer of snapshots.
//!
//! Must not know what becomes of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::resource::{Manifest, Plan, Problems, Target};

/// A plan as its source gives it.
#[derive(Clone, Debug)]
pub struct RequestedPlan {
    pub plan: Arc<Plan>,
    /// The manifest it was read from, if it was.
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

/// What a source has to tell.
#[derive(Debug)]
pub enum SourceEvent {
    Plan {
        wanted: RequestedPlan,
        source: Arc<str>,
        heard: Instant,
        /// Told what became of it, if someone waits for that.
        done: Option<oneshot::Sender<Result<(), Problems>>>,
    },
    Rejected {
        problems: Problems,
        source: Arc<str>,
    },
    /// What was refused is wanted no more.
    Withdrawn,
    /// The plan in force is wanted no more, and old can take all requests. What was refused stays refused.
    AllOld { source: Arc<str> },
    /// Which addresses are behind a target, from one who knows better than the resolver; none if nobody does any more.
    Addresses {
        target: Target,
        addresses: Vec<SocketAddr>,
    },
}
