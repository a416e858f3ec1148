//! The state of the process as a `crossfade.v1` message, read on request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use prost_types::Timestamp;

use super::{Admin, endpoints, proofs};
use crate::continuation::Capability;
use crate::snapshot::{Snapshot, Status};
use crate::split::{Generation, Reason};
use crate::sse::Outcome;
use crate::state_api::{self, proto_duration, v1};
use crate::telemetry::recent::Recent;
use crate::telemetry::{Metrics, Window};

/// How long to wait for a model server that has not been contacted yet.
const READY: Duration = Duration::from_millis(500);
/// The windows of the observed split, in seconds.
const MINUTE: u64 = 60;
const FIVE_SECONDS: u64 = 5;

/// The identity of this process.
#[derive(Clone, Debug)]
pub struct Process {
    /// The name of its host; in a pod, the name of the pod.
    pub name: Arc<str>,
    pub started: SystemTime,
    started_instant: Instant,
}

impl Process {
    /// This process, started now, on the host with this name.
    #[must_use]
    pub fn starts(name: &str) -> Self {
        Self {
            name: name.into(),
            started: SystemTime::now(),
            started_instant: Instant::now(),
        }
    }

    fn message(&self) -> v1::Process {
        v1::Process {
            name: self.name.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            started: Some(self.started.into()),
            uptime: Some(proto_duration(self.started_instant.elapsed())),
        }
    }
}

impl Admin {
    pub(super) async fn state(&self) -> v1::State {
        let ready = tokio::time::timeout(READY, self.is_ready()).await;
        self.figures(ready == Ok(true))
    }

    /// The counts of both generations per kind of request.
    pub(super) fn comparison(&self, with_past: bool) -> v1::Comparison {
        let strata = &self.metrics.strata;
        let plan = &self.snapshots.load().plan;
        let series = strata.current_series(Instant::now(), with_past);
        let counts = series.counts.iter();
        v1::Comparison {
            process: Some(self.process.message()),
            counts: counts
                .map(|(age, counts)| v1::Counts::new(proto_duration(*age), counts))
                .collect(),
            series: series.number,
            series_age: Some(proto_duration(series.age)),
            new_targets: new_targets(plan),
            margins: plan
                .analysis
                .as_ref()
                .map(|analysis| v1::Margins::from(&analysis.margins)),
            rolled_back: plan.failed_analysis.as_deref().unwrap_or_default().into(),
            failed: self.status.failed(plan).unwrap_or_default(),
        }
    }

    /// The state, except for readiness, which takes time to find out.
    pub(super) fn figures(&self, ready: bool) -> v1::State {
        let snapshot = self.snapshots.load();
        let metrics = &self.metrics;
        let [old, new] = endpoints(&snapshot, Instant::now());
        let recent = metrics.recent(Instant::now());
        v1::State {
            time: Some(Timestamp::from(SystemTime::now())),
            process: Some(self.process.message()),
            phase: v1::Phase::from(self.lifecycle.phase()).into(),
            ready,
            // This is read before the open streams: by then, a request that may still reach old may have become one of them.
            plan: Some(v1::Plan {
                earlier_requests_that_may_reach_old: u64::try_from(
                    self.snapshots.earlier_requests_that_may_reach_old(),
                )
                .ok(),
                ..plan(&snapshot, &self.status, metrics)
            }),
            assigned_last_minute: Some(requests(metrics, &metrics.window, MINUTE)),
            split_total: Some(split_total(metrics)),
            old: Some(generation_state(metrics, Generation::Old, old, &recent)),
            new: Some(generation_state(metrics, Generation::New, new, &recent)),
            recovered_requests: counts(
                metrics
                    .recovered_by_cause()
                    .map(|(cause, n)| (cause.as_str(), n)),
            ),
            retries_refused: metrics.retries_refused.get(),
            rejected_requests: counts(
                metrics
                    .rejects_by_cause()
                    .map(|(cause, n)| (cause.as_str(), n)),
            ),
            assigned_last_five_seconds: Some(requests(metrics, &metrics.window, FIVE_SECONDS)),
            answered_last_minute: Some(requests(metrics, &metrics.answered, MINUTE)),
            quiet_for: Some(proto_duration(metrics.quiet_for(Instant::now()))),
            continuations: Some(self.continuations(&snapshot)),
            recovered: recovered(metrics),
            fixed_targets: Some((*self.fixed_targets).clone()),
        }
    }
}

impl Admin {
    fn continuations(&self, snapshot: &Snapshot) -> v1::Continuations {
        let mode = snapshot.plan.failover.continuation.mode;
        let count = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let [old, new] = proofs(snapshot).map(|proofs| v1::Proofs {
            supported: count(proofs.count(Capability::Supported)),
            unsupported: count(proofs.count(Capability::Unsupported)),
            unknown: count(
                proofs.count(Capability::Unknown) + proofs.count(Capability::Unauthorized),
            ),
        });
        v1::Continuations {
            mode: v1::ContinuationMode::from(mode).into(),
            continued: counts(
                self.metrics
                    .continued_by_cause()
                    .map(|(cause, n)| (cause.as_str(), n)),
            ),
            not_continued: self.metrics.not_continued_by_reason(),
            moving: self.snapshots.moving().try_into().unwrap_or(u64::MAX),
            old: Some(old),
            new: Some(new),
        }
    }
}

fn new_targets(plan: &crate::resource::Plan) -> Vec<String> {
    plan.new.iter().map(ToString::to_string).collect()
}

