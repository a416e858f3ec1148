//! Invariants of each step, computed from the simulation and not with the code under test.

use super::*;
use crate::split::Generation;

/// The usable capacity of each side at one moment.
pub(super) struct Past {
    at: Timestamp,
    usable: Sides<Ratio>,
}

impl Simulation {
    pub(super) fn holds(&mut self, before: &Scene, decision: &Decision) {
        let (usable, serves) = usable(before);
        self.remember(before, usable);
        let next = decision.desired.split;
        self.the_rule_is_right(before, decision, serves, next);
        self.gains_have_waited(before, decision);
        losses_are_at_once(before, decision, usable, next);
        the_end_is_in_order(before, decision, next);
        self.edits_are_reported(before, decision);
        the_trial_is_kept(before, decision, next);
    }

    fn remember(&mut self, before: &Scene, usable: Sides<Ratio>) {
        let generation = before.seen.resource_generation;
        if self.change.0 != generation {
            self.change = (generation, before.now);
        }
        self.change.1 = self.change.1.min(before.now);
        self.past.push_back(Past {
            at: before.now,
            usable,
        });
        if self.past.len() > 100 {
            self.past.pop_front();
        }
    }

    fn the_rule_is_right(
        &self,
        before: &Scene,
        decision: &Decision,
        serves: Sides<bool>,
        next: Weights,
    ) {
        let settings = &before.settings;
        let is_strictly_held = settings.strict && settings.paused;
        let stays = next == before.seen.split;
        let cap = percent(settings.cap_percent.unwrap_or(100));
        let share = next.share_of_new();
        match (serves.old, serves.new) {
            _ if before.seen.superseded_by.is_some() => assert!(stays),
            (false, false) => assert!(stays),
            _ if is_strictly_held => assert_eq!(decision.rule, Rule::Paused),
            (true, false) => assert_eq!(next, Weights::ALL_OLD),
            (false, true) if settings.strict => assert!(share <= cap.share_of_new()),
            (false, true) => assert_eq!(next, Weights::ALL_NEW),
            (true, true) if settings.paused => {
                let is_override = decision.rule == Rule::OldCannotServe;
                assert!(stays || is_override || share <= cap.share_of_new());
            }
            (true, true) if decision.rule == Rule::AnalysisFailed => {
                assert!(next.is_all_old() || share <= cap.share_of_new() || stays);
            }
            (true, true) if decision.rule != Rule::OldCannotServe => {
                assert!(share <= cap.share_of_new());
            }
            (true, true) => assert_eq!(next, Weights::ALL_NEW),
        }
    }

    /// Any additional credit must have lasted long enough, and the proxies must have had their time.
    fn gains_have_waited(&mut self, before: &Scene, decision: &Decision) {
        let now = before.now;
        let after = decision
            .memory
            .credit
            .as_ref()
            .expect("there is one after a step");
        for (side, emergency) in Generation::ALL
            .into_iter()
            .zip([Weights::ALL_OLD, Weights::ALL_NEW])
        {
            let Some(earlier) = &before.memory.credit else {
                continue;
            };
            let (earlier, gained) = (earlier.of(side).capacity, after.of(side).capacity);
            let next = decision.desired.split;
            // A strict cap of 0 sends all to old even if old has only just recovered. While new has no credit either, that is
            // called capacity.
            let is_strict_cap = before.settings.strict
                && (decision.rule == Rule::Cap
                    || (decision.rule == Rule::Capacity
                        && before.settings.cap_percent == Some(0)
                        && earlier.is_zero()));
            let is_outage = matches!(
                decision.rule,
                Rule::OldCannotServe | Rule::NewCannotServe | Rule::AnalysisFailed
            );
            let is_urgent = (is_outage || is_strict_cap) && next == emergency;
            if gained <= earlier || is_urgent {
                continue;
            }
            let generation = before.seen.resource_generation;
            let lags = |proxy: &ObservedProxy| {
                let has_applied = |state: &ProxyState| state.applied == generation;
                proxy.ready && !proxy.state.as_ref().is_ok_and(has_applied)
            };
            let had_time = now.since(self.change.1) >= before.settings.ack_timeout;
            assert!(
                had_time || !before.seen.proxies.iter().any(lags),
                "a gain waits for the proxies"
            );
            let stable = before.settings.stable;
            // The last observation without this capacity must be long enough ago.
            let lacked = self
                .past
                .iter()
                .rev()
                .find(|past| *past.usable.of(side) < gained);
            let first_after = lacked.map(|past| now.since(past.at));
            assert!(
                first_after.is_none_or(|ago| ago >= stable),
                "a gain must last"
            );
        }
    }

