//! One step: an observation in, a decision out.
//!
//! Puts the parts together in their order: remember, count, gate, credit, rule, wait, end, tell. Must not know how an
//! observation is made or a decision applied.

use std::time::Duration;

use super::{
    Capacity, Condition, Credit, Event, Evidence, Memory, Moment, Observation, Obstacle, Phase,
    Rule, Settings, Sides, Wait, drain_estimate,
    end::Ending,
    evidence::Case,
    rules::{self, Aim, View, at_most, is_more},
    sight::Sight,
    tell, wait,
    words::{self, Tale},
};
use crate::split::Weights;

/// What is to be done, and all there is to say about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The split to write, as percentage and exact weights together; none if it is right as it is.
    pub split: Option<Weights>,
    /// What `spec.oldDraining` is to be.
    pub old_draining: bool,
    /// What to remember. Write it after the split, and only if the split could be written.
    pub memory: Memory,
    /// How far the update is.
    pub phase: Phase,
    /// The rule that decided.
    pub rule: Rule,
    /// The capacity of each side as it is; what counts of it is in the memory.
    pub capacity: Sides<Capacity>,
    /// What keeps new from serving; nothing if it can.
    pub obstacles: Vec<Obstacle>,
    /// Open streams; none if a proxy does not answer.
    pub open_streams: Option<Sides<u64>>,
    /// What it waits for.
    pub waiting_for: Vec<Wait>,
    /// The conditions of the status, without their times.
    pub conditions: Vec<Condition>,
    /// The whole in a person's words. The same as long as nothing happens: it holds no times.
    pub message: String,
    /// What has changed by this step.
    pub events: Vec<Event>,
    /// May old be deleted, with its frontends? Only with all [`Evidence`].
    pub safe_to_delete_old: bool,
    /// May the last worker of old go? Only with the evidence for it.
    pub last_old_worker_dispensable: bool,
    /// The evidence that is missing before old may be deleted.
    pub missing: Vec<Evidence>,
    /// The time the drain still needs, most probably; none if old does not drain, or nothing is known.
    pub drain_estimate: Option<Duration>,
    /// When to decide again though nothing may have been seen by then.
    pub wake_at: Option<Moment>,
}

/// Decides what follows from `seen` at `now`, by what is remembered.
///
/// The same arguments give the same decision, and once a decision is applied the next one changes nothing.
#[must_use]
pub fn step(settings: &Settings, memory: &Memory, seen: &Observation, now: Moment) -> Decision {
    let before = memory;
    let mut memory = before.opened(&settings.subject, now);
    memory.learn(seen, now);
    let sight = Sight::of(settings, &memory, seen, now);

    let (mut credit, lost) = sight.credit(memory.credit.take());
    let edited = memory.judge_split(settings, seen);
    let (mut rule, mut aim) = rules::decide(&view(&sight, &memory, &credit));
    if aim == Aim::AtOnce(Weights::ALL_OLD) {
        // Else new, back for a moment, would take all from an old side that serves but has not lasted yet.
        credit.old.put(sight.usable().old);
        // An old side that counts again may fall under another rule.
        (rule, aim) = rules::decide(&view(&sight, &memory, &credit));
    }
    memory.credit = Some(credit);

    let next = next(&sight, aim, edited, lost);
    memory.new_had_share |= !next.is_all_old();
    let contested = edited && next != seen.split && !memory.contested;
    memory.contested |= contested;
    memory.written = match aim {
        // Whatever is there when this one rules again, it is no edit against it.
        _ if rule == Rule::Superseded => None,
        Aim::Stay => memory.written,
        _ => Some(next),
    };

    let ending = ending(&sight, &memory, next);
    let (phase, overdue) = match rule {
        Rule::Superseded => (Phase::Superseded, false),
        _ => ending.phase(),
    };
    memory.overdue = overdue;
    memory.enter(rule, phase, now);
    let lag_is_new = sight.is_lagging() && memory.tell_lag();
    let waiting_for = wait::all(&sight, &memory, &ending, aim, next);
    let tale = Tale {
        sight: &sight,
        before,
        memory: &memory,
        rule,
        phase,
        next,
        waiting_for: &waiting_for,
        contested,
        lag_is_new,
    };
    let case = Case {
        sight: &sight,
        phase,
        next,
    };
    let missing = case.missing();
    let lacks_any = |of: &[Evidence]| missing.iter().any(|evidence| of.contains(evidence));
    Decision {
        split: (next != seen.split).then_some(next),
        old_draining: match rule {
            // It changes nothing.
            Rule::Superseded => seen.old_draining,
            _ => phase.old_drains(),
        },
        phase,
        rule,
        conditions: tell::conditions(&tale),
        message: words::message(&tale),
        events: tell::events(&tale),
        safe_to_delete_old: missing.is_empty(),
        last_old_worker_dispensable: !lacks_any(&Evidence::FOR_LAST_WORKER),
        missing,
        drain_estimate: estimate(&sight, &memory),
        wake_at: wait::wake_at(&sight, &memory, &waiting_for),
        waiting_for,
        open_streams: sight.proxies.open,
        capacity: sight.capacity,
        obstacles: sight.gate.obstacles,
        memory,
    }
}

