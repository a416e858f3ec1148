//! The conditions that a rollout waits for, as text for its owner.

use std::fmt;
use std::time::Duration;

use crate::printable::{are, counted, plural, thousands};
use crate::rollout::Role;
use crate::split::Generation;

/// A condition that a rollout waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A role of the accepted shape is missing.
    RoleMissing(Generation, Role),
    /// The observation may be older than the last write.
    NotCurrent,
    /// A write of an earlier leader may still arrive.
    EarlierLeader,
    /// The status of a role reflects an earlier size.
    Unobserved(Generation, Role),
    /// `intent: Hold`.
    Hold,
    /// Another client has set the size of a role.
    Contested {
        generation: Generation,
        role: Role,
        desired: u32,
        recorded: Option<u32>,
    },
    /// The object of both generations has a different number of replicas than accepted.
    Resized { desired: u32, full: u32 },
    /// The object of both generations no longer creates workers of one of them, for this reason.
    Lost(String),
    /// Something else scales a generation.
    Scaler(Generation, String),
    /// The limits do not let the rollout reach its end.
    Infeasible,
    /// The limits do not let one object replace any of its workers.
    InPlace,
    /// Both generations use as much room as the surge allows.
    Surge { occupied: u64, limit: u64 },
    /// More GPUs than the budget has left.
    Budget { used: u64, more: u64, budget: u32 },
    /// More GPUs than the quota of the namespace has left.
    Quota { more: u64, left: u32 },
    /// More pods than the quota of the namespace has left.
    PodQuota { more: u64, left: u32 },
    /// More of another resource than the quota of the namespace has left, in thousandths.
    ResourceQuota { entry: String, more: u64, left: u64 },
    /// Workers become ready and warm.
    Ready {
        generation: Generation,
        usable: u32,
        desired: u32,
        /// Whether that takes longer than `readyTimeoutSeconds`.
        overdue: bool,
    },
    /// It is unknown whether a generation serves.
    Serving(Generation),
    /// New has not passed the analysis yet.
    Verdict,
    /// New has failed the analysis.
    Failed,
    /// The minimum time between two changes of size.
    Interval,
    /// The rollout holds at a step of this many units.
    Step(u32),
    /// The proxies must apply the split: `applied` of `all` have.
    Proxies { applied: usize, all: usize },
    /// Streams on a generation end, until its remaining units can serve them. `None` if a proxy does not report their number.
    Streams {
        generation: Generation,
        open: Option<u64>,
        fit: u64,
    },
    /// Workers get less time to terminate than their streams need. `None` if the duration of streams is unknown.
    Grace {
        generation: Generation,
        grace: Option<Duration>,
        p99: Option<Duration>,
    },
    /// The last unit of a generation is the only remaining capacity.
    NoOther(Generation),
    /// The last worker of old is still needed.
    LastWorker,
    /// Clients connect directly to the frontends of new.
    DirectClients,
    /// A ready frontend of a generation.
    Frontend(Generation),
    /// A user routes clients to the frontends of new.
    Clients,
    /// It is not yet safe to delete old.
    Unsafe,
    /// The frontends of old cannot be retired, for this reason.
    CannotRetire(String),
    /// Pods end.
    Terminating(Generation),
}