    fn edits_are_reported(&mut self, before: &Scene, decision: &Decision) {
        let reported = decision
            .events
            .iter()
            .any(|event| event.reason == "SplitContested");
        let is_ours = before.seen.split_is_ours;
        assert!(!reported || (!is_ours && !before.settings.paused && !before.memory.contested));
        self.is_contested |= reported;
    }
}

/// The capacities in the simulation, and which sides can serve. They depend on the sizes of the roles; new's also on
/// whether it is reachable and serves. While its state is unknown, new keeps what it has.
fn usable(scene: &Scene) -> (Sides<Ratio>, Sides<bool>) {
    let accepted = Scene::roles(scene);
    let share = |workers: &std::collections::BTreeMap<Role, Workers>| {
        let shares = accepted.iter().map(|(role, full)| {
            let ready = workers.get(role).map_or(0, |workers| workers.ready);
            Ratio::new(ready.into(), (*full).into()).expect("sizes are not 0")
        });
        shares.min().expect("there are roles")
    };
    let frontends = &scene.seen.frontends.new;
    let (old, new) = (
        share(&scene.seen.workers.old),
        share(&scene.seen.workers.new),
    );
    let credit = scene
        .memory
        .credit
        .as_ref()
        .map(|credit| credit.new.capacity);
    let earned = credit.is_none_or(|credit| !credit.is_zero());
    let keeps = !scene.seen.split.is_all_old() && (scene.settings.paused || earned);
    let (failing, unknown) = doubtful(scene);
    let all = frontends.asked.len() as u64;
    let is_open = failing < all && (keeps || unknown == 0);
    let serves = Sides {
        old: !old.is_zero(),
        new: is_open && frontends.endpoints > 0 && !new.is_zero(),
    };
    let new = match (serves.new, credit) {
        (false, _) => Ratio::ZERO,
        (true, credit) => {
            let part = new.part(all - failing, all);
            credit
                .filter(|_| unknown > 0)
                .map_or(part, |credit| part.min(credit))
        }
    };
    (Sides { old, new }, serves)
}

/// How many frontends of new fail, and how many are in an unknown state.
fn doubtful(scene: &Scene) -> (u64, u64) {
    let seen = &scene.seen;
    let proxies: Vec<_> = seen
        .proxies
        .iter()
        .filter_map(|proxy| proxy.state.as_ref().ok())
        .collect();
    let asked = &seen.frontends.new.asked;
    let one_answers = asked
        .iter()
        .any(|one| matches!(one.answer, Answer::Heard | Answer::Bad(_)));
    let is_vouched_for = proxies
        .iter()
        .any(|state| state.new_serves == Experience::Good);
    let is_complained_of = proxies.iter().any(|state| state.new_is_impaired);
    let (mut failing, mut unknown) = (0, 0);
    for one in asked {
        let serves = one.models.contains(MODEL);
        match one.answer {
            Answer::Heard | Answer::NotYet if serves => {}
            Answer::Heard | Answer::Bad(_) => failing += 1,
            Answer::NotYet | Answer::Unasked(_) => unknown += 1,
            Answer::Silent(_) if is_vouched_for && !(one_answers && is_complained_of) => {
                unknown += 1;
            }
            Answer::Silent(_) if !one_answers && proxies.is_empty() => unknown += 1,
            Answer::Silent(_) => failing += 1,
        }
    }
    (failing, unknown)
}