fn plan(snapshot: &Snapshot, status: &Status, metrics: &Metrics) -> v1::Plan {
    let plan = &snapshot.plan;
    let manifest = snapshot.manifest.as_ref();
    let rejection = status.rejection.load();
    let lost = status.lost_since.load();
    v1::Plan {
        epoch: snapshot.epoch,
        source: snapshot.source.to_string(),
        resource: manifest.map(|manifest| (&manifest.identity).into()),
        weights: Some(plan.weights.into()),
        percent: plan.weights.rounded_percent().into(),
        weights_before_cap: plan.capped_from.map(Into::into),
        max_percent: manifest
            .and_then(|manifest| manifest.spec.max_traffic_split_percent)
            .map(Into::into),
        old_drains: plan.old_drains,
        since: Some(snapshot.since.into()),
        refusal: rejection.as_ref().as_ref().map(|rejection| v1::Refusal {
            time: Some(rejection.at.into()),
            source: rejection.source.to_string(),
            problems: rejection.problems.iter().map(Into::into).collect(),
        }),
        refused_total: metrics.plans_rejected.get(),
        source_lost_for: lost.as_ref().map(|since| proto_duration(since.elapsed())),
        remarks: state_api::reported(&status.remarks.load()),
        earlier_requests_that_may_reach_old: None,
        new_targets: new_targets(plan),
        analysis: status.analysis_result(plan).map(|result| v1::Analysis {
            verdict: result.verdict.to_owned(),
            text: result.text,
            rolled_back: result.rolled_back,
        }),
    }
}

/// What `window` counted in the last `seconds`.
fn requests(metrics: &Metrics, window: &Window, seconds: u64) -> v1::Requests {
    let now = metrics.second(Instant::now());
    let (all, new) = window.totals(now, seconds);
    v1::Requests {
        old: all - new,
        new,
    }
}

fn split_total(metrics: &Metrics) -> v1::Requests {
    let ended = |generation| {
        let by = |reason| metrics.ended_by_reason(generation, reason);
        by(Reason::Weighted) + by(Reason::Sticky)
    };
    v1::Requests {
        old: ended(Generation::Old),
        new: ended(Generation::New),
    }
}

fn generation_state(
    metrics: &Metrics,
    generation: Generation,
    (healthy, known): (usize, usize),
    [minute, five_minutes]: &[Recent; 2],
) -> v1::Generation {
    let recent = |recent: &Recent| {
        let totals = &recent.generations[generation.index()];
        v1::Recent {
            length: Some(proto_duration(recent.length)),
            outcomes: Some(outcomes(totals.outcomes)),
            first_event: Some((&totals.first_event).into()),
            gap: Some((&totals.gap).into()),
            completed_by_another: totals.completed_by_another,
        }
    };
    let count = |count| u32::try_from(count).unwrap_or(u32::MAX);
    v1::Generation {
        open_streams: metrics.open_streams(generation).try_into().unwrap_or(0),
        endpoints: Some(v1::Endpoints {
            healthy: count(healthy),
            known: count(known),
        }),
        outcomes: Some(outcomes(
            Outcome::ALL.map(|outcome| metrics.outcomes(generation, outcome)),
        )),
        first_event: Some(metrics.first_event_times(generation).into()),
        gap: Some(metrics.gap_times(generation).into()),
        stream_duration: Some(metrics.stream_times(generation).into()),
        last_minute: Some(recent(minute)),
        last_five_minutes: Some(recent(five_minutes)),
        failed_attempts: Some(v1::Causes {
            counts: counts(
                metrics
                    .failed_attempts(generation)
                    .map(|(cause, n)| (cause.as_str(), n)),
            ),
        }),
    }
}

/// In the order of [`Outcome::ALL`].
const fn outcomes([completed, truncated, failed, cancelled]: [u64; 4]) -> v1::Outcomes {
    v1::Outcomes {
        completed,
        truncated,
        failed,
        cancelled,
    }
}

fn recovered(metrics: &Metrics) -> Vec<v1::Recovered> {
    let moves = metrics.recovered_moves();
    moves
        .map(|(from, to, cause, count)| v1::Recovered {
            from: from.as_str().to_owned(),
            to: to.as_str().to_owned(),
            cause: cause.as_str().to_owned(),
            count,
        })
        .collect()
}

fn counts<'a>(all: impl Iterator<Item = (&'a str, u64)>) -> BTreeMap<String, u64> {
    all.filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unreachable_source_is_reported_with_its_duration() {
        let admin = Admin::idle();
        let lost = async || admin.state().await.plan.unwrap().source_lost_for;
        assert_eq!(lost().await, None);
        let since = Instant::now().checked_sub(Duration::from_secs(90)).unwrap();
        admin.status.lost_since.store(Arc::new(Some(since)));
        assert_eq!(lost().await.unwrap().seconds, 90);
        admin.status.lost_since.store(Arc::new(None));
        assert_eq!(lost().await, None);
    }

    #[tokio::test]
    async fn remarks_about_the_source_are_on_the_page_and_in_the_state() {
        let admin = Admin::idle();
        assert!(admin.state().await.plan.unwrap().remarks.is_empty());
        let remark = "update 'a' has no effect".to_owned();
        admin.status.remarks.store(Arc::new(vec![remark.clone()]));
        let state = admin.state().await;
        assert_eq!(state.to_json()["plan"]["remarks"][0], *remark);
        let page: serde_json::Value =
            serde_json::from_slice(&super::super::plan_page::render(&admin)).unwrap();
        assert_eq!(page["remarks"][0], *remark);
        assert_eq!(state.plan.unwrap().remarks, [remark]);
    }

    #[test]
    fn a_time_keeps_its_fraction() {
        let message = proto_duration(Duration::new(3, 999_999_999));
        assert_eq!((message.seconds, message.nanos), (3, 999_999_999));
        assert_eq!(proto_duration(Duration::MAX).seconds, i64::MAX);
    }
}
