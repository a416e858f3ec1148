//! The total of several proxies' states: adds counts, and leaves out values that differ.

use std::collections::BTreeMap;

use super::limits::{MAX_CAUSES, MAX_REMARKS};
use super::v1;
use crate::telemetry::latency::Sketch;

/// The total; `None` without states. The plan is included if all have the same weights, without the fields that differ, and
/// distributions if all have the same buckets.
#[must_use]
pub fn total<'a>(states: impl IntoIterator<Item = &'a v1::State>) -> Option<v1::State> {
    let mut states = states.into_iter();
    let mut all = states.next()?.clone();
    all.process = None;
    for state in states {
        add(&mut all, state);
    }
    Some(all)
}

fn add(all: &mut v1::State, one: &v1::State) {
    all.ready &= one.ready;
    if all.phase != one.phase {
        all.phase = v1::Phase::Unspecified.into();
    }
    let weights = |state: &v1::State| state.plan.as_ref().and_then(|plan| plan.weights);
    if weights(all) == weights(one) {
        merge(&mut all.plan, &one.plan, plan);
    } else {
        all.plan = None;
    }
    for (all, one) in [
        (&mut all.assigned_last_minute, &one.assigned_last_minute),
        (
            &mut all.assigned_last_five_seconds,
            &one.assigned_last_five_seconds,
        ),
        (&mut all.answered_last_minute, &one.answered_last_minute),
    ] {
        merge(all, one, requests);
    }
    merge(&mut all.split_total, &one.split_total, requests);
    merge(&mut all.quiet_for, &one.quiet_for, |all, one| {
        if (one.seconds, one.nanos) < (all.seconds, all.nanos) {
            *all = *one;
        }
    });
    merge(&mut all.old, &one.old, generation);
    merge(&mut all.new, &one.new, generation);
    counts(&mut all.recovered_requests, &one.recovered_requests);
    recovered(&mut all.recovered, &one.recovered);
    all.retries_refused = all.retries_refused.saturating_add(one.retries_refused);
    counts(&mut all.rejected_requests, &one.rejected_requests);
    merge(&mut all.continuations, &one.continuations, continuations);
    if all.fixed_targets != one.fixed_targets {
        all.fixed_targets = None;
    }
}

fn continuations(all: &mut v1::Continuations, one: &v1::Continuations) {
    if all.mode != one.mode {
        all.mode = v1::ContinuationMode::Unspecified.into();
    }
    counts(&mut all.continued, &one.continued);
    counts(&mut all.not_continued, &one.not_continued);
    all.moving = all.moving.saturating_add(one.moving);
    for (all, one) in [(&mut all.old, &one.old), (&mut all.new, &one.new)] {
        // Each proxy asks the same endpoints, so the worst view counts.
        merge(all, one, |all, one| {
            if one.supported < all.supported {
                *all = *one;
            }
        });
    }
}

/// The total is unknown if either is.
fn merge<T>(all: &mut Option<T>, one: &Option<T>, add: impl FnOnce(&mut T, &T)) {
    match (all.as_mut(), one) {
        (Some(all), Some(one)) => add(all, one),
        _ => *all = None,
    }
}

/// The total of two plans with the same weights.
fn plan(all: &mut v1::Plan, one: &v1::Plan) {
    if all.epoch != one.epoch {
        all.epoch = 0;
    }
    if all.source != one.source {
        all.source.clear();
    }
    if all.resource != one.resource {
        all.resource = None;
    }
    if all.weights_before_cap != one.weights_before_cap || all.max_percent != one.max_percent {
        (all.weights_before_cap, all.max_percent) = (None, None);
    }
    all.old_drains &= one.old_drains;
    // The time since which all have it, the last rejection by any, and the longest loss of contact.
    let at = |time: &Option<prost_types::Timestamp>| time.map(|time| (time.seconds, time.nanos));
    if at(&one.since) > at(&all.since) {
        all.since = one.since;
    }
    let refused = |refusal: &Option<v1::Refusal>| refusal.as_ref().and_then(|one| at(&one.time));
    if refused(&one.refusal) > refused(&all.refusal) {
        all.refusal = one.refusal.clone();
    }
    all.refused_total = all.refused_total.saturating_add(one.refused_total);
    merge(
        &mut all.earlier_requests_that_may_reach_old,
        &one.earlier_requests_that_may_reach_old,
        |all, one| *all = all.saturating_add(*one),
    );
    if all.new_targets != one.new_targets {
        all.new_targets.clear();
    }
    // The worst verdict, because one pass does not mean that the others pass.
    let rank = |analysis: &Option<v1::Analysis>| {
        let verdict = analysis.as_ref().map(|analysis| &*analysis.verdict);
        match verdict {
            Some("fail") => 0,
            Some("pass") => 2,
            _ => 1,
        }
    };
    if rank(&one.analysis) < rank(&all.analysis) {
        all.analysis = one.analysis.clone();
    }
    for remark in &one.remarks {
        if all.remarks.len() < MAX_REMARKS && !all.remarks.contains(remark) {
            all.remarks.push(remark.clone());
        }
    }
    let lost = |lost: &Option<prost_types::Duration>| lost.map(|lost| (lost.seconds, lost.nanos));
    if lost(&one.source_lost_for) > lost(&all.source_lost_for) {
        all.source_lost_for = one.source_lost_for;
    }
}

