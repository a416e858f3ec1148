//! The state of the cluster as read at a point in time. Contains no policy.

use std::collections::BTreeMap;
use std::time::Duration;

use super::UnfinishedWrite;
use crate::rollout::{PerGeneration, Role, TrialVerdict};
use crate::split::{Generation, Weights};

/// An observation. A list that could not be read is not an empty list: in that case, there is no observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutObservation {
    /// Whether this contains every write of this process, and came from a consistent list after its start. A write whose result
    /// is unknown counts as missing until it can no longer take effect.
    pub is_current: bool,
    /// What an earlier leader may have sent, as long as it may still arrive. The caller may list what was carried out since.
    pub unfinished: Vec<UnfinishedWrite>,
    /// Both generations.
    pub generations: PerGeneration<GenerationObservation>,
    /// The traffic.
    pub traffic: Traffic,
    /// The verdict on new. The caller remembers a failure.
    pub verdict: TrialVerdict,
    /// Where clients are routed.
    pub clients: ClientRouting,
    /// How long no size has changed.
    pub unchanged_for: Duration,
    /// How long no size has changed while every worker was ready.
    pub at_rest_for: Duration,
    /// How long a worker has been missing that should be ready.
    pub unready_for: Duration,
    /// How many GPUs the quota of the namespace still allows, if it limits them.
    pub quota_left: Option<u32>,
    /// How many pods the quota of the namespace still allows, if it limits them.
    pub pods_left: Option<u32>,
    /// The amounts of other resources that the quotas of the namespace still allow, by quota entry and in thousandths.
    pub resources_left: BTreeMap<String, u64>,
    /// Whether the rollout was edited after sizes were last recorded: its owner accepts what others have set.
    pub accepts_sizes: bool,
    /// Why the frontends of old cannot be retired, as text for users.
    pub retire_obstacle: Option<String>,
}

/// One generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationObservation {
    /// The workers of each role.
    pub roles: BTreeMap<Role, RoleReplicas>,
    /// Whether it serves what is required.
    pub serves: Serves,
    /// Its ready frontends.
    pub frontends: u32,
    /// An autoscaler or planner that also scales it, as text for users.
    pub scaler: Option<String>,
    /// Why it cannot get more workers, as text for users: the object of both generations no longer creates its revision.
    pub lost: Option<String>,
}

/// Whether a generation serves what is required of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Serves {
    /// Not known yet. It keeps what it has but gains nothing.
    #[default]
    Unknown,
    Yes,
    No,
}

/// The workers of one role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleReplicas {
    /// `spec.replicas`.
    pub desired: u32,
    /// Whether the status with the other numbers reflects this `spec`.
    pub observed: bool,
    /// Existing replicas that are not terminating.
    pub present: u32,
    /// Terminating replicas, which still occupy their GPUs.
    pub terminating: u32,
    /// Ready replicas.
    pub ready: u32,
    /// Ready replicas that have warmed up.
    pub warm: u32,
    /// The size last recorded as written by this rollout.
    pub recorded: Option<u32>,
    /// Whether this rollout was the last to write `spec.replicas`.
    pub ours: bool,
    /// How long a replica may take to end.
    pub grace: Option<Duration>,
    /// Which replicas are removed first.
    pub removes: RemovalOrder,
    /// What one replica consumes from the entries of a quota, in thousandths.
    pub resources: BTreeMap<String, u64>,
    /// Pods that should belong to the other generation, but that their owner does not replace by itself. They count as
    /// terminating.
    pub leaving: Vec<PodToReplace>,
}

/// A pod that should belong to the other generation. It serves until it is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodToReplace {
    pub name: String,
    pub ready: bool,
}

/// Which replicas are removed first when a role shrinks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RemovalOrder {
    /// Those that are not ready.
    #[default]
    Unready,
    /// Those with the highest ordinals, ready or not.
    Last,
    /// Those that are not ready, then those marked by `controller.kubernetes.io/pod-deletion-cost`.
    Marked(Vec<Pod>),
}

/// A pod that may be marked for early removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub ready: bool,
    /// Its open streams, if known.
    pub open_streams: Option<u64>,
    /// Whether it is marked.
    pub marked: bool,
}

/// The traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The split in the resource.
    pub split: Weights,
    /// The split that each live proxy has applied; `None` if it does not report it.
    pub applied: Vec<Option<Weights>>,
    /// How long all of them have applied this split.
    pub applied_for: Duration,
    /// Open streams. `None` if a proxy does not report them.
    pub open: Option<PerGeneration<u64>>,
    /// The 99th percentile of the stream durations. `None` if too few streams have ended.
    pub p99: Option<Duration>,
}

/// Where clients are routed, and the state of the traffic at the end of the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRouting {
    /// Whether new has served everything, including the clients. From then on, only its owner changes the clients' Service.
    pub handed_over: bool,
    /// The generation that the clients' Service selects. `None` if it selects neither or both, or is unknown.
    pub service: Option<Generation>,
    /// Whether its previous selector has been saved.
    pub selector_saved: bool,
    /// Whether clients connect directly to the frontends of new and bypass the split. `None` if unknown.
    pub direct_to_new: Option<bool>,
    /// What is missing before the last worker of old may be removed.
    pub last_worker: LastWorker,
    /// Whether old may be deleted, with its frontends.
    pub safe_to_delete_old: bool,
    /// Whether the objects of old have been retired as requested.
    pub retired: bool,
}

/// What is missing before the last worker of old may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastWorker {
    /// Nothing.
    Dispensable,
    /// Only that streams run on it.
    Streams,
    /// Something else.
    Needed,
}
