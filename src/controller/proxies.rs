//! What a proxy says of itself, followed for as long as it is alive.
//!
//! Must not know what follows from it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lookout::Teller;
use crate::rollout::Sides;
use crate::state_api::v1::State;
use crate::state_api::{Client, Error, whole};

/// How long a proxy may take for anything.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it says something though nothing has changed.
const INTERVAL: Duration = Duration::from_secs(1);
/// The pause before a proxy that does not answer is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// What a proxy says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// `metadata.uid` of the resource in force there, and its generation.
    pub uid: Option<String>,
    pub generation: u64,
    pub open: Sides<u64>,
    /// Requests of the last minute that were open to the split.
    pub assigned: Sides<u64>,
}

impl Report {
    /// The part of it by which something may be decided.
    fn essence(&self) -> (Option<&str>, u64, bool, bool) {
        let (old, new) = (self.open.old == 0, self.open.new == 0);
        (self.uid.as_deref(), self.generation, old, new)
    }
}

impl From<&State> for Report {
    fn from(state: &State) -> Self {
        let resource = state.plan.as_ref().and_then(|plan| plan.resource.as_ref());
        let open = |side: &Option<crate::state_api::v1::Generation>| {
            side.as_ref().map_or(0, |side| side.open_streams)
        };
        let assigned = state.assigned_last_minute.as_ref();
        Self {
            uid: resource.and_then(|resource| resource.uid.clone()),
            generation: resource
                .and_then(|resource| resource.generation)
                .and_then(|generation| u64::try_from(generation).ok())
                .unwrap_or(0),
            open: Sides {
                old: open(&state.old),
                new: open(&state.new),
            },
            assigned: Sides {
                old: assigned.map_or(0, |requests| requests.old),
                new: assigned.map_or(0, |requests| requests.new),
            },
        }
    }
}

/// What was last heard of a proxy.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// Its state, or why it says nothing.
    pub state: Result<Arc<State>, Arc<str>>,
    /// When it last said something, if it ever did.
    pub at: Option<Instant>,
}

impl Heard {
    /// What it says now, if it answers.
    pub fn report(&self) -> Option<Report> {
        self.state.as_ref().ok().map(|state| Report::from(&**state))
    }
}

/// Follows the proxy whose admin port is at `address`.
pub(super) async fn follow(address: String, teller: Teller<Heard>) {
    let mut last: Option<(Report, Instant)> = None;
    let mut at = None;
    loop {
        let silence = match watch(&address, &teller, &mut last).await {
            Ok(()) => "has ended".to_owned(),
            Err(error) => whole(&error),
        };
        tracing::debug!(address, error = silence, "a proxy does not answer");
        let before = last.take();
        at = before.as_ref().map(|(_, at)| *at).or(at);
        let state = Err(silence.into());
        teller.tell(Heard { state, at }, before.is_some());
        tokio::time::sleep(PAUSE).await;
    }
}

async fn watch(
    address: &str,
    teller: &Teller<Heard>,
    last: &mut Option<(Report, Instant)>,
) -> Result<(), Error> {
    let client = Client::connect(address, PATIENCE).await?;
    let mut states = client.watch(INTERVAL).await?;
    while let Some(state) = states.next().await? {
        let (report, now) = (Report::from(&state), Instant::now());
        let before = last.as_ref().map(|(report, _)| report.essence());
        let matters = before != Some(report.essence());
        let heard = Heard {
            state: Ok(Arc::new(state)),
            at: Some(now),
        };
        teller.tell(heard, matters);
        *last = Some((report, now));
    }
    Ok(())
}
