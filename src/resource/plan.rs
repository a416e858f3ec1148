//! The plan: a `spec` that is parsed, free of contradictions and valid by construction.
//!
//! Flags, files and clusters all produce plans. Does not depend on files, lines or clusters.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderName, uri::PathAndQuery};

use super::{
    manifest::Identity,
    spec::OnFailure,
    target::{Host, TargetAddress},
};
use crate::analysis::Margins;
use crate::continuation::{ContinuationPolicy, Mode};
use crate::printable::{seconds, thousands};
use crate::split::Weights;

/// The default time for which the latencies of a new frontend do not count.
const WARMUP: Duration = Duration::from_secs(60);

/// What the proxy must do. Built only by [`Plan::of`], [`super::load`], [`super::Update::plan`], [`Plan::all_old`] and
/// [`Plan::only_old`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// The update that the plan is from; empty if the plan was made from flags.
    pub identity: Identity,
    /// The split, after the cap.
    pub weights: Weights,
    /// The split before the cap, if the cap lowered it.
    pub capped_from: Option<Weights>,
    /// The frontends of the new generation: at least one (except for [`Plan::all_old`] and [`Plan::only_old`]), no duplicates,
    /// and either all or none of them with TLS.
    pub new: Vec<TargetAddress>,
    /// How sessions stay on one generation.
    pub affinity: Affinity,
    /// What to do if a generation fails a request.
    pub failover: Failover,
    /// When streams are moved off old.
    pub drain: Drain,
    /// Whether old is not a fallback even while new gets all requests.
    pub old_drains: bool,
    /// Active probes of the frontends, if enabled.
    pub probe: Option<Probe>,
    /// How new is analysed, if it is.
    pub analysis: Option<Analysis>,
    /// Why new failed, if this process has therefore moved its requests to old.
    pub failed_analysis: Option<Arc<str>>,
    /// TLS settings for the new generation beyond the defaults; only set if [`Plan::new`] uses TLS.
    pub tls: Option<Tls>,
}

/// Where a request contains its session ID. Either list may be empty; neither has duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Request headers. The first one present counts.
    pub headers: Vec<HeaderName>,
    /// Top-level text fields of a JSON body, used if no header is present.
    pub body_fields: Vec<String>,
}

/// What to do if a generation fails a request. All timeouts are greater than zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover {
    /// Whether a request may be retried on the other generation at all.
    pub enabled: bool,
    /// The largest request body that is kept for a retry, in bytes.
    pub max_replay_bytes: usize,
    /// The timeout for the first event with content, if any.
    pub first_event_timeout: Option<Duration>,
    /// The limit for silence after the first event, if any.
    pub gap_timeout: Option<Duration>,
    /// The retry budget in percent of all requests, 0..=100.
    pub retry_budget_percent: u8,
    /// How long events without content are held back; zero disables holding.
    pub hold: Duration,
    /// Whether status 529 triggers a retry.
    pub retry_overloaded: bool,
    /// Whether status 500 from old triggers a retry on new.
    pub retry_old_server_errors: bool,
    /// Whether and how a stream that breaks after its first content is continued.
    pub continuation: ContinuationPolicy,
}

/// When streams are moved off old, and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// How long streams may stay on old after all requests go to new; `None` means until they end. Only set if
    /// [`Failover::continuation`] allows the other generation.
    pub move_after: Option<Duration>,
    /// How many streams a process may move per second, greater than zero.
    pub move_rate: u32,
}

/// How much worse than old new may be.
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    pub margins: Margins,
    /// How long the latencies of a newly added frontend of new are ignored.
    pub warmup: Duration,
    pub on_failure: OnFailure,
}

/// An active probe of each frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What the probe checks.
    pub kind: ProbeKind,
    /// The time between probes, greater than zero.
    pub interval: Duration,
    /// The timeout of a probe, greater than zero.
    pub timeout: Duration,
}

/// What a [`Probe`] checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// `/v1/models` lists a model.
    AnyModel,
    /// The model is ready (`/v1/models/{model}/ready`).
    Model(String),
    /// The path answers with status 200.
    Path(PathAndQuery),
}

/// TLS to the new generation. The files are on the proxy's file system and have not been read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The CA certificates to trust instead of those of the system.
    pub ca_file: Option<String>,
    /// The name that the server's certificate must contain, instead of the target's host.
    pub server_name: Option<Host>,
    /// The files of the client certificate and its key.
    pub client: Option<(String, String)>,
}

impl Plan {
    /// How long the latencies of a newly added frontend of new are ignored.
    #[must_use]
    pub fn warmup(&self) -> Duration {
        self.analysis
            .as_ref()
            .map_or(WARMUP, |analysis| analysis.warmup)
    }

    /// Whether old can serve all requests if new fails. Not if it drains, which it does once new gets all of them.
    #[must_use]
    pub fn may_roll_back(&self) -> bool {
        !self.old_takes_nothing() && !self.weights.is_all_old()
    }

    /// Whether old drains while new gets all requests.
    #[must_use]
    pub fn old_takes_nothing(&self) -> bool {
        self.old_drains && self.weights.is_all_new()
    }

    /// The same plan with all requests to old, because new has failed the analysis.
    #[must_use]
    pub fn rolled_back(&self, why: &str) -> Self {
        Self {
            weights: Weights::ALL_OLD,
            failed_analysis: Some(why.into()),
            ..self.clone()
        }
    }
}

impl fmt::Display for Plan {
    /// A description of the plan in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.new.is_empty() {
            return f.write_str("all to old");
        }
        let share = |weights: &Weights| {
            let new = u64::from(weights.new_weight());
            let total = new + u64::from(weights.old());
            match weights.rounded_percent() {
                percent if new * 100 == u64::from(percent) * total => format!("{percent}%"),
                percent => format!("{new} of {total} requests ({percent}%)"),
            }
        };
        write!(f, "{} to new at ", share(&self.weights))?;
        for (index, target) in self.new.iter().enumerate() {
            write!(f, "{}{target}", if index > 0 { ", " } else { "" })?;
        }
        f.write_str(", the rest to old")?;
        if let Some(wanted) = &self.capped_from {
            write!(f, "; {} requested, but capped", share(wanted))?;
        }
        if let Some(why) = &self.failed_analysis {
            write!(f, "; rolled back: {why}")?;
        }
        if self.old_drains {
            f.write_str("; old drains")?;
        }
        match self.failover.continuation.mode {
            Mode::Off => {}
            Mode::SameGeneration => {
                f.write_str("; broken streams are continued in their generation")?;
            }
            Mode::AnyGeneration => f.write_str("; broken streams are continued")?,
        }
        if let Some(after) = self.drain.move_after {
            let (after, rate) = (seconds(after), thousands(self.drain.move_rate.into()));
            write!(
                f,
                "; streams move off old {after} after its share becomes 0, {rate} per second"
            )?;
        }
        Ok(())
    }
}
