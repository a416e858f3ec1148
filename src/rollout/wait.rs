//! Lists what a decision waits for, since when, and for how long at most.

use std::{fmt, time::Duration};

use super::{
    Credit, Memory, Obstacle, Phase, Rule, Timestamp, assessment::Assessment, end::Ending,
    gate::listed, rules::SplitMove, trial::RETRY,
};
use crate::printable::{counted, thousands};
use crate::split::{Generation, Weights};

/// One thing that the update waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The condition that it waits for.
    pub what: WaitFor,
    /// When the wait began.
    pub since: Timestamp,
    /// The latest end of the wait. `None` if it has no limit.
    pub until: Option<Timestamp>,
}

/// The kinds of waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// New becomes able to serve.
    Gate(Vec<Obstacle>),
    /// Additional capacity of a generation becomes stable.
    Stability(Generation),
    /// These proxies apply the resource's last change.
    Proxies(Vec<String>),
    /// Streams on old end. Holds their number, if all proxies answer.
    Streams(Option<u64>),
    /// Streams on old are moved to new. Holds their number, and that of all streams on old, if all proxies answer.
    Moves(u64, Option<u64>),
    /// The user ends the pause.
    Resume,
    /// The user requests a retry of new, or names a different one.
    Retry,
    /// The split has been at the step of this percentage for its whole hold.
    Hold(u8),
    /// New passes the analysis at the step of this percentage.
    Pass(u8),
}

impl fmt::Display for WaitFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gate(_) => f.write_str("new to become able to serve"),
            Self::Stability(generation) => write!(f, "the workers of {generation} to stay ready"),
            Self::Proxies(names) => {
                let (proxies, listed) = (counted(names.len() as u64, "proxy"), listed(names));
                write!(f, "{proxies} to apply the last change: {listed}")
            }
            Self::Streams(Some(0)) => f.write_str("all proxies to apply `oldDraining`"),
            Self::Streams(Some(count)) => write!(f, "{} on old to end", counted(*count, "stream")),
            Self::Streams(None) => f.write_str(
                "streams on old to end: their number is unknown because a proxy does not respond",
            ),
            Self::Moves(moving, open) => {
                write!(f, "{} on old to move to new", counted(*moving, "stream"))?;
                match open.map(|open| open.saturating_sub(*moving)) {
                    Some(0) => Ok(()),
                    Some(rest) => write!(f, ", and {} to end", thousands(rest)),
                    None => f.write_str(", and others to end: their number is unknown because a proxy does not respond"),
                }
            }
            Self::Resume => f.write_str("the pause to be lifted"),
            Self::Retry => write!(f, "{RETRY}, or a different new generation in the spec"),
            Self::Hold(percent) => write!(f, "the hold at {percent}% to elapse"),
            Self::Pass(percent) => write!(f, "new to pass the analysis at {percent}%"),
        }
    }
}

/// All waits, in the order of the rules.
pub(super) fn all(
    assessment: &Assessment,
    memory: &Memory,
    ending: &Ending,
    aim: SplitMove,
    next: Weights,
) -> Vec<Waiting> {
    let mut waits = Vec::new();
    let mut wait = |what, since, until| waits.push(Waiting { what, since, until });
    match memory.rule {
        Some(Rule::Superseded) => return waits,
        Some(Rule::NewCannotServe | Rule::NeitherCanServe) => {
            wait(
                WaitFor::Gate(assessment.gate.obstacles.clone()),
                memory.rule_since,
                None,
            );
        }
        Some(Rule::Paused) => wait(WaitFor::Resume, memory.rule_since, None),
        Some(Rule::AnalysisFailed) => wait(WaitFor::Retry, memory.rule_since, None),
        Some(Rule::Step) => {
            for (what, since, until) in at_step(assessment, memory) {
                wait(what, since, until);
            }
        }
        _ => {}
    }
    for (generation, credit) in credits(memory) {
        if let Some(rise) = credit.rises.first() {
            let until = rise
                .since
                .after(credit.patience(assessment.settings.stable));
            if until > assessment.now {
                wait(WaitFor::Stability(generation), rise.since, Some(until));
            }
        }
    }
    let changed = memory.change.map_or(assessment.now, |change| change.since);
    let lasted = credits(memory)
        .any(|(_, credit)| credit.lasted(assessment.now, assessment.settings.stable));
    let is_held_back = matches!(aim, SplitMove::AfterWait(to) if to != next);
    if (lasted || is_held_back) && !assessment.may_gain() {
        let names = assessment.proxies.lagging.clone();
        wait(
            WaitFor::Proxies(names),
            changed,
            Some(assessment.ack_deadline),
        );
    } else if ending.waits_for_proxies() {
        wait(
            WaitFor::Proxies(assessment.proxies.lagging_alive.clone()),
            changed,
            None,
        );
    }
    if memory.phase == Phase::Draining {
        let open = assessment.proxies.open.map(|open| open.old);
        let what = match assessment.proxies.moving {
            0 => WaitFor::Streams(open),
            moving => WaitFor::Moves(moving, open),
        };
        wait(what, memory.phase_since, ending.deadline());
    }
    waits
}

/// The conditions for going past the current step.
fn at_step(
    assessment: &Assessment,
    memory: &Memory,
) -> Vec<(WaitFor, Timestamp, Option<Timestamp>)> {
    let settings = assessment.settings;
    let trial = &memory.trial;
    let (Some(step), Some(since)) = (trial.step(settings), trial.at_step_since) else {
        return Vec::new();
    };
    let until = step.held_until(since);
    let hold = (WaitFor::Hold(step.percent), since, Some(until));
    let pass = (WaitFor::Pass(step.percent), since, None);
    let hold = (until > assessment.now).then_some(hold);
    let pass = settings.on_failure.is_some().then_some(pass);
    hold.into_iter().chain(pass).collect()
}

fn credits(memory: &Memory) -> impl Iterator<Item = (Generation, &Credit)> {
    let generations = memory.credit.iter();
    generations
        .flat_map(|credit| Generation::ALL.map(|generation| (generation, credit.of(generation))))
}

/// The earliest time at which the decision may change without a new observation.
pub(super) fn wake_at(
    assessment: &Assessment,
    memory: &Memory,
    waits: &[Waiting],
) -> Option<Timestamp> {
    let unreported_lag = memory.change.is_some_and(|change| !change.lag_reported)
        && assessment.proxies.lagging_is_sure
        && assessment.seen.superseded_by.is_none();
    let drains_just_now = memory.phase == Phase::Draining && memory.phase_since == assessment.now;
    waits
        .iter()
        .filter_map(|wait| wait.until)
        .chain(drains_just_now.then(|| assessment.now.after(Duration::from_secs(1))))
        .chain(unreported_lag.then_some(assessment.ack_deadline))
        .filter(|until| *until > assessment.now)
        .min()
}
