//! Follows the state that a proxy reports on its admin port. Contains no policy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::limits::ProxyPermit;
use super::poller::PollSink;
use crate::error_chain::error_chain;
use crate::rollout::{Experience, Lengths, PerGeneration};
use crate::state_api::v1::{FixedTargets, Generation, Histogram, State};
use crate::state_api::{Client, Error};

/// Timeout of each step: connecting, opening the watch, and a report that is due.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which a proxy reports its state even if nothing has changed.
const INTERVAL: Duration = Duration::from_secs(1);
/// Pause before reconnecting to a proxy that does not answer.
const PAUSE: Duration = Duration::from_millis(500);
/// A report that is older than this is ignored. While the controller runs, no report gets this old.
const STALE: Duration = Duration::from_secs(5);
/// How long one response from new counts as proof that it serves, and how long requests may go without any response before
/// new counts as failing.
const GOOD: Duration = Duration::from_secs(60);
const UNANSWERED: Duration = Duration::from_secs(10);

/// The report of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProxyReport {
    /// `metadata.uid` of the resource in force in the proxy, and its generation.
    pub uid: Option<String>,
    pub generation: u64,
    /// Whether the plan in force gives new any weight. True if there is no plan.
    pub gives_new: bool,
    /// Whether the plan in force gives all weight to new.
    pub leaves_old: bool,
    pub old_drains: bool,
    /// The targets of new in the plan in force.
    pub new_targets: Vec<String>,
    /// The targets that do not come from a plan, if the proxy reports them.
    pub fixed_targets: Option<FixedTargets>,
    /// How long no client has sent it a request, if the proxy reports that.
    pub quiet_for: Option<Duration>,
    /// Open requests of earlier plans that may still be sent to old, if the proxy reports that.
    pub may_reach_old: Option<u64>,
    pub open: PerGeneration<u64>,
    /// Streams on old that it still has to move to new.
    pub moving: u64,
    /// Requests of the last minute that the split assigned.
    pub assigned: PerGeneration<u64>,
    /// Durations of the streams on old.
    pub lengths: Lengths,
    /// Whether the proxy considers an endpoint of new unhealthy, or knows none.
    pub new_is_impaired: bool,
}

impl ProxyReport {
    /// The part of the report that decisions depend on.
    fn decision_inputs(&self) -> (Option<&str>, u64, [bool; 8]) {
        let (old, new) = (self.open.old == 0, self.open.new == 0);
        let settled = self.may_reach_old == Some(0);
        let flags = [
            self.gives_new,
            self.leaves_old,
            self.old_drains,
            settled,
            old,
            new,
            self.moving > 0,
            self.new_is_impaired,
        ];
        (self.uid.as_deref(), self.generation, flags)
    }
}

/// Derives from successive states how new handles the requests of a proxy.
#[derive(Debug)]
struct Watcher {
    /// The count of responses from new, and when it last rose.
    answered: u64,
    at: Option<Instant>,
    /// Since when requests to new have been in flight without any response.
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

    fn observe(&mut self, state: &State, now: Instant) -> Experience {
        let Some(new) = &state.new else {
            return Experience::None;
        };
        let answered = answered(state);
        // The counters restart with the process, so a lower count only resets the baseline.
        if answered > self.answered {
            (self.at, self.waiting) = (Some(now), None);
        }
        self.answered = answered;
        let assigned = state.assigned_last_five_seconds.as_ref();
        let is_used = new.open_streams > 0 || assigned.is_some_and(|requests| requests.new > 0);
        if !is_used {
            self.waiting = None;
        } else if self.at != Some(now) {
            self.waiting.get_or_insert(now);
        }
        let lasts = |since: Option<Instant>, long| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= long)
        };
        let cannot = new.endpoints.is_some_and(|all| all.healthy == 0);
        if cannot || lasts(self.waiting, UNANSWERED) {
            // Earlier responses no longer prove anything.
            self.at = None;
            Experience::Bad
        } else if self.at.is_some() && !lasts(self.at, GOOD) {
            Experience::Good
        } else {
            Experience::None
        }
    }
}

/// Counts what new has sent: first events, gaps between events, and complete responses.
fn answered(state: &State) -> u64 {
    let count = |histogram: &Option<Histogram>| histogram.as_ref().map_or(0, |all| all.count);
    state.new.as_ref().map_or(0, |new: &Generation| {
        let whole = new.outcomes.map_or(0, |outcomes| outcomes.completed);
        let parts = [count(&new.first_event), count(&new.gap), whole];
        parts.into_iter().fold(0, u64::saturating_add)
    })
}