impl Wait {
    /// Whether it waits for room to grow.
    #[must_use]
    pub const fn is_room(&self) -> bool {
        matches!(
            self,
            Self::Surge { .. }
                | Self::Budget { .. }
                | Self::Quota { .. }
                | Self::PodQuota { .. }
                | Self::ResourceQuota { .. }
        )
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoleMissing(generation, role) => {
                write!(f, "{} of {generation} that can be scaled: none found", role.workers())
            }
            Self::NotCurrent => f.write_str("the watch to catch up with the last write"),
            Self::EarlierLeader => f.write_str(
                "a write of an earlier leader to arrive, or a minute to pass",
            ),
            Self::Unobserved(generation, role) => {
                write!(f, "the status of {generation}'s {} to reflect their size", role.workers())
            }
            Self::Hold => f.write_str("`intent: Hold` to be lifted"),
            Self::Contested {
                generation,
                role,
                desired,
                recorded,
            } => {
                write!(f, "another client to stop scaling: it scaled {generation}'s {}", role.workers())?;
                if let Some(recorded) = recorded {
                    write!(f, " from {recorded}")?;
                }
                write!(f, " to {desired}")
            }
            Self::Resized { desired, full } => write!(
                f,
                "the number of replicas to be {full} again, as accepted: another client has set {desired}"
            ),
            Self::Lost(why) => write!(f, "a decision: {why}"),
            Self::Scaler(generation, what) => write!(f, "{what} to be removed: it scales {generation}"),
            Self::Infeasible => f.write_str(
                "room for the next step: raise maxSurge, maxUnavailable, or gpuBudget",
            ),
            Self::InPlace => f.write_str(
                "at least 2 workers and a maxUnavailable of at least 1: one object has the workers of both generations",
            ),
            Self::Surge { occupied, limit } => {
                write!(
                    f,
                    "room: {occupied} of {} {} in use, including terminating ones",
                    counted(*limit, "unit"),
                    are(*limit)
                )
            }
            Self::Budget {
                used,
                more: 0,
                budget,
            } => write!(f, "a gpuBudget of at least {used}: with {budget}, the rollout could not go back to old"),
            Self::Budget { used, more, budget } => {
                write!(f, "{more} more {}: {used} of gpuBudget {budget} are in use", plural(*more, "GPU"))
            }
            Self::Quota { more, left } => {
                write!(
                    f,
                    "{more} more {}: the quota of the namespace has {left} left",
                    plural(*more, "GPU")
                )
            }
            Self::PodQuota { more, left } => {
                write!(
                    f,
                    "{more} more {}: the quota of the namespace has {left} left",
                    plural(*more, "pod")
                )
            }
            Self::ResourceQuota { entry, more, left } => {
                let (more, left) = (quantity(entry, *more), quantity(entry, *left));
                write!(f, "{more} more of {entry}: the quota of the namespace has {left} left")
            }
            Self::Ready {
                generation,
                usable,
                desired,
                overdue,
            } => {
                write!(
                    f,
                    "{generation} to be ready: {usable} of {} {} ready",
                    counted((*desired).into(), "unit"),
                    are((*desired).into())
                )?;
                f.write_str(if *overdue { " (timed out)" } else { "" })
            }
            Self::Serving(generation) => write!(f, "{generation} to serve requests"),
            Self::Verdict => f.write_str("the analysis of new to pass"),
            Self::Failed => f.write_str("a decision: new has failed the analysis"),
            Self::Interval => f.write_str("`stepIntervalSeconds` to elapse"),
            Self::Step(units) => {
                write!(f, "the step of {} to end", counted((*units).into(), "unit"))
            }
            Self::Proxies { all: 0, .. } => f.write_str(
                "a proxy of the frontends of old: none was found, so check that `frontends.source` names their Deployment or graph, \
                 and that their pods run and have the sidecar",
            ),
            Self::Proxies { applied, all } => {
                write!(f, "the proxies to apply the split: {applied} of {all} have applied it")
            }
            Self::Streams {
                generation,
                open: Some(open),
                fit,
            } => {
                let (open, fit) = (thousands(*open), thousands(*fit));
                write!(f, "streams on {generation} to end: {open} open, at most {fit} allowed")
            }
            Self::Streams { generation, .. } => write!(
                f,
                "streams on {generation} to end: their number is unknown because a proxy does not respond"
            ),
            Self::Grace { generation, grace, p99 } => grace_text(f, *generation, *grace, *p99),
            Self::NoOther(generation) => write!(f, "{} to serve before {generation} is removed", generation.other()),
            Self::LastWorker => f.write_str("the last worker of old to be no longer needed"),
            Self::DirectClients => f.write_str("clients that connect directly to the frontends of new to disconnect"),
            Self::Frontend(generation) => write!(f, "a ready frontend of {generation}"),
            Self::Clients => f.write_str("clients to be routed to the frontends of new"),
            Self::Unsafe => f.write_str("old to be safe to delete"),
            Self::CannotRetire(why) => write!(
                f,
                "the frontends of old to be retired: {why}; set frontends.source to their Deployment, or set handover.retire to Keep and retire them yourself"
            ),
            Self::Terminating(generation) => write!(f, "the pods of {generation} to terminate"),
        }
    }
}

/// Thousandths of what a quota entry counts, as Kubernetes writes it.
fn quantity(entry: &str, thousandths: u64) -> String {
    let whole = thousandths / 1000;
    let is_bytes = entry.ends_with("memory") || entry.ends_with("storage");
    let units = [("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let unit = { units.into_iter() }
        .find(|(_, bits)| is_bytes && whole > 0 && whole.trailing_zeros() >= *bits);
    match unit {
        _ if !thousandths.is_multiple_of(1000) => format!("{thousandths}m"),
        Some((name, bits)) => format!("{}{name}", whole >> bits),
        None => whole.to_string(),
    }
}

fn grace_text(
    f: &mut fmt::Formatter<'_>,
    generation: Generation,
    grace: Option<Duration>,
    p99: Option<Duration>,
) -> fmt::Result {
    match (grace, p99) {
        (Some(grace), Some(p99)) => write!(
            f,
            "a longer terminationGracePeriodSeconds of {generation}: it is {} s, but 1% of streams last {} s or longer",
            thousands(grace.as_secs()),
            thousands(p99.as_secs())
        ),
        (None, _) => write!(
            f,
            "the terminationGracePeriodSeconds of {generation} to be known"
        ),
        (_, None) => write!(f, "the duration of streams on {generation} to be known"),
    }
}
