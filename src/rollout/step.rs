//! One step: an observation in, a decision out.
//!
//! Combines the parts in order: memory, assessment, credit, rule, wait, end, status.

use std::time::Duration;

use super::{
    Action, Analysis, AtStep, Capacity, Condition, Credit, DeletionRequirement, DesiredSplit,
    Event, Memory, Observation, Obstacle, PerGeneration, Phase, Rule, Timestamp, UpdateSettings,
    Waiting,
    assessment::Assessment,
    conditions, drain_estimate,
    end::Ending,
    messages::{self, StatusContext},
    requirements::RequirementInput,
    rules::{self, RuleInput, SplitMove, at_most, is_more},
    wait,
};
use crate::split::Weights;

/// The writes, and the status to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do, in this order. Empty if everything is already right.
    pub actions: Vec<Action>,
    /// The spec after the actions.
    pub desired: DesiredSplit,
    /// The memory for the next step. Write it after the actions, and only if those that are required were done.
    pub memory: Memory,
    /// The phase of the update.
    pub phase: Phase,
    /// The rule that decided.
    pub rule: Rule,
    /// The observed capacity of each generation. The credited capacity is in the memory.
    pub capacity: PerGeneration<Capacity>,
    /// What prevents new from serving; empty if it can serve.
    pub obstacles: Vec<Obstacle>,
    /// Open streams. `None` if a proxy does not answer.
    pub open_streams: Option<PerGeneration<u64>>,
    /// Streams on old that wait to be moved to new, according to the proxies that respond.
    pub moving_streams: u64,
    /// The verdict of the analysis in force, if new is analysed or has failed.
    pub analysis: Option<Analysis>,
    /// The step that limits the split, if any.
    pub step: Option<AtStep>,
    /// The conditions that the update waits for.
    pub waiting_for: Vec<Waiting>,
    /// The conditions of the status, without timestamps.
    pub conditions: Vec<Condition>,
    /// The one-line summary for users. It contains no times, so that it only changes when something happens.
    pub message: String,
    /// The events of this step.
    pub events: Vec<Event>,
    /// Whether old may be deleted, including its frontends. Requires every [`DeletionRequirement`].
    pub safe_to_delete_old: bool,
    /// Whether the last worker of old may be removed. Requires [`DeletionRequirement::FOR_LAST_WORKER`].
    pub last_old_worker_dispensable: bool,
    /// The requirements that are not met before old may be deleted.
    pub missing: Vec<DeletionRequirement>,
    /// The estimated time until the drain ends. `None` if old does not drain or no estimate is possible.
    pub drain_estimate: Option<Duration>,
    /// When to decide again even without a new observation.
    pub wake_at: Option<Timestamp>,
}

/// Decides what to do about `seen` at `now`, given the memory of earlier steps.
///
/// The same arguments give the same decision. Once a decision is applied, the next one changes nothing.
#[must_use]
pub fn step(
    settings: &UpdateSettings,
    memory: &Memory,
    seen: &Observation,
    now: Timestamp,
) -> Decision {
    let before = memory;
    let mut memory = before.opened(settings, seen.resource_generation, now);
    memory.learn(seen, now);
    let mut assessment = Assessment::of(settings, &memory, seen, now);

    if seen.superseded_by.is_none() {
        memory.try_new(&assessment);
    }
    let (mut credit, lost) = assessment.credit(memory.credit.take());
    let edited = memory.track_split(settings, seen);
    let (mut rule, mut aim) = rules::decide(&view(&assessment, &memory, &credit));
    if aim == SplitMove::Immediately(Weights::ALL_OLD) {
        // Otherwise, if new recovers for a moment, it would take everything from an old generation that serves but has no
        // credit yet.
        credit.old.put(assessment.usable().old);
        // With old's credit restored, another rule may apply.
        (rule, aim) = rules::decide(&view(&assessment, &memory, &credit));
    }
    let mut next = next_split(&assessment, &memory, aim, edited, lost);
    if next.is_all_old() && assessment.take_share(&memory) {
        // Otherwise the next step would report another rule, though nothing else has happened.
        (rule, aim) = rules::decide(&view(&assessment, &memory, &credit));
        next = next_split(&assessment, &memory, aim, edited, lost);
    }
    memory.credit = Some(credit);
    memory.new_had_share |= !next.is_all_old();
    let contested = edited && next != seen.split && !memory.contested;
    memory.contested |= contested;
    memory.written = match aim {
        // When this update takes precedence again, the split at that time must not count as an edit.
        _ if rule == Rule::Superseded => None,
        SplitMove::Stay => memory.written,
        _ => Some(next),
    };

    let ending = ending(&assessment, &memory, next);
    let (phase, overdue) = match rule {
        Rule::Superseded => (Phase::Superseded, false),
        _ => ending.phase(),
    };
    memory.overdue = overdue;
    let complete_with = ending.complete_with(phase, memory.complete_with.take());
    memory.complete_with = complete_with;
    memory.enter(rule, phase, now);
    let lag_is_new = assessment.is_lagging() && memory.report_lag();
    let latch = before.latch(&memory);
    let failure_is_new = memory.trial.report_failure();
    let waiting_for = wait::all(&assessment, &memory, &ending, aim, next);
    let context = StatusContext {
        assessment: &assessment,
        before,
        memory: &memory,
        rule,
        phase,
        next,
        waiting_for: &waiting_for,
        contested,
        lag_is_new,
        failure_is_new,
    };
    let input = RequirementInput {
        assessment: &assessment,
        memory: &memory,
        phase,
        next,
    };
    let missing = input.missing();
    let lacks_any =
        |of: &[DeletionRequirement]| missing.iter().any(|requirement| of.contains(requirement));
    let desired = DesiredSplit {
        split: next,
        old_draining: match rule {
            // A superseded update changes nothing.
            Rule::Superseded => seen.old_draining,
            _ => phase.old_drains(),
        },
    };
    Decision {
        actions: latch
            .into_iter()
            .chain(set_split(seen, rule, desired))
            .collect(),
        desired,
        phase,
        rule,
        conditions: conditions::conditions(&context),
        message: messages::message(&context),
        events: conditions::events(&context),
        safe_to_delete_old: missing.is_empty(),
        last_old_worker_dispensable: !lacks_any(&DeletionRequirement::FOR_LAST_WORKER),
        missing,
        drain_estimate: estimate(&assessment, &memory),
        wake_at: wait::wake_at(&assessment, &memory, &waiting_for),
        waiting_for,
        analysis: memory.trial.verdict(settings, seen.trial_result.as_ref()),
        step: memory
            .trial
            .at_step(settings)
            .filter(|_| rule != Rule::Superseded),
        open_streams: assessment.proxies.open,
        moving_streams: assessment.proxies.moving,
        capacity: assessment.capacity,
        obstacles: assessment.gate.obstacles,
        memory,
    }
}

