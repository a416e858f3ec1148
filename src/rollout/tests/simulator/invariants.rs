//! Invariants of each step, computed from the simulation and not with the code under test.

mod capacity;
mod end;
mod trial;

use self::capacity::{losses_are_at_once, usable};
use self::end::the_end_is_in_order;
use self::trial::the_trial_is_kept;
use super::*;
use crate::split::Generation;

/// The usable capacity of each generation at one moment.
pub(super) struct Past {
    at: Timestamp,
    usable: PerGeneration<Ratio>,
}

impl Simulation {
    pub(super) fn holds(&mut self, before: &Fixture, decision: &Decision) {
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

    fn remember(&mut self, before: &Fixture, usable: PerGeneration<Ratio>) {
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
        before: &Fixture,
        decision: &Decision,
        serves: PerGeneration<bool>,
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
    fn gains_have_waited(&mut self, before: &Fixture, decision: &Decision) {
        let now = before.now;
        let after = decision
            .memory
            .credit
            .as_ref()
            .expect("there is one after a step");
        for (generation, emergency) in Generation::ALL
            .into_iter()
            .zip([Weights::ALL_OLD, Weights::ALL_NEW])
        {
            let Some(earlier) = &before.memory.credit else {
                continue;
            };
            let (earlier, gained) = (
                earlier.of(generation).capacity,
                after.of(generation).capacity,
            );
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
            let current = before.seen.resource_generation;
            let lags = |proxy: &ObservedProxy| {
                let has_applied = |state: &ProxyState| state.applied == current;
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
                .find(|past| *past.usable.of(generation) < gained);
            let first_after = lacked.map(|past| now.since(past.at));
            assert!(
                first_after.is_none_or(|ago| ago >= stable),
                "a gain must last"
            );
        }
    }

    fn edits_are_reported(&mut self, before: &Fixture, decision: &Decision) {
        let reported = decision
            .events
            .iter()
            .any(|event| event.reason == "SplitContested");
        let is_ours = before.seen.split_is_ours;
        assert!(!reported || (!is_ours && !before.settings.paused && !before.memory.contested));
        self.is_contested |= reported;
    }
}
