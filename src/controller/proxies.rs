//! What a proxy says of itself, followed for as long as it is alive.
//!
//! Must not know what follows from it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::poller::PollSink;
use crate::error_chain::error_chain;
use crate::rollout::{Experience, Lengths, Sides};
use crate::state_api::v1::{Generation, Histogram, State};
use crate::state_api::{Client, Error};

/// How long a proxy may take for anything.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it says something though nothing has changed.
const INTERVAL: Duration = Duration::from_secs(1);
/// The pause before a proxy that does not answer is asked again.
const PAUSE: Duration = Duration::from_millis(500);
/// So long after new has answered a request of a proxy it is taken to serve; and so long a request may be without an answer.
const GOOD: Duration = Duration::from_secs(60);
const UNANSWERED: Duration = Duration::from_secs(10);

/// What a proxy says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// `metadata.uid` of the resource in force there, and its generation.
    pub uid: Option<String>,
    pub generation: u64,
    /// Does the plan in force give new anything?
    pub gives_new: bool,
    /// Does the plan in force give old nothing, and is old no fallback?
    pub leaves_old: bool,
    pub old_drains: bool,
    /// Open requests of earlier plans that may still be sent to old, if it says so.
    pub may_reach_old: Option<u64>,
    pub open: Sides<u64>,
    /// Requests of the last minute that were open to the split.
    pub assigned: Sides<u64>,
    /// How long streams on old lasted.
    pub lengths: Lengths,
    /// Does it leave out an endpoint of new, or have none at all?
    pub new_is_impaired: bool,
}

impl Report {
    /// The part of it by which something may be decided.
    fn essence(&self) -> (Option<&str>, u64, [bool; 7]) {
        let (old, new) = (self.open.old == 0, self.open.new == 0);
        let settled = self.may_reach_old == Some(0);
        let flags = [
            self.gives_new,
            self.leaves_old,
            self.old_drains,
            settled,
            old,
            new,
            self.new_is_impaired,
        ];
        (self.uid.as_deref(), self.generation, flags)
    }
}

/// How new does with the requests of a proxy, by one state after another.
#[derive(Debug)]
struct Watcher {
    /// What new has sent so far, and when that last became more.
    answered: u64,
    at: Option<Instant>,
    /// Since when requests have been on their way to new though nothing comes back.
    waiting: Option<Instant>,
}

impl Watcher {
    fn of(state: &State) -> Self {
        Self {
            answered: answered(state),
            at: None,
            waiting: None,
        }
    }

    fn see(&mut self, state: &State, now: Instant) -> Experience {
        let Some(new) = &state.new else {
            return Experience::None;
        };
        let answered = answered(state);
        // A process that began anew counts anew.
        if answered > self.answered {
            (self.at, self.waiting) = (Some(now), None);
        }
        self.answered = answered;
        let assigned = state.assigned_last_five_seconds.as_ref();
        let is_asked = new.open_streams > 0 || assigned.is_some_and(|requests| requests.new > 0);
        if !is_asked {
            self.waiting = None;
        } else if self.at != Some(now) {
            self.waiting.get_or_insert(now);
        }
        let lasts = |since: Option<Instant>, long| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= long)
        };
        let cannot = new.endpoints.is_some_and(|all| all.healthy == 0);
        if cannot || lasts(self.waiting, UNANSWERED) {
            // What it did before says nothing any more.
            self.at = None;
            Experience::Bad
        } else if self.at.is_some() && !lasts(self.at, GOOD) {
            Experience::Good
        } else {
            Experience::None
        }
    }
}

/// How much new has sent: every first event and gap between events, and every answer that came whole.
fn answered(state: &State) -> u64 {
    let count = |histogram: &Option<Histogram>| histogram.as_ref().map_or(0, |all| all.count);
    state.new.as_ref().map_or(0, |new: &Generation| {
        let whole = new.outcomes.map_or(0, |outcomes| outcomes.completed);
        let parts = [count(&new.first_event), count(&new.gap), whole];
        parts.into_iter().fold(0, u64::saturating_add)
    })
}