fn requests(all: &mut v1::Requests, one: &v1::Requests) {
    all.old = all.old.saturating_add(one.old);
    all.new = all.new.saturating_add(one.new);
}

fn generation(all: &mut v1::Generation, one: &v1::Generation) {
    all.open_streams = all.open_streams.saturating_add(one.open_streams);
    // Each proxy counts the same addresses, so the worst view counts.
    merge(&mut all.endpoints, &one.endpoints, |all, one| {
        if one.healthy < all.healthy {
            *all = *one;
        }
    });
    merge(&mut all.outcomes, &one.outcomes, outcomes);
    merge(
        &mut all.failed_attempts,
        &one.failed_attempts,
        |all, one| counts(&mut all.counts, &one.counts),
    );
    for (all, one) in [
        (&mut all.last_minute, &one.last_minute),
        (&mut all.last_five_minutes, &one.last_five_minutes),
    ] {
        merge(all, one, recent);
    }
    for (all, one) in [
        (&mut all.first_event, &one.first_event),
        (&mut all.gap, &one.gap),
        (&mut all.stream_duration, &one.stream_duration),
    ] {
        let same = matches!((&*all, one), (Some(all), Some(one)) if all.bounds == one.bounds);
        merge(all, if same { one } else { &None }, |all, one| {
            for (all, one) in all.cumulative_counts.iter_mut().zip(&one.cumulative_counts) {
                *all = all.saturating_add(*one);
            }
            all.count = all.count.saturating_add(one.count);
            all.sum += one.sum;
        });
    }
}

fn outcomes(all: &mut v1::Outcomes, one: &v1::Outcomes) {
    all.completed = all.completed.saturating_add(one.completed);
    all.truncated = all.truncated.saturating_add(one.truncated);
    all.failed = all.failed.saturating_add(one.failed);
    all.cancelled = all.cancelled.saturating_add(one.cancelled);
}

/// The longest window: a proxy that has just started has a shorter one.
fn recent(all: &mut v1::Recent, one: &v1::Recent) {
    let nanos = |length: &Option<prost_types::Duration>| {
        length.map(|length| (length.seconds, length.nanos))
    };
    if nanos(&one.length) > nanos(&all.length) {
        all.length = one.length;
    }
    merge(&mut all.outcomes, &one.outcomes, outcomes);
    all.completed_by_another = all
        .completed_by_another
        .saturating_add(one.completed_by_another);
    for (all, one) in [
        (&mut all.first_event, &one.first_event),
        (&mut all.gap, &one.gap),
    ] {
        merge(all, one, |all, one| {
            let mut sum = Sketch::from(&*all);
            sum.add(&one.into());
            *all = (&sum).into();
        });
    }
}

fn counts(all: &mut BTreeMap<String, u64>, one: &BTreeMap<String, u64>) {
    for (name, count) in one {
        if all.len() < MAX_CAUSES || all.contains_key(name) {
            let all = all.entry(name.clone()).or_default();
            *all = all.saturating_add(*count);
        }
    }
}