/// A side that lost credited capacity must not get more than its share by the new credits.
fn losses_are_at_once(before: &Scene, decision: &Decision, usable: Sides<Ratio>, next: Weights) {
    let credit = decision
        .memory
        .credit
        .as_ref()
        .expect("there is one after a step");
    assert!(credit.old.capacity <= usable.old && credit.new.capacity <= usable.new);
    let Some(earlier) = &before.memory.credit else {
        return;
    };
    let by_capacity = matches!(decision.rule, Rule::Capacity | Rule::Cap)
        // With `drainOld`, the cap limits everything, whatever the capacity.
        && !before.settings.drain_old;
    let exact = Ratio::weights(credit.old.capacity, credit.new.capacity);
    let Some(exact) = exact.filter(|_| by_capacity) else {
        return;
    };
    if usable.new < earlier.new.capacity {
        assert!(next.share_of_new() <= exact.share_of_new(), "new lost");
    }
    if usable.old < earlier.old.capacity && decision.rule == Rule::Capacity {
        assert!(next.share_of_new() >= exact.share_of_new(), "old lost");
    }
}

/// A failure stays until another trial begins, and new gets nothing more by it; a step is passed by a pass of its own time.
fn the_trial_is_kept(before: &Scene, decision: &Decision, next: Weights) {
    let (settings, seen) = (&before.settings, &before.seen);
    let (earlier, trial) = (&before.memory.trial, &decision.memory.trial);
    let asks = settings.retry.is_some() && settings.retry != earlier.retry;
    let is_same = earlier.subject == settings.trial && !asks;
    if is_same && earlier.failure.is_some() {
        assert!(trial.failure.is_some(), "latched means latched");
    }
    let trial_result = seen.trial_result.as_ref();
    let trial_result = trial_result.filter(|trial_result| trial_result.trial == trial.since);
    if trial.failure.is_some() && !(is_same && earlier.failure.is_some()) {
        assert!(trial_result.is_some_and(|trial_result| trial_result.verdict == Verdict::Fail));
        assert!(matches!(decision.actions.first(), Some(Action::Latch(_))));
    }
    let is_rolled_back = trial.failure.as_ref();
    let is_rolled_back =
        is_rolled_back.is_some_and(|failure| failure.on_failure == OnFailure::RollBack);
    let is_held = settings.paused && settings.strict;
    let is_outage = matches!(
        decision.rule,
        Rule::Superseded | Rule::NeitherCanServe | Rule::OldCannotServe | Rule::Cap
    );
    if is_rolled_back && !is_outage && !is_held {
        assert_eq!(next, Weights::ALL_OLD, "new gets nothing after it failed");
    }
    let passed = trial
        .passed_percent
        .filter(|_| trial.passed_percent != earlier.passed_percent);
    if passed.is_some() {
        assert!(trial.failure.is_none(), "no step is passed after a failure");
        let since = earlier.at_step_since.unwrap_or(before.now).min(before.now);
        let is_passed = |trial_result: &TrialResult| {
            trial_result.verdict == Verdict::Pass && trial_result.step == Some(since)
        };
        assert!(
            settings.on_failure.is_none() || trial_result.is_some_and(is_passed),
            "no step is passed without a pass"
        );
    }
    let limit = settings
        .steps
        .iter()
        .find(|step| step.percent > trial.passed_percent.unwrap_or(0));
    let by_capacity = matches!(decision.rule, Rule::Capacity | Rule::Step | Rule::DrainOld);
    if let Some(limit) = limit.filter(|_| by_capacity && decision.actions.iter().any(is_split)) {
        assert!(
            next.share_of_new() <= f64::from(limit.percent) / 100.0 + 1e-9
                || next.share_of_new() <= seen.split.share_of_new(),
            "nothing goes past a step that is not passed"
        );
    }
}

fn is_split(action: &Action) -> bool {
    matches!(action, Action::SetSplit(_))
}