impl From<&State> for Report {
    fn from(state: &State) -> Self {
        let resource = state.resource();
        let plan = state.plan.as_ref();
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
            gives_new: plan
                .and_then(|plan| plan.weights)
                .is_none_or(|weights| weights.new > 0),
            leaves_old: plan
                .and_then(|plan| plan.weights)
                .is_some_and(|weights| weights.old == 0 && weights.new > 0),
            old_drains: plan.is_some_and(|plan| plan.old_drains),
            may_reach_old: plan.and_then(|plan| plan.earlier_requests_that_may_reach_old),
            open: Sides {
                old: open(&state.old),
                new: open(&state.new),
            },
            assigned: Sides {
                old: assigned.map_or(0, |requests| requests.old),
                new: assigned.map_or(0, |requests| requests.new),
            },
            lengths: state
                .old
                .as_ref()
                .and_then(|old| old.stream_duration.as_ref())
                .map(lengths)
                .unwrap_or_default(),
            new_is_impaired: state
                .new
                .as_ref()
                .and_then(|new| new.endpoints)
                .is_some_and(|all| all.healthy < all.known || all.known == 0),
        }
    }
}

/// A distribution whose counts are those of each bucket alone. What is no time or does not rise is left out.
fn lengths(histogram: &Histogram) -> Lengths {
    let (mut buckets, mut so_far) = (Vec::with_capacity(histogram.bounds.len()), 0);
    for (bound, cumulative) in histogram.bounds.iter().zip(&histogram.cumulative_counts) {
        let Ok(bound) = Duration::try_from_secs_f64(*bound) else {
            continue;
        };
        if buckets.last().is_some_and(|(last, _)| bound <= *last) {
            continue;
        }
        buckets.push((bound, cumulative.saturating_sub(so_far)));
        so_far = so_far.max(*cumulative);
    }
    Lengths {
        buckets,
        longer: histogram.count.saturating_sub(so_far),
    }
}

/// What was last heard of a proxy.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// Its state, or why it says nothing.
    pub state: Result<Arc<State>, Arc<str>>,
    /// When it last said something, if it ever did.
    pub at: Option<Instant>,
    /// How new does with its requests.
    pub new_serves: Experience,
}

impl Heard {
    /// Of a pod without this port, who cannot be asked.
    pub fn no_port(port: &str) -> Self {
        Self {
            state: Err(format!("it has no port {port}").into()),
            at: None,
            new_serves: Experience::None,
        }
    }

    /// What it says now, if it answers.
    pub fn report(&self) -> Option<Report> {
        let state = self.state.as_ref().ok()?;
        // Who does not tell of both generations may have streams on either.
        let is_whole = state.old.is_some() && state.new.is_some();
        is_whole.then(|| Report::from(&**state))
    }
}

/// Follows the proxy whose admin port is at `address`.
pub(super) async fn follow(address: String, sink: PollSink<Heard>) {
    let mut last: Option<(Report, Instant)> = None;
    let mut at = None;
    loop {
        let silence = match watch(&address, &sink, &mut last).await {
            Ok(()) => "has ended".to_owned(),
            Err(error) => error_chain(&error),
        };
        tracing::debug!(address, error = silence, "a proxy does not answer");
        let before = last.take();
        at = before.as_ref().map(|(_, at)| *at).or(at);
        let heard = Heard {
            state: Err(silence.into()),
            at,
            new_serves: Experience::None,
        };
        sink.tell(heard, before.is_some());
        tokio::time::sleep(PAUSE).await;
    }
}

