//! A state as JSON, for pages and scripts. Field names are those of the protocol in camel case, times are RFC 3339. Derived
//! figures (shares, quantiles) are included. `null` means unknown.

use prost_types::{Duration, Timestamp};
use serde_json::{Value, json};

use super::v1;
use crate::telemetry::latency::{ENOUGH, Sketch};
use crate::telemetry::quantile;

impl v1::State {
    /// The whole state.
    #[must_use]
    pub fn to_json(&self) -> Value {
        self.to_json_with_verdict(self.verdict())
    }

    /// The whole state of the proxies of an update with this verdict of its controller.
    #[must_use]
    pub fn to_json_with_verdict(&self, verdict: Option<&v1::Analysis>) -> Value {
        let Self {
            time,
            process: who,
            phase: _,
            ready,
            plan: in_force,
            assigned_last_minute,
            split_total,
            old,
            new,
            recovered_requests,
            retries_refused,
            rejected_requests,
            assigned_last_five_seconds,
            answered_last_minute,
            quiet_for,
            continuations: continued,
            recovered: moved,
            fixed_targets,
        } = self;
        let assessment = super::assess(self, verdict);
        json!({
            "time": instant(time.as_ref()),
            "assessment": {"level": assessment.level.as_str(), "text": assessment.text},
            "process": who.as_ref().map(process),
            "phase": self.phase().as_word(),
            "ready": ready,
            "plan": in_force.as_ref().map(plan),
            "split": {
                "wanted": in_force.as_ref().and_then(v1::Plan::share_of_new),
                "observed": assigned_last_minute.as_ref().and_then(v1::Requests::share_of_new),
                "answered": answered_last_minute.as_ref().and_then(v1::Requests::share_of_new),
            },
            "assignedLastMinute": assigned_last_minute.as_ref().map(requests),
            "assignedLastFiveSeconds": assigned_last_five_seconds.as_ref().map(requests),
            "answeredLastMinute": answered_last_minute.as_ref().map(requests),
            "quietSeconds": quiet_for.as_ref().map(seconds),
            "splitTotal": split_total.as_ref().map(requests),
            "old": old.as_ref().map(generation),
            "new": new.as_ref().map(generation),
            "recoveredRequests": recovered_requests,
            "recovered": moved.iter().map(recovered).collect::<Vec<_>>(),
            "retriesRefused": retries_refused,
            "rejectedRequests": rejected_requests,
            "continuations": continued.as_ref().map(continuations),
            "fixedTargets": fixed_targets.as_ref().map(|all| json!({"old": all.old, "peers": all.peers})),
        })
    }
}

impl v1::Continuations {
    /// How many streams were continued.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.continued
            .values()
            .copied()
            .fold(0, u64::saturating_add)
    }
}

impl v1::Phase {
    /// The name in logs and on pages.
    #[must_use]
    pub fn as_word(self) -> &'static str {
        match self {
            Self::Unspecified => "unknown",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Settling => "settling",
            Self::Draining => "draining",
            Self::Ending => "ending",
        }
    }
}

impl v1::Plan {
    /// The desired share of new, 0 to 1; `None` if the weights are unknown.
    #[must_use]
    pub fn share_of_new(&self) -> Option<f64> {
        let weights = self.weights.as_ref()?;
        let all = u64::from(weights.old) + u64::from(weights.new);
        (all > 0).then(|| f64::from(weights.new) / all as f64)
    }
}

impl v1::Histogram {
    /// The value below which the share `q` of all values lies, in seconds and as exact as the buckets are; `None` without values.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        quantile(&self.buckets(), q)
    }
}

impl v1::Recent {
    /// Ended exchanges per second; `None` if unknown.
    #[must_use]
    pub fn requests_per_second(&self) -> Option<f64> {
        let seconds = self.length.as_ref().map(seconds)?;
        (seconds > 0.0).then(|| self.outcomes.unwrap_or_default().count() as f64 / seconds)
    }

    /// The share of exchanges that this generation failed, 0 to 1, among those that their clients did not cancel; `None` with
    /// fewer than [`ENOUGH`] of them. Includes those that another attempt completed.
    #[must_use]
    pub fn error_ratio(&self) -> Option<f64> {
        let outcomes = self.outcomes?;
        let for_clients = outcomes.truncated.saturating_add(outcomes.failed);
        let all = for_clients.saturating_add(outcomes.completed);
        let errors = for_clients.saturating_add(self.completed_by_another.min(outcomes.completed));
        (all >= ENOUGH).then(|| errors as f64 / all as f64)
    }
}