fn set_split(seen: &Observation, rule: Rule, desired: DesiredSplit) -> Option<Action> {
    let is_other = desired.split != seen.split || desired.old_draining != seen.old_draining;
    let completes = seen.split_is_incomplete && rule != Rule::Superseded;
    (is_other || completes).then_some(Action::SetSplit(desired))
}

fn view<'a>(
    assessment: &Assessment<'a>,
    memory: &Memory,
    credit: &PerGeneration<Credit>,
) -> RuleInput<'a> {
    RuleInput {
        settings: assessment.settings,
        superseded: assessment.seen.superseded_by.is_some(),
        serves: assessment.serves(),
        credit: PerGeneration {
            old: credit.old.capacity,
            new: credit.new.capacity,
        },
        present: assessment.seen.split,
        held: memory.held.unwrap_or(assessment.seen.split),
        rolled_back: memory.trial.is_rolled_back(),
        limit: memory.trial.limit(assessment.settings),
    }
}

/// The split after this step: where the rule moves it, unless that has to wait.
fn next_split(
    assessment: &Assessment,
    memory: &Memory,
    aim: SplitMove,
    edited: bool,
    lost: PerGeneration<bool>,
) -> Weights {
    let present = assessment.seen.split;
    let to = match aim {
        SplitMove::Stay => return present,
        SplitMove::Immediately(to) => return to,
        SplitMove::AfterWait(to) => to,
    };
    let gains_new = is_more(to, present);
    let limit = memory.trial.limit(assessment.settings);
    let is_over_cap = at_most(present, assessment.settings.cap_percent) != present
        || limit.is_some_and(|limit| is_more(present, limit.most));
    let other_generation_lost = if gains_new { lost.old } else { lost.new };
    let is_urgent = edited || other_generation_lost || (is_over_cap && !gains_new);
    if is_urgent || assessment.may_gain() {
        to
    } else {
        present
    }
}

fn ending<'a>(assessment: &'a Assessment, memory: &Memory, next: Weights) -> Ending<'a> {
    let is_requested = assessment.settings.drain_old
        || (memory.held_by_person && memory.held == Some(Weights::ALL_NEW));
    // Clients of a failing frontend of new need old as a fallback.
    let (new_is_whole, has_begun) = (assessment.gate.failing == 0, memory.phase.old_drains());
    Ending {
        before: memory.phase,
        since: memory.phase_since,
        now: assessment.now,
        settings: assessment.settings,
        present: assessment.seen.split,
        next,
        is_meant: assessment.old_is_given_up() || (is_requested && (new_is_whole || has_begun)),
        old_drains: assessment.seen.old_draining,
        overdue: memory.overdue,
        was_confirmed: match &memory.complete_with {
            Some(confirmed) => *confirmed == assessment.settings.new_frontends,
            // An earlier version did not remember it.
            None => memory.phase == Phase::Complete,
        },
        proxies: &assessment.proxies,
    }
}

fn estimate(assessment: &Assessment, memory: &Memory) -> Option<Duration> {
    if memory.phase != Phase::Draining {
        return None;
    }
    let elapsed = assessment.now.since(memory.phase_since);
    let open = assessment.proxies.open?.old;
    let ends_in = drain_estimate(open, &assessment.seen.lengths, elapsed);
    let deadline = assessment.settings.drain_deadline;
    let time_left = deadline.map(|deadline| deadline.saturating_sub(elapsed));
    // The deadline ends the drain even if nothing is known about the streams.
    match (ends_in, time_left) {
        (Some(ends_in), Some(time_left)) => Some(ends_in.min(time_left)),
        (ends_in, time_left) => ends_in.or(time_left),
    }
}
