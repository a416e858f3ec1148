//! Inputs of a step: what is requested ([`UpdateSettings`]) and what was observed ([`Observation`]). Contains no policy.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Lengths, OnFailure, Registered, Role, SplitStep, TrialResult, Workers};
use crate::split::{Generation, Weights};

/// A pair of values, one per generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PerGeneration<T> {
    /// The value for the old generation.
    pub old: T,
    /// The value for the new generation.
    pub new: T,
}

impl<T> PerGeneration<T> {
    /// The value for `generation`.
    pub const fn of(&self, generation: Generation) -> &T {
        match generation {
            Generation::Old => &self.old,
            Generation::New => &self.new,
        }
    }

    /// The value for `generation`, to change it.
    pub const fn of_mut(&mut self, generation: Generation) -> &mut T {
        match generation {
            Generation::Old => &mut self.old,
            Generation::New => &mut self.new,
        }
    }
}

/// The fields of the resource's `spec` that the decision uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateSettings {
    /// Identifies the update: any text that changes when `sourceDeployment` or `targetDeployment` do. A [`Memory`] with
    /// another subject is discarded.
    ///
    /// [`Memory`]: super::Memory
    pub subject: String,
    /// Where the proxies send new's requests: the targets in `newFrontendService`.
    pub new_frontends: String,
    /// `paused`: nothing moves.
    pub paused: bool,
    /// `maxTrafficSplitPercent`, 0 to 100. A greater value means no cap.
    pub cap_percent: Option<u8>,
    /// `drainOld`: send everything to new as soon as new can serve, even if old has workers.
    pub drain_old: bool,
    /// `strict`: pause and cap apply even if a generation cannot serve.
    pub strict: bool,
    /// `stableSeconds`: how long a capacity must last before it counts.
    pub stable: Duration,
    /// `ackTimeoutSeconds`: the maximum wait for the proxies to apply a change before the next one.
    pub ack_timeout: Duration,
    /// `drainDeadlineSeconds`: how long streams may keep running on old once it drains.
    pub drain_deadline: Option<Duration>,
    /// `workers.{old,new}.replicas`: the full size of each role, if the user specifies it.
    pub full_sizes: PerGeneration<BTreeMap<Role, u32>>,
    /// `models`: what new must serve. Defaults to everything that old serves.
    pub models: Option<BTreeSet<String>>,
    /// How long the proxies of old must have received no request that a client may depend on before old may be deleted.
    pub quiet_period: Duration,
    /// Identifies new: any text that changes when the spec names a different new generation.
    pub trial: String,
    /// A user's last request to retry new, which differs from any earlier one.
    pub retry: Option<String>,
    /// `analysis.onFailure`, if there is an analysis.
    pub on_failure: Option<OnFailure>,
    /// `steps`, in increasing order.
    pub steps: Vec<SplitStep>,
    /// Whether these are the last valid settings because the current ones are invalid. In that case, losses take effect, but
    /// nothing is gained, and the update neither begins to drain nor completes.
    pub losses_only: bool,
}

impl UpdateSettings {
    /// The defaults, with only `subject` given.
    #[must_use]
    pub fn of(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            new_frontends: String::new(),
            paused: false,
            cap_percent: None,
            drain_old: false,
            strict: false,
            stable: Duration::from_secs(5),
            ack_timeout: Duration::from_secs(30),
            drain_deadline: None,
            full_sizes: PerGeneration::default(),
            models: None,
            quiet_period: Duration::from_secs(10),
            trial: String::new(),
            retry: None,
            on_failure: None,
            steps: Vec::new(),
            losses_only: false,
        }
    }
}

/// An observation at a point in time. It must be *complete*: an observer that could not list a kind must not report it as empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// `metadata.generation` of the resource.
    pub resource_generation: u64,
    /// Whether the resource is being deleted.
    pub is_being_deleted: bool,
    /// Whether the rollout that manages the resource goes back to old; `None` if that is unknown.
    pub goes_back: Option<bool>,
    /// The split in the resource.
    pub split: Weights,
    /// Whether the controller owns the fields of the split, as their last writer.
    pub split_is_ours: bool,
    /// Whether the resource lacks a part of what [`Action::SetSplit`](super::Action::SetSplit) writes, although no user has set a
    /// different split.
    pub split_is_incomplete: bool,
    /// `spec.oldDraining` as observed.
    pub old_draining: bool,
    /// The resource that controls the deployment instead of this one, if any.
    pub superseded_by: Option<String>,
    /// The workers of each generation by role. A role without a component has no entry.
    pub workers: PerGeneration<BTreeMap<Role, Workers>>,
    /// The frontends of each generation.
    pub frontends: PerGeneration<Frontends>,
    /// The proxies of old's frontends: all that are alive, ready or not.
    pub proxies: Vec<ObservedProxy>,
    /// Where client traffic is routed.
    pub clients: Clients,
    /// What uses this update's old frontends as its new generation, as text for users: updates, including this one, and
    /// proxies that follow an earlier plan. `None` if unknown.
    pub updates_to_old: Option<Vec<String>>,
    /// Whether this observation includes what leads to old from other namespaces, or nothing does.
    pub sees_elsewhere: bool,
    /// Whether every watch is current, so that nothing in the API server can have changed unnoticed.
    pub is_current: bool,
    /// How long streams on the old generation lasted.
    pub lengths: Lengths,
    /// The result of the analysis, if there is one.
    pub trial_result: Option<TrialResult>,
}

/// The state of a generation's frontends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontends {
    /// Number of ready endpoints of their Service.
    pub endpoints: u32,
    /// The results of those that are queried.
    pub queried: Vec<Frontend>,
    /// How many more are not queried, because there are too many.
    pub left_out: usize,
    /// Why none of them can be queried, as text for users.
    pub error: Option<String>,
}