impl v1::Outcomes {
    /// The sum.
    #[must_use]
    pub fn count(&self) -> u64 {
        [self.completed, self.truncated, self.failed, self.cancelled]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

fn continuations(all: &v1::Continuations) -> Value {
    let v1::Continuations {
        mode: _,
        continued,
        not_continued,
        moving,
        old,
        new,
    } = all;
    let proofs = |proofs: &v1::Proofs| {
        json!({
            "supported": proofs.supported,
            "unsupported": proofs.unsupported,
            "unknown": proofs.unknown,
        })
    };
    json!({
        "mode": match all.mode() {
            v1::ContinuationMode::Unspecified => None,
            v1::ContinuationMode::Off => Some("Off"),
            v1::ContinuationMode::SameGeneration => Some("SameGeneration"),
            v1::ContinuationMode::AnyGeneration => Some("AnyGeneration"),
        },
        "total": all.count(),
        "continued": continued,
        "notContinued": not_continued,
        "moving": moving,
        "old": old.as_ref().map(proofs),
        "new": new.as_ref().map(proofs),
    })
}

fn recovered(recovered: &v1::Recovered) -> Value {
    let v1::Recovered {
        from,
        to,
        cause,
        count,
    } = recovered;
    json!({"from": from, "to": to, "cause": cause, "count": count})
}

fn process(process: &v1::Process) -> Value {
    let v1::Process {
        name,
        version,
        started,
        uptime,
    } = process;
    json!({
        "name": name,
        "version": version,
        "started": instant(started.as_ref()),
        "uptimeSeconds": uptime.as_ref().map(seconds),
    })
}

fn plan(plan: &v1::Plan) -> Value {
    let v1::Plan {
        epoch,
        source,
        resource: made_from,
        weights: in_force,
        percent,
        weights_before_cap,
        max_percent,
        old_drains,
        since,
        refusal: refused,
        refused_total,
        source_lost_for,
        remarks,
        earlier_requests_that_may_reach_old,
        new_targets,
        analysis: assessed,
    } = plan;
    json!({
        "epoch": (*epoch > 0).then_some(epoch),
        "source": source,
        "resource": made_from.as_ref().map(resource),
        "weights": in_force.as_ref().map(weights),
        "percent": percent,
        "weightsBeforeCap": weights_before_cap.as_ref().map(weights),
        "maxPercent": max_percent,
        "oldDrains": old_drains,
        "since": instant(since.as_ref()),
        "refusal": refused.as_ref().map(refusal),
        "refusedTotal": refused_total,
        "sourceLostSeconds": source_lost_for.as_ref().map(seconds),
        "remarks": remarks,
        "earlierRequestsThatMayReachOld": earlier_requests_that_may_reach_old,
        "analysis": assessed.as_ref().map(analysis),
        "newTargets": new_targets,
    })
}

fn analysis(analysis: &v1::Analysis) -> Value {
    let v1::Analysis {
        verdict,
        text,
        rolled_back,
    } = analysis;
    json!({"verdict": verdict, "text": text, "rolledBack": rolled_back})
}

fn resource(resource: &v1::Resource) -> Value {
    let v1::Resource {
        namespace,
        name,
        uid,
        generation,
    } = resource;
    json!({"namespace": namespace, "name": name, "uid": uid, "generation": generation})
}

fn weights(weights: &v1::Weights) -> Value {
    let v1::Weights { old, new } = weights;
    json!({"old": old, "new": new})
}

fn refusal(refusal: &v1::Refusal) -> Value {
    let v1::Refusal {
        time,
        source,
        problems,
    } = refusal;
    let problems: Vec<Value> = problems.iter().map(problem).collect();
    json!({"time": instant(time.as_ref()), "source": source, "problems": problems})
}

fn problem(problem: &v1::Problem) -> Value {
    let v1::Problem {
        path,
        line,
        message,
    } = problem;
    json!({"path": path, "line": line, "message": message})
}

fn requests(requests: &v1::Requests) -> Value {
    let v1::Requests { old, new } = requests;
    json!({"old": old, "new": new})
}

fn generation(generation: &v1::Generation) -> Value {
    let v1::Generation {
        open_streams,
        endpoints: addresses,
        outcomes: ends,
        first_event,
        gap,
        stream_duration,
        last_minute,
        last_five_minutes,
        failed_attempts,
    } = generation;
    json!({
        "openStreams": open_streams,
        "endpoints": addresses.as_ref().map(endpoints),
        "outcomes": ends.as_ref().map(outcomes),
        "firstEvent": first_event.as_ref().map(histogram),
        "gap": gap.as_ref().map(histogram),
        "streamDuration": stream_duration.as_ref().map(histogram),
        "lastMinute": last_minute.as_ref().map(recent),
        "lastFiveMinutes": last_five_minutes.as_ref().map(recent),
        "failedAttempts": failed_attempts.as_ref().map(|causes| &causes.counts),
    })
}

fn endpoints(endpoints: &v1::Endpoints) -> Value {
    let v1::Endpoints { healthy, known } = endpoints;
    json!({"healthy": healthy, "known": known})
}

fn outcomes(outcomes: &v1::Outcomes) -> Value {
    let v1::Outcomes {
        completed,
        truncated,
        failed,
        cancelled,
    } = outcomes;
    json!({"completed": completed, "truncated": truncated, "failed": failed, "cancelled": cancelled})
}

/// Without quantiles, which would be up to a quarter off with buckets this wide. Those of the last minutes are exact enough.
fn histogram(histogram: &v1::Histogram) -> Value {
    let v1::Histogram {
        bounds,
        cumulative_counts,
        count,
        sum,
    } = histogram;
    json!({
        "count": count,
        "sum": sum,
        "bounds": bounds,
        "cumulativeCounts": cumulative_counts,
    })
}

fn recent(recent: &v1::Recent) -> Value {
    let v1::Recent {
        length,
        outcomes: ends,
        first_event,
        gap,
        completed_by_another,
    } = recent;
    json!({
        "seconds": length.as_ref().map(seconds),
        "outcomes": ends.as_ref().map(outcomes),
        "completedByAnother": completed_by_another,
        "requestsPerSecond": recent.requests_per_second(),
        "errorRatio": recent.error_ratio(),
        "firstEvent": first_event.as_ref().map(latencies),
        "gap": gap.as_ref().map(latencies),
    })
}

/// Quantiles are `null` with too few values.
fn latencies(latencies: &v1::Latencies) -> Value {
    let sketch = Sketch::from(latencies);
    json!({
        "count": sketch.count(),
        "p50": sketch.reliable_quantile(0.5),
        "p95": sketch.reliable_quantile(0.95),
        "p99": sketch.reliable_quantile(0.99),
        "buckets": latencies.buckets,
        "counts": latencies.counts,
    })
}

fn instant(time: Option<&Timestamp>) -> Option<String> {
    time.map(Timestamp::to_string)
}

fn seconds(duration: &Duration) -> f64 {
    duration.seconds as f64 + f64::from(duration.nanos) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_numbers_times_are_rfc_3339_and_what_is_not_known_is_null() {
        let state = v1::State {
            time: Some(Timestamp {
                seconds: 1_700_000_000,
                nanos: 250_000_000,
            }),
            phase: v1::Phase::Settling.into(),
            plan: Some(v1::Plan {
                weights: Some(v1::Weights { old: 3, new: 1 }),
                source_lost_for: Some(Duration {
                    seconds: 2,
                    nanos: 500_000_000,
                }),
                ..Default::default()
            }),
            assigned_last_minute: Some(v1::Requests::default()),
            old: Some(v1::Generation {
                gap: Some(v1::Histogram {
                    bounds: vec![1.0, 2.0],
                    cumulative_counts: vec![0, 10],
                    count: 10,
                    sum: 15.0,
                }),
                ..Default::default()
            }),
            recovered_requests: [("connect".to_owned(), 4)].into(),
            ..Default::default()
        };
        let json = state.to_json();
        assert_eq!(json["time"], "2023-11-14T22:13:20.250Z");
        assert_eq!(json["phase"], "settling");
        assert_eq!(json["plan"]["sourceLostSeconds"], 2.5);
        assert_eq!(json["split"]["wanted"], 0.25);
        assert_eq!(json["split"]["observed"], Value::Null);
        assert_eq!(json["old"]["gap"]["count"], 10);
        assert!(json["old"]["gap"].get("p50").is_none());
        assert_eq!(json["old"]["firstEvent"], Value::Null);
        assert_eq!(json["new"], Value::Null);
        assert_eq!(json["recoveredRequests"]["connect"], 4);
    }
}
