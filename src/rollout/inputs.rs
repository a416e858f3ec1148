//! What a step is told: what is wanted (`Settings`) and what was seen (`Observation`).
//!
//! Must not know what follows from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Lengths, Registered, Role, Workers};
use crate::split::{Generation, Weights};

/// One of something for each generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sides<T> {
    /// Of the old generation.
    pub old: T,
    /// Of the new generation.
    pub new: T,
}

impl<T> Sides<T> {
    /// The one of `generation`.
    pub const fn of(&self, generation: Generation) -> &T {
        match generation {
            Generation::Old => &self.old,
            Generation::New => &self.new,
        }
    }
}

/// What the resource asks for. The fields of its `spec` that this room knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What is updated to what: any text that changes when `sourceDeployment` or `targetDeployment` do. A [`Memory`] of
    /// another subject is forgotten.
    ///
    /// [`Memory`]: super::Memory
    pub subject: String,
    /// `paused`: nothing moves.
    pub paused: bool,
    /// `maxTrafficSplitPercent`, 0 to 100. What is above that is no cap.
    pub cap_percent: Option<u8>,
    /// `drainOld`: all to new as soon as new can serve, though old has workers.
    pub drain_old: bool,
    /// `strict`: pause and cap hold even where a side cannot serve.
    pub strict: bool,
    /// `stableSeconds`: how long capacity must have been there before it counts.
    pub stable: Duration,
    /// `ackTimeoutSeconds`: how long to wait, at most, for the proxies to apply a change before the next one.
    pub ack_timeout: Duration,
    /// `drainDeadlineSeconds`: how long streams may still run on old once it drains.
    pub drain_deadline: Option<Duration>,
    /// `workers.{old,new}.replicas`: how many workers of a role make a side whole, where a person says so.
    pub full_sizes: Sides<BTreeMap<Role, u32>>,
    /// `models`: what new must serve; by default all that old serves.
    pub models: Option<BTreeSet<String>>,
    /// Are these the last settings that could be used, while the present ones cannot? Then losses are followed, and nothing is
    /// gained or ended by them.
    pub losses_only: bool,
}

impl Settings {
    /// Those of a resource in which only `subject` is given.
    #[must_use]
    pub fn of(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            paused: false,
            cap_percent: None,
            drain_old: false,
            strict: false,
            stable: Duration::from_secs(5),
            ack_timeout: Duration::from_secs(30),
            drain_deadline: None,
            full_sizes: Sides::default(),
            models: None,
            losses_only: false,
        }
    }
}

/// What was seen, at one moment. Only a *complete* assessment makes an observation: an observer that could not list something
/// must not pass it off as being empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// `metadata.generation` of the resource.
    pub resource_generation: u64,
    /// The split that the resource asks for now.
    pub split: Weights,
    /// Does the controller own the fields of the split, as their last writer?
    pub split_is_ours: bool,
    /// `spec.oldDraining` as it is now.
    pub old_draining: bool,
    /// The resource that rules the deployment instead of this one, if one does.
    pub superseded_by: Option<String>,
    /// The workers of each side, by role; no entry where a side has no such component.
    pub workers: Sides<BTreeMap<Role, Workers>>,
    /// What each side's frontends can do.
    pub frontends: Sides<Frontends>,
    /// The proxies of the old frontends, all that are alive, whether they are ready or not.
    pub proxies: Vec<Proxy>,
    /// Where clients are led.
    pub clients: Clients,
    /// The updates whose new frontends are old's, this one among them, in a person's words. None where it is not known.
    pub updates_to_old: Option<Vec<String>>,
    /// Is all that the API server was heard to hold heard of late, so that nothing of it can have changed without notice?
    pub is_current: bool,
    /// How long streams last: those that have ended on the old generation.
    pub lengths: Lengths,
}

/// What the frontends of a side can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontends {
    /// Ready endpoints of their service.
    pub endpoints: u32,
    /// What each of them said, of those that are asked.
    pub asked: Vec<Frontend>,
    /// Why none of them can be asked, in a person's words.
    pub trouble: Option<String>,
}

/// What one frontend said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontend {
    /// Models that are really served: asked for, not only listed.
    pub models: BTreeSet<String>,
    /// How many models it lists beyond those that it is asked for.
    pub left_out: usize,
    /// The workers that it knows of.
    pub registered: Registered,
    /// Whether it answered.
    pub answer: Answer,
}

/// Whether a frontend answered what it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// It said what it serves.
    #[default]
    Heard,
    /// It was asked just now, or one of its models is tried for the first time: `models` is what is proven so far.
    NotYet,
    /// No question came to it, for a reason that lies with the controller: `models` is what was known before.
    Unasked(String),
    /// No answer came back. That may be its fault or that of the network in between.
    Silent(String),
    /// It answered, but not what was asked.
    Bad(String),
}

impl Answer {
    /// Does it say nothing of what the frontend serves by now?
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::NotYet | Self::Unasked(_))
    }

    /// Why it cannot be asked, if it cannot.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        match self {
            Self::Heard | Self::NotYet => None,
            Self::Unasked(why) | Self::Silent(why) | Self::Bad(why) => Some(why),
        }
    }
}

impl Frontends {
    /// All that any of them serves.
    pub(super) fn models(&self) -> BTreeSet<&String> {
        let each = self.asked.iter();
        each.flat_map(|frontend| &frontend.models).collect()
    }

    /// Is there one of which it is not known yet what it serves?
    pub(super) fn has_open(&self) -> bool {
        self.asked.iter().any(|frontend| frontend.answer.is_open())
    }

    /// Why one of them cannot be asked, if one cannot.
    pub(super) fn trouble(&self) -> Option<&str> {
        let mut each = self.asked.iter();
        let of_one = each.find_map(|frontend| frontend.answer.trouble());
        self.trouble.as_deref().or(of_one)
    }
}

/// Where the Services, Ingresses and routes of the cluster lead clients. Each is None where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    /// Does `clientService` lead to a ready frontend of new?
    pub reach_new: Option<bool>,
    /// Does `clientService` lead to a frontend of old, ready or not?
    pub reach_old: Option<bool>,
    /// What else leads to frontends of old, in a person's words.
    pub other_ways: Option<Vec<String>>,
}

/// One sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its pod.
    pub name: String,
    /// Is its pod ready, so that clients reach it?
    pub ready: bool,
    /// What it says of itself, or why it says nothing.
    pub state: Result<ProxyState, Silence>,
}

/// Why nothing is known of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It was asked just now, and may still answer.
    NotYet,
    /// It does not answer.
    NoAnswer,
    /// Its pod has no port of this name: it has no proxy, or one that nobody can ask. Clients reach it all the same.
    NoPort(String),
}

/// What a proxy says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyState {
    /// The generation of the resource that is in force there.
    pub applied: u64,
    /// Does the plan in force there give old no request?
    pub leaves_old: bool,
    /// Does the plan in force there say that old drains, so that no request of new falls back to it?
    pub old_drains: bool,
    /// Open requests of earlier plans that may still be sent to old. None if it does not say.
    pub may_reach_old: Option<u64>,
    /// Streams that run through it, by the side that serves them.
    pub open_streams: Sides<u64>,
    /// How new does with the requests that this proxy sends to it.
    pub new_serves: Experience,
    /// Does it leave out an endpoint of new that has failed it?
    pub new_is_impaired: bool,
}

/// What a proxy sees of a side by the requests that it sends there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Experience {
    /// It has sent none lately.
    #[default]
    None,
    /// They are answered.
    Good,
    /// They are not, or no endpoint can be used.
    Bad,
}