fn recovered(all: &mut Vec<v1::Recovered>, one: &[v1::Recovered]) {
    for more in one {
        let same = |known: &&mut v1::Recovered| {
            (&known.from, &known.to, &known.cause) == (&more.from, &more.to, &more.cause)
        };
        let is_full = all.len() >= MAX_CAUSES;
        match all.iter_mut().find(same) {
            Some(known) => known.count = known.count.saturating_add(more.count),
            None if is_full => {}
            None => all.push(more.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(new: u32, open: u64, bounds: &[f64]) -> v1::State {
        v1::State {
            ready: true,
            plan: Some(v1::Plan {
                weights: Some(v1::Weights { old: 1, new }),
                ..Default::default()
            }),
            assigned_last_minute: Some(v1::Requests { old: 3, new: 1 }),
            old: Some(v1::Generation {
                open_streams: open,
                gap: Some(v1::Histogram {
                    bounds: bounds.to_vec(),
                    cumulative_counts: vec![2; bounds.len()],
                    count: 4,
                    sum: 1.0,
                }),
                failed_attempts: Some(v1::Causes {
                    counts: [("connect".to_owned(), 3)].into(),
                }),
                ..Default::default()
            }),
            recovered_requests: [("connect".to_owned(), 2)].into(),
            continuations: Some(v1::Continuations {
                mode: v1::ContinuationMode::AnyGeneration.into(),
                continued: [("connection".to_owned(), open)].into(),
                moving: open,
                old: Some(v1::Proofs {
                    supported: new,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            recovered: vec![v1::Recovered {
                from: "old".into(),
                to: "new".into(),
                cause: "connect".into(),
                count: 2,
            }],
            ..Default::default()
        }
    }

    #[test]
    fn counts_add_up_over_proxies() {
        let states = [state(1, 5, &[1.0]), state(1, 7, &[1.0])];
        let all = total(&states).unwrap();
        assert_eq!(all.assigned_last_minute.unwrap().old, 6);
        let old = all.old.unwrap();
        assert_eq!(old.failed_attempts.as_ref().unwrap().counts["connect"], 6);
        assert_eq!((old.open_streams, old.gap.unwrap().count), (12, 8));
        assert_eq!(all.recovered_requests["connect"], 4);
        let continuations = all.continuations.unwrap();
        assert_eq!((continuations.count(), continuations.moving), (12, 12));
        assert_eq!(continuations.old.unwrap().supported, 1);
        assert_eq!((all.recovered.len(), all.recovered[0].count), (1, 4));
        assert!(all.plan.is_some());
        assert!(total([]).is_none());
    }

    #[test]
    fn forged_counts_of_a_proxy_do_not_overflow() {
        let most = v1::State {
            retries_refused: u64::MAX,
            ..state(1, u64::MAX, &[1.0])
        };
        let all = total(&[most, state(1, 1, &[1.0])]).unwrap();
        assert_eq!(all.retries_refused, u64::MAX);
        assert_eq!(all.old.unwrap().open_streams, u64::MAX);
    }

    #[test]
    fn the_total_of_many_forged_states_stays_small() {
        let forged = |of: usize| {
            let mut state = state(1, 1, &[]);
            let names = || (0..MAX_CAUSES).map(move |i| format!("{of}-{i}"));
            state.recovered_requests = names().map(|name| (name, 1)).collect();
            state.recovered = names()
                .map(|cause| v1::Recovered {
                    cause,
                    ..v1::Recovered::default()
                })
                .collect();
            state.plan.as_mut().unwrap().remarks = names().collect();
            state
        };
        let all = total(&[forged(1), forged(2), forged(3)]).unwrap();
        assert_eq!(
            (all.recovered_requests.len(), all.recovered.len()),
            (MAX_CAUSES, MAX_CAUSES)
        );
        assert_eq!(all.plan.unwrap().remarks.len(), MAX_REMARKS);
    }

    #[test]
    fn of_plans_of_the_same_weights_only_what_is_the_same_is_reported() {
        let mut states = [state(1, 0, &[]), state(1, 0, &[])];
        for (epoch, state) in (3..).zip(&mut states) {
            let plan = state.plan.as_mut().unwrap();
            plan.epoch = epoch;
            plan.source = "the cluster".into();
            plan.old_drains = epoch == 3;
            plan.refused_total = 2;
            plan.remarks = vec!["all".to_owned(), format!("plan {epoch}")];
            plan.since = Some(prost_types::Timestamp {
                seconds: epoch as i64,
                nanos: 0,
            });
        }
        let plan = total(&states).unwrap().plan.unwrap();
        assert_eq!((plan.epoch, &*plan.source), (0, "the cluster"));
        assert_eq!((plan.old_drains, plan.refused_total), (false, 4));
        assert_eq!(plan.since.unwrap().seconds, 4);
        assert_eq!(plan.remarks, ["all", "plan 3", "plan 4"], "each once");
    }

    #[test]
    fn values_on_which_proxies_disagree_are_omitted() {
        let states = [state(1, 5, &[1.0]), state(2, 7, &[1.0, 2.0])];
        let all = total(&states).unwrap();
        assert_eq!(all.plan, None);
        assert_eq!(all.old.unwrap().gap, None);
    }
}
