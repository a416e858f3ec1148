//! What a rollout waits for, in words for its owner.

use std::fmt;
use std::time::Duration;

use crate::rollout::Role;
use crate::split::Generation;

/// One thing that a rollout waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A role of the accepted shape is not there.
    RoleMissing(Generation, Role),
    /// What was read may be older than what was written.
    NotCurrent,
    /// The status of a role is of an earlier size.
    Unobserved(Generation, Role),
    /// `intent: Hold`.
    Hold,
    /// Somebody else has set the size of a role.
    Contested {
        side: Generation,
        role: Role,
        asked: u32,
        recorded: Option<u32>,
    },
    /// The object of both sides has another number of replicas than was accepted.
    Resized { asked: u32, full: u32 },
    /// The object of both sides makes no more workers of one of them, for this reason.
    Lost(String),
    /// Something else scales a side.
    Scaler(Generation, String),
    /// The limits do not let the rollout reach its end.
    Infeasible,
    /// The limits do not let one object replace any of its workers.
    InPlace,
    /// Both sides take up as much room as the surge admits.
    Surge { occupied: u64, limit: u64 },
    /// More GPUs than the budget has left.
    Budget { used: u64, more: u64, budget: u32 },
    /// More GPUs than the quota of the namespace has left.
    Quota { more: u64, left: u32 },
    /// Workers become ready and warm.
    Ready {
        side: Generation,
        usable: u32,
        asked: u32,
        /// Whether that takes longer than `readyTimeoutSeconds`.
        overdue: bool,
    },
    /// It is not known whether a side serves.
    Serving(Generation),
    /// New is not judged good yet.
    Verdict,
    /// New was judged bad.
    Failed,
    /// The least time between two changes of size.
    Interval,
    /// The rollout rests at a step of so many units.
    Step(u32),
    /// The proxies apply the split: so many of so many have.
    Proxies { applied: usize, all: usize },
    /// Streams on a side end, until the rest of it can carry them. `None` if a proxy does not say how many there are.
    Streams {
        side: Generation,
        open: Option<u64>,
        fit: u64,
    },
    /// Workers get less time to end than their streams need. `None` if it is not known how long streams last.
    Grace {
        side: Generation,
        grace: Option<Duration>,
        p99: Option<Duration>,
    },
    /// The last unit of a side is the last capacity there is.
    NoOther(Generation),
    /// The last worker of old is still needed.
    LastWorker,
    /// Clients come to the frontends of new directly.
    DirectClients,
    /// A ready frontend of a side.
    Frontend(Generation),
    /// A person sends the clients to the frontends of new.
    Clients,
    /// It is not yet safe to delete old.
    Unsafe,
    /// The frontends of old cannot be retired, for this reason.
    Unretirable(String),
    /// Pods end.
    Terminating(Generation),
}

impl Wait {
    /// Whether it waits for room to grow.
    pub(super) const fn is_room(&self) -> bool {
        matches!(
            self,
            Self::Surge { .. } | Self::Budget { .. } | Self::Quota { .. }
        )
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoleMissing(side, role) => {
                write!(f, "{side} has no {role} workers that can be scaled")
            }
            Self::NotCurrent => f.write_str("the API server to show what was written last"),
            Self::Unobserved(side, role) => {
                write!(f, "the status of {side}'s {role} workers to follow their size")
            }
            Self::Hold => f.write_str("the hold to end"),
            Self::Contested {
                side,
                role,
                asked,
                recorded,
            } => {
                write!(f, "somebody else has set {side}'s {role} workers to {asked}")?;
                match recorded {
                    Some(recorded) => write!(f, ", from {recorded}"),
                    None => Ok(()),
                }
            }
            Self::Resized { asked, full } => write!(
                f,
                "the {full} replicas that were accepted: somebody else has set {asked}"
            ),
            Self::Lost(why) => f.write_str(why),
            Self::Scaler(side, what) => write!(f, "{what} scales {side}: remove it first"),
            Self::Infeasible => f.write_str(
                "maxSurge, maxUnavailable and gpuBudget allow no next step: raise one of them",
            ),
            Self::InPlace => f.write_str(
                "one object has the workers of both generations: maxUnavailable must be at least 1, of at least 2 workers",
            ),
            Self::Surge { occupied, limit } => {
                write!(f, "room: {occupied} of {limit} units exist or terminate")
            }
            Self::Budget {
                used,
                more: 0,
                budget,
            } => write!(f, "a gpuBudget of {used}, which old needs: {budget} leave no way back"),
            Self::Budget { used, more, budget } => {
                write!(f, "{more} more GPUs: {used} of gpuBudget {budget} are in use")
            }
            Self::Quota { more, left } => {
                write!(f, "{more} more GPUs: the quota of the namespace has {left} left")
            }
            Self::Ready {
                side,
                usable,
                asked,
                overdue,
            } => {
                write!(f, "{side} to be ready: {usable} of {asked} units are")?;
                f.write_str(if *overdue { ", for too long" } else { "" })
            }
            Self::Serving(side) => write!(f, "{side} to be seen serving"),
            Self::Verdict => f.write_str("new to be judged good"),
            Self::Failed => f.write_str("a decision: new was judged bad"),
            Self::Interval => f.write_str("the time between two steps to pass"),
            Self::Step(units) => write!(f, "the step of {units} units to end"),
            Self::Proxies { applied, all } => {
                write!(f, "the proxies to apply the split: {applied} of {all} have")
            }
            Self::Streams {
                side,
                open: Some(open),
                fit,
            } => write!(f, "streams on {side} to end: {open} are open, {fit} may be"),
            Self::Streams { side, .. } => write!(
                f,
                "streams on {side} to end, as many as a proxy that does not answer has"
            ),
            Self::Grace { side, grace, p99 } => grace_text(f, *side, *grace, *p99),
            Self::NoOther(side) => write!(f, "{} to serve before {side} ends", side.other()),
            Self::LastWorker => f.write_str("the last worker of old not to be needed"),
            Self::DirectClients => f.write_str("no client to connect to the frontends of new directly"),
            Self::Frontend(side) => write!(f, "a ready frontend of {side}"),
            Self::Clients => f.write_str("the clients to be sent to the frontends of new"),
            Self::Unsafe => f.write_str("old to be safe to delete"),
            Self::Unretirable(why) => write!(
                f,
                "the frontends of old cannot be retired: {why}; name their Deployment by frontends.source, or set handover.retire to Keep and retire them yourself"
            ),
            Self::Terminating(side) => write!(f, "the pods of {side} to end"),
        }
    }
}

fn grace_text(
    f: &mut fmt::Formatter<'_>,
    side: Generation,
    grace: Option<Duration>,
    p99: Option<Duration>,
) -> fmt::Result {
    match (grace, p99) {
        (Some(grace), Some(p99)) => write!(
            f,
            "a longer terminationGracePeriodSeconds of {side}: {} s, and one stream in a hundred takes {} s or more",
            grace.as_secs(),
            p99.as_secs()
        ),
        (None, _) => write!(f, "the terminationGracePeriodSeconds of {side} to be known"),
        (_, None) => write!(f, "the duration of streams on {side} to be known"),
    }
}
