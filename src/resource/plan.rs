//! What is wanted, valid by construction: the `spec` with its contradictions refused and its
//! texts understood.
//!
//! Flags, files and clusters all come through here. Must not know files, lines or clusters.

use std::{fmt, time::Duration};

use http::{HeaderName, uri::PathAndQuery};

use super::{
    manifest::Identity,
    target::{Host, Target},
};
use crate::split::Weights;

/// What is wanted of the proxy. Made by [`Plan::of`], [`super::load`] and
/// [`Plan::all_old`] only.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// Whose plan it is; empty if it was made from flags.
    pub identity: Identity,
    /// The split, after the cap.
    pub weights: Weights,
    /// The split before the cap, if the cap lowered it.
    pub capped_from: Option<Weights>,
    /// The frontends of the new generation: at least one (but for [`Plan::all_old`]), none twice, all with or all
    /// without TLS.
    pub new: Vec<Target>,
    /// What keeps a session on one generation.
    pub affinity: Affinity,
    /// What is done for a request whose generation fails it.
    pub failover: Failover,
    /// Whether old is no fallback even while new has all requests.
    pub old_drains: bool,
    /// Regular questions to the frontends, if wanted.
    pub probe: Option<Probe>,
    /// TLS to the new generation beyond the defaults; only if [`Plan::new`] speaks TLS.
    pub tls: Option<Tls>,
}

/// What names the session of a request. Both lists may be empty, neither holds a name twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Request headers, the first one present counts.
    pub headers: Vec<HeaderName>,
    /// Top-level text fields of a JSON body, looked at after the headers.
    pub body_fields: Vec<String>,
}

/// What is done for a request whose generation fails it. All timeouts are more than zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover {
    /// Whether a request is tried on the other generation at all.
    pub enabled: bool,
    /// The largest body that is kept for a second try, in bytes.
    pub max_replay_bytes: usize,
    /// The limit for the first event with content; no limit if none.
    pub first_event_timeout: Option<Duration>,
    /// The limit for silence after the first event; no limit if none.
    pub gap_timeout: Option<Duration>,
    /// Second tries allowed, in percent of all requests, 0..=100.
    pub retry_budget_percent: u8,
    /// How long events without content are held back; zero is not at all.
    pub hold: Duration,
    /// Whether status 529 is a reason for a second try.
    pub retry_overloaded: bool,
    /// Whether status 500 of old is a reason for a second try on new.
    pub retry_old_server_errors: bool,
}

/// A regular question to each frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What is asked.
    pub question: Question,
    /// From one question to the next, more than zero.
    pub interval: Duration,
    /// The limit for an answer, more than zero.
    pub timeout: Duration,
}

/// What a [`Probe`] asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does `/v1/models` list any model?
    AnyModel,
    /// Is this model ready (`/v1/models/{model}/ready`)?
    Model(String),
    /// Does this path answer with status 200?
    Path(PathAndQuery),
}

/// TLS to the new generation. The files are those of the proxy and not yet read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The authorities to trust instead of the system's.
    pub ca_file: Option<String>,
    /// The name on the server's certificate instead of the target's host.
    pub server_name: Option<Host>,
    /// The files of the certificate and key that the proxy shows.
    pub client: Option<(String, String)>,
}

impl fmt::Display for Plan {
    /// In one line what the plan does with requests.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.new.is_empty() {
            return f.write_str("all to old");
        }
        let share = |weights: &Weights| {
            let new = u64::from(weights.new_weight());
            let total = new + u64::from(weights.old());
            match weights.rounded_percent() {
                percent if new * 100 == u64::from(percent) * total => format!("{percent} %"),
                percent => format!("{new} of {total} requests ({percent} %)"),
            }
        };
        write!(f, "{} to new at ", share(&self.weights))?;
        for (index, target) in self.new.iter().enumerate() {
            write!(f, "{}{target}", if index > 0 { ", " } else { "" })?;
        }
        f.write_str(", the rest to old")?;
        if let Some(wanted) = &self.capped_from {
            write!(f, "; {} wanted, but capped", share(wanted))?;
        }
        if self.old_drains {
            f.write_str("; old drains")?;
        }
        Ok(())
    }
}