fn view<'a>(sight: &Sight<'a>, memory: &Memory, credit: &Sides<Credit>) -> View<'a> {
    View {
        settings: sight.settings,
        superseded: sight.seen.superseded_by.is_some(),
        serves: sight.serves(),
        credit: Sides {
            old: credit.old.capacity,
            new: credit.new.capacity,
        },
        present: sight.seen.split,
        held: memory.held.unwrap_or(sight.seen.split),
    }
}

/// The split after this step: where the rule aims, unless that has to wait.
fn next(sight: &Sight, aim: Aim, edited: bool, lost: Sides<bool>) -> Weights {
    let present = sight.seen.split;
    let to = match aim {
        Aim::Stay => return present,
        Aim::AtOnce(to) => return to,
        Aim::Toward(to) => to,
    };
    let gains_new = is_more(to, present);
    let is_over_cap = at_most(present, sight.settings.cap_percent) != present;
    let other_side_lost = if gains_new { lost.old } else { lost.new };
    let is_urgent = edited || other_side_lost || (is_over_cap && !gains_new);
    if is_urgent || sight.may_gain() {
        to
    } else {
        present
    }
}

fn ending<'a>(sight: &'a Sight, memory: &Memory, next: Weights) -> Ending<'a> {
    let is_asked_for = sight.settings.drain_old
        || (memory.held_by_person && memory.held == Some(Weights::ALL_NEW));
    // Who comes to a frontend of new that does not serve needs old as a fallback.
    let (new_is_whole, has_begun) = (sight.gate.failing == 0, memory.phase.old_drains());
    Ending {
        before: memory.phase,
        since: memory.phase_since,
        now: sight.now,
        settings: sight.settings,
        present: sight.seen.split,
        next,
        is_meant: sight.old_is_given_up() || (is_asked_for && (new_is_whole || has_begun)),
        told: sight.seen.old_draining,
        overdue: memory.overdue,
        proxies: &sight.proxies,
    }
}

fn estimate(sight: &Sight, memory: &Memory) -> Option<Duration> {
    if memory.phase != Phase::Draining {
        return None;
    }
    let elapsed = sight.now.since(memory.phase_since);
    let open = sight.proxies.open?.old;
    let ends_in = drain_estimate(open, &sight.seen.lengths, elapsed);
    let deadline = sight.settings.drain_deadline;
    let time_left = deadline.map(|deadline| deadline.saturating_sub(elapsed));
    // Whatever is not known of the streams, the deadline ends it.
    match (ends_in, time_left) {
        (Some(ends_in), Some(time_left)) => Some(ends_in.min(time_left)),
        (ends_in, time_left) => ends_in.or(time_left),
    }
}