/// The result of querying one frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontend {
    /// Models that passed a readiness check, not all that are listed.
    pub models: BTreeSet<String>,
    /// How many listed models are not checked.
    pub left_out: usize,
    /// The workers that it has registered.
    pub registered: Registered,
    /// The Dynamo namespaces of these workers, as far as it reports them.
    pub namespaces: BTreeSet<String>,
    /// Whether it reports more of them.
    pub has_more_namespaces: bool,
    /// Whether it answered.
    pub answer: QueryResult,
}

/// Whether a frontend answered the query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QueryResult {
    /// It answered.
    #[default]
    Responded,
    /// The first query is still open, or a model is being tried for the first time: `models` holds what is proven so
    /// far.
    NotYet,
    /// The query was not sent, for a reason within the controller: `models` holds what was known before.
    NotQueried(String),
    /// No response was received. The frontend or the network may be at fault.
    NoResponse(String),
    /// It responded, but not as expected.
    Bad(String),
}

impl QueryResult {
    /// Whether it is unknown what the frontend serves now.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::NotYet | Self::NotQueried(_))
    }

    /// Why the query failed, if it did.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Responded | Self::NotYet => None,
            Self::NotQueried(why) | Self::NoResponse(why) | Self::Bad(why) => Some(why),
        }
    }
}

impl Frontends {
    /// The union of what they serve.
    pub(super) fn models(&self) -> BTreeSet<&String> {
        let each = self.queried.iter();
        each.flat_map(|frontend| &frontend.models).collect()
    }

    /// The Dynamo namespaces whose workers any of them may send requests to.
    pub(super) fn namespaces(&self) -> BTreeSet<&String> {
        let each = self.queried.iter();
        each.flat_map(|frontend| &frontend.namespaces).collect()
    }

    /// Whether these are all such namespaces of the frontends that responded. The workers of an unchecked model may belong to
    /// another one.
    pub(super) fn namespaces_are_whole(&self) -> bool {
        let mut each = self.queried.iter();
        each.all(|frontend| !frontend.has_more_namespaces && frontend.left_out == 0)
    }

    /// Whether at least one is ready and each of those that are queried has answered.
    pub(super) fn all_answer(&self) -> bool {
        let mut each = self.queried.iter();
        let answer = each.all(|frontend| frontend.answer == QueryResult::Responded);
        answer && !self.queried.is_empty() && self.error.is_none()
    }

    /// Whether it is not yet known what one of them serves.
    pub(super) fn has_open(&self) -> bool {
        self.queried
            .iter()
            .any(|frontend| frontend.answer.is_open())
    }

    /// Why one of them cannot be queried, if any.
    pub(super) fn error(&self) -> Option<&str> {
        let mut each = self.queried.iter();
        let of_one = each.find_map(|frontend| frontend.answer.error());
        self.error.as_deref().or(of_one)
    }
}

/// Where the Services, Ingresses and routes of the cluster send clients. Each is `None` if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    /// Whether `clientService` leads to a ready frontend of new.
    pub reach_new: Option<bool>,
    /// Whether `clientService` leads to a frontend of old, ready or not.
    pub reach_old: Option<bool>,
    /// What else routes to frontends of old, as text for users.
    pub other_ways: Option<Vec<String>>,
    /// The objects that route to old's frontends and bypass their proxies, as text for users.
    pub bypasses: Option<Vec<String>>,
    /// Objects that clients or new need and that are, or may be, deleted together with old, as text for users.
    pub deleted_with_old: Option<Vec<String>>,
}

/// One sidecar proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedProxy {
    /// The name of its pod.
    pub name: String,
    /// Whether its pod is ready and thus receives client traffic.
    pub ready: bool,
    /// Its reported state, or why there is none.
    pub state: Result<ProxyState, NoReport>,
}

/// Why the state of a proxy is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoReport {
    /// It has just been queried and may still respond.
    #[error("no response yet")]
    NotYet,
    #[error("does not respond")]
    NoAnswer,
    /// Its pod has no port of this name: it has no proxy, or none that can be queried. Clients can still reach it.
    #[error("no port {0}")]
    NoPort(String),
    /// Its pod reports no address, or that of another pod, whose proxy may answer instead.
    #[error("no address of its own")]
    NoOwnAddress,
    /// It is not queried, because its namespace has more proxies than this number.
    #[error("not queried: more than {0} proxies")]
    TooMany(usize),
}

impl NoReport {
    /// Whether its process may just have ended: the pod is gone only a moment later.
    pub(super) const fn may_end(&self) -> bool {
        matches!(self, Self::NotYet | Self::NoAnswer | Self::NoOwnAddress)
    }
}

/// The reported state of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyState {
    /// The generation of the resource that it has applied.
    pub applied: u64,
    /// Whether its plan sends no request to old.
    pub leaves_old: bool,
    /// Whether old drains in its plan, so that requests of new do not fall back to it.
    pub old_drains: bool,
    /// Open requests of earlier plans that may still be sent to old. `None` if it does not report them.
    pub may_reach_old: Option<u64>,
    /// Open streams through it, by the generation that serves them.
    pub open_streams: PerGeneration<u64>,
    /// The time since its last request that a client may depend on. `None` if it does not report that.
    pub quiet_for: Option<Duration>,
    /// Streams on old that it still has to move to new.
    pub moving: u64,
    /// The results of the requests that it sends to new.
    pub new_serves: Experience,
    /// Whether it excludes an endpoint of new, or has none.
    pub new_is_impaired: bool,
}

/// The results of a proxy's requests to a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Experience {
    /// It has sent none recently.
    #[default]
    None,
    /// They are answered.
    Good,
    /// They fail, or no endpoint is usable.
    Bad,
}