impl From<&State> for ProxyReport {
    fn from(state: &State) -> Self {
        let resource = state.resource();
        let plan = state.plan.as_ref();
        let open = |generation: &Option<crate::state_api::v1::Generation>| {
            generation
                .as_ref()
                .map_or(0, |generation| generation.open_streams)
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
            new_targets: plan
                .map(|plan| plan.new_targets.clone())
                .unwrap_or_default(),
            fixed_targets: state.fixed_targets.clone(),
            quiet_for: state
                .quiet_for
                .and_then(|quiet| Duration::try_from(quiet).ok()),
            may_reach_old: plan.and_then(|plan| plan.earlier_requests_that_may_reach_old),
            open: PerGeneration {
                old: open(&state.old),
                new: open(&state.new),
            },
            moving: state.continuations.as_ref().map_or(0, |all| all.moving),
            assigned: PerGeneration {
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

/// Converts cumulative to per-bucket counts. Skips bounds that are not valid durations or do not increase.
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

/// The last report of a proxy.
#[derive(Clone, Debug)]
pub(super) struct LastReport {
    /// Its state, or why there is none.
    pub state: Result<Arc<State>, Arc<str>>,
    /// When the proxy last reported, if ever.
    pub at: Option<Instant>,
    /// How new handles the requests of this proxy.
    pub new_serves: Experience,
}

impl LastReport {
    /// For a pod that cannot be polled.
    pub fn not_polled(why: String) -> Self {
        Self {
            state: Err(why.into()),
            at: None,
            new_serves: Experience::None,
        }
    }

    /// The current report, if the proxy answers.
    pub fn report(&self) -> Option<ProxyReport> {
        let state = self.state.as_ref().ok()?;
        // The controller may have been suspended since then.
        self.at.filter(|at| at.elapsed() < STALE)?;
        // A proxy that does not report both generations may have streams on either.
        let is_whole = state.old.is_some() && state.new.is_some();
        is_whole.then(|| ProxyReport::from(&**state))
    }
}

/// Follows the proxy with the admin port at `address`, and reconnects forever.
pub(super) async fn follow(address: String, sink: PollSink<LastReport>, _share: ProxyPermit) {
    let mut last: Option<(ProxyReport, Instant)> = None;
    let mut at = None;
    loop {
        let silence = match watch(&address, &sink, &mut last).await {
            Ok(()) => "the watch ended".to_owned(),
            Err(error) => error_chain(&error),
        };
        tracing::debug!(address, error = silence, "a proxy does not answer");
        let before = last.take();
        at = before.as_ref().map(|(_, at)| *at).or(at);
        let report = LastReport {
            state: Err(silence.into()),
            at,
            new_serves: Experience::None,
        };
        sink.report(report, before.is_some());
        tokio::time::sleep(PAUSE).await;
    }
}

async fn watch(
    address: &str,
    sink: &PollSink<LastReport>,
    last: &mut Option<(ProxyReport, Instant)>,
) -> Result<(), Error> {
    let client = Client::connect(address, TIMEOUT).await?;
    let mut states = client.watch(INTERVAL).await?;
    let mut watcher = None;
    let mut experience = Experience::None;
    while let Some(state) = states.next().await? {
        let (report, now) = (ProxyReport::from(&state), Instant::now());
        let watcher = watcher.get_or_insert_with(|| Watcher::of(&state));
        let seen = watcher.observe(&state, now);
        let changed = std::mem::replace(&mut experience, seen) != seen;
        let before = last.as_ref().map(|(report, _)| report.decision_inputs());
        let matters = changed || before != Some(report.decision_inputs());
        let message = LastReport {
            state: Ok(Arc::new(state)),
            at: Some(now),
            new_serves: seen,
        };
        sink.report(message, matters);
        *last = Some((report, now));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_api::v1::{Endpoints, Requests};

    #[test]
    fn proxies_without_recent_counts_of_both_generations_count_as_silent() {
        let reported_at = |state: State, at: Instant| LastReport {
            state: Ok(Arc::new(state)),
            at: Some(at),
            new_serves: Experience::None,
        };
        let reported = |state: State| reported_at(state, Instant::now());
        let mut state = State {
            old: Some(Default::default()),
            new: Some(Default::default()),
            ..State::default()
        };
        assert!(reported(state.clone()).report().is_some());
        let long_ago = Instant::now().checked_sub(STALE).unwrap();
        assert_eq!(reported_at(state.clone(), long_ago).report(), None);
        state.old = None;
        assert_eq!(reported(state).report(), None);
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
            // Responses from before the watch began prove nothing.
            (0, state(7, 1, 0, 2), None),
            (1, state(8, 1, 0, 2), Good),
            (10, state(8, 1, 0, 2), Good),
            // No response for too long, although a stream is open or a request was sent.
            (20, state(8, 1, 0, 2), Bad),
            (21, state(9, 1, 0, 2), Good),
            (22, state(9, 0, 1, 2), Good),
            (32, state(9, 0, 1, 2), Bad),
            // No requests.
            (33, state(9, 0, 0, 2), None),
            (34, state(10, 0, 0, 1), Good),
            (93, state(10, 0, 0, 2), Good),
            (94, state(10, 0, 0, 2), None),
            // No healthy endpoint.
            (95, state(11, 1, 0, 0), Bad),
            (96, State::default(), None),
        ] {
            let now = begun + Duration::from_secs(second);
            assert_eq!(watcher.observe(&seen, now), expected, "after {second} s");
        }
    }

    #[test]
    fn lengths_are_counted_bucket_by_bucket_and_nonsense_is_left_out() {
        let reported = |bounds: &[f64], cumulative_counts: &[u64], count| {
            lengths(&Histogram {
                bounds: bounds.to_vec(),
                cumulative_counts: cumulative_counts.to_vec(),
                count,
                sum: 0.0,
            })
        };
        let good = reported(&[0.5, 60.0, 3600.0], &[2, 2, 9], 10);
        let of = |bounds: &[(u64, u64)]| -> Vec<_> {
            let bounds = bounds.iter();
            bounds
                .map(|(millis, count)| (Duration::from_millis(*millis), *count))
                .collect()
        };
        assert_eq!(good.buckets, of(&[(500, 2), (60_000, 0), (3_600_000, 7)]));
        assert_eq!(good.longer, 1);
        let bad = reported(&[1.0, f64::NAN, -1.0, 0.5, 2.0], &[5, 6, 7, 8, 3], 4);
        assert_eq!(bad.buckets, of(&[(1000, 5), (2000, 0)]));
        assert_eq!(bad.longer, 0);
    }
}