async fn watch(
    address: &str,
    sink: &PollSink<Heard>,
    last: &mut Option<(Report, Instant)>,
) -> Result<(), Error> {
    let client = Client::connect(address, PATIENCE).await?;
    let mut states = client.watch(INTERVAL).await?;
    let mut watcher = None;
    let mut experience = Experience::None;
    while let Some(state) = states.next().await? {
        let (report, now) = (Report::from(&state), Instant::now());
        let watcher = watcher.get_or_insert_with(|| Watcher::of(&state));
        let seen = watcher.see(&state, now);
        let changed = std::mem::replace(&mut experience, seen) != seen;
        let before = last.as_ref().map(|(report, _)| report.essence());
        let matters = changed || before != Some(report.essence());
        let heard = Heard {
            state: Ok(Arc::new(state)),
            at: Some(now),
            new_serves: seen,
        };
        sink.tell(heard, matters);
        *last = Some((report, now));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_api::v1::{Endpoints, Requests};

    #[test]
    fn who_does_not_tell_of_both_generations_has_told_nothing() {
        let heard = |state: State| Heard {
            state: Ok(Arc::new(state)),
            at: None,
            new_serves: Experience::None,
        };
        let mut state = State {
            old: Some(Default::default()),
            new: Some(Default::default()),
            ..State::default()
        };
        assert!(heard(state.clone()).report().is_some());
        state.old = None;
        assert_eq!(heard(state).report(), None);
    }

    #[test]
    fn new_serves_by_a_proxy_while_its_requests_are_answered_and_fails_when_they_are_not() {
        use Experience::{Bad, Good, None};
        let state = |answered, open, assigned, healthy| State {
            new: Some(Generation {
                open_streams: open,
                gap: Some(Histogram {
                    count: answered,
                    ..Histogram::default()
                }),
                endpoints: Some(Endpoints { healthy, known: 2 }),
                ..Generation::default()
            }),
            assigned_last_five_seconds: Some(Requests {
                old: 1,
                new: assigned,
            }),
            ..State::default()
        };
        let begun = Instant::now();
        let mut watcher = Watcher::of(&state(7, 1, 1, 2));
        for (second, seen, expected) in [
            // What was answered before anybody watched says nothing of now.
            (0, state(7, 1, 0, 2), None),
            (1, state(8, 1, 0, 2), Good),
            (10, state(8, 1, 0, 2), Good),
            // Nothing comes for too long, though a stream is open or a request was sent.
            (20, state(8, 1, 0, 2), Bad),
            (21, state(9, 1, 0, 2), Good),
            (22, state(9, 0, 1, 2), Good),
            (32, state(9, 0, 1, 2), Bad),
            // Nobody asks.
            (33, state(9, 0, 0, 2), None),
            (34, state(10, 0, 0, 1), Good),
            (93, state(10, 0, 0, 2), Good),
            (94, state(10, 0, 0, 2), None),
            // No endpoint is left.
            (95, state(11, 1, 0, 0), Bad),
            (96, State::default(), None),
        ] {
            let now = begun + Duration::from_secs(second);
            assert_eq!(watcher.see(&seen, now), expected, "after {second} s");
        }
    }

    #[test]
    fn lengths_are_counted_bucket_by_bucket_and_nonsense_is_left_out() {
        let told = |bounds: &[f64], cumulative_counts: &[u64], count| {
            lengths(&Histogram {
                bounds: bounds.to_vec(),
                cumulative_counts: cumulative_counts.to_vec(),
                count,
                sum: 0.0,
            })
        };
        let good = told(&[0.5, 60.0, 3600.0], &[2, 2, 9], 10);
        let of = |bounds: &[(u64, u64)]| -> Vec<_> {
            let bounds = bounds.iter();
            bounds
                .map(|(millis, count)| (Duration::from_millis(*millis), *count))
                .collect()
        };
        assert_eq!(good.buckets, of(&[(500, 2), (60_000, 0), (3_600_000, 7)]));
        assert_eq!(good.longer, 1);
        let bad = told(&[1.0, f64::NAN, -1.0, 0.5, 2.0], &[5, 6, 7, 8, 3], 4);
        assert_eq!(bad.buckets, of(&[(1000, 5), (2000, 0)]));
        assert_eq!(bad.longer, 0);
    }
}