fn the_end_is_in_order(before: &Scene, decision: &Decision, next: Weights) {
    let seen = &before.seen;
    let generation = seen.resource_generation;
    let all_applied = seen.proxies.iter().all(|proxy| {
        proxy
            .state
            .as_ref()
            .is_ok_and(|state| state.applied == generation)
    });
    let open = |of: fn(Sides<u64>) -> u64| {
        let open = seen.proxies.iter().map(|proxy| {
            proxy
                .state
                .as_ref()
                .ok()
                .map(|state| of(state.open_streams))
        });
        open.sum::<Option<u64>>()
    };
    let old_streams = open(|open| open.old);
    let (from, to) = (before.memory.phase, decision.phase);
    if decision.rule == Rule::Superseded {
        assert_eq!(
            decision.desired.old_draining, seen.old_draining,
            "it changes nothing"
        );
    } else {
        assert_eq!(decision.desired.old_draining, to.old_drains());
    }
    if to.old_drains() {
        assert!(
            next.is_all_new() && seen.split.is_all_new(),
            "old has left the split"
        );
    }
    // What each proxy reports to have applied.
    let every = |is_so: fn(&ProxyState) -> bool| {
        let states = seen.proxies.iter().map(|proxy| proxy.state.as_ref());
        states.clone().count() > 0 && states.clone().all(|state| state.is_ok_and(is_so))
    };
    let have_left = all_applied && every(|state| state.leaves_old);
    let all_drain = have_left && seen.old_draining && every(|state| state.old_drains);
    if to == Phase::Draining && !from.old_drains() {
        assert!(have_left, "draining begins when all give old nothing");
    }
    if to.old_drains() && seen.proxies.is_empty() {
        assert_eq!(
            (from, to),
            (Phase::Complete, Phase::Complete),
            "nobody found is nobody who agrees"
        );
    }
    if to == Phase::Complete && from != Phase::Complete {
        assert_eq!(from, Phase::Draining, "no phase is skipped");
        let elapsed = before.now.since(before.memory.phase_since);
        let is_over = before
            .settings
            .drain_deadline
            .is_some_and(|limit| elapsed >= limit);
        assert!(all_drain, "complete is when all let old drain");
        assert!(
            old_streams == Some(0) || is_over,
            "complete is when no stream is left or time is over"
        );
    }
    if to == Phase::Complete && !seen.proxies.is_empty() {
        assert!(all_drain, "complete is not kept while one may send to old");
    }
    if decision.last_old_worker_dispensable {
        assert!(seen.is_current && seen.sees_elsewhere && !seen.is_being_deleted);
        assert!(to == Phase::Complete && seen.superseded_by.is_none());
        let new = &seen.frontends.new;
        let serves = |one: &Frontend| {
            let is_heard = matches!(one.answer, Answer::Heard | Answer::NotYet);
            is_heard && one.models.contains(MODEL)
        };
        assert!(
            new.endpoints > 0
                && !new.asked.is_empty()
                && new.left_out == 0
                && new.asked.iter().all(serves),
            "each frontend of new was heard to serve"
        );
        assert!(all_drain && old_streams == Some(0));
        assert!(every(|state| state.may_reach_old == Some(0)));
        assert!(seen.updates_to_old.as_ref().is_some_and(Vec::is_empty));
        let around = seen.clients.around_proxies.as_ref();
        assert!(around.is_some_and(Vec::is_empty));
        assert_eq!(decision.desired.split, seen.split);
    }
    if decision.safe_to_delete_old {
        assert!(decision.last_old_worker_dispensable);
        let clients = &seen.clients;
        assert_eq!(
            (clients.reach_new, clients.reach_old),
            (Some(true), Some(false))
        );
        assert!(clients.other_ways.as_ref().is_some_and(Vec::is_empty));
        assert_eq!(open(|open| open.old + open.new), Some(0));
        let least = before.settings.quiet_period;
        let quiet = |proxy: &ObservedProxy| {
            let quiet_for = proxy.state.as_ref().ok().and_then(|state| state.quiet_for);
            quiet_for.is_some_and(|quiet| quiet >= least)
        };
        assert!(seen.proxies.iter().all(quiet));
    }
}

impl Scene {
    /// The roles and their sizes when the update was accepted.
    fn roles(&self) -> Vec<(Role, u32)> {
        let accepted = &self.memory.full_sizes;
        let workers = self.seen.workers.old.iter();
        let first = workers.map(|(role, workers)| (*role, workers.desired.max(workers.ready)));
        first
            .map(|(role, now)| (role, accepted.get(&role).copied().unwrap_or(now).max(1)))
            .collect()
    }
}
