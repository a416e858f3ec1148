//! Assesses a split in one sentence, based on the verdict of the analysis or else on a comparison of both generations over the
//! same five minutes. Pure.

mod comparison;

use super::v1;
use crate::analysis::Verdict;
use crate::latency::{ENOUGH, Sketch};
use crate::printable::{latency, needed, only, percent};

/// Whether anything needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// All comparable figures are as expected.
    Good,
    /// There is too little traffic for an assessment.
    NotEnoughData,
    /// An operator should look at it.
    Attention,
}

impl Level {
    /// Its name in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::NotEnoughData => "notEnoughData",
            Self::Attention => "attention",
        }
    }
}

/// A sentence for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    pub level: Level,
    pub text: String,
}

/// An error ratio that needs attention by itself.
const MANY_ERRORS: f64 = 0.05;
/// The observed split needs attention if it differs from the desired one by this much.
const OFF: f64 = 0.05;
/// The seconds that the observed split covers.
const WINDOW: i64 = 60;

/// One generation in the last five minutes.
struct GenerationFigures {
    name: &'static str,
    ended: u64,
    errors: Option<f64>,
    first_event: Sketch,
    gap: Sketch,
}

impl GenerationFigures {
    fn new(name: &'static str, generation: Option<&v1::Generation>) -> Self {
        let recent = generation.and_then(|generation| generation.last_five_minutes.as_ref());
        let sketch =
            |latencies: Option<&v1::Latencies>| latencies.map_or(Sketch::EMPTY, Sketch::from);
        Self {
            name,
            ended: recent
                .and_then(|recent| recent.outcomes)
                .map_or(0, |outcomes| outcomes.count()),
            errors: recent.and_then(v1::Recent::error_ratio),
            first_event: sketch(recent.and_then(|recent| recent.first_event.as_ref())),
            gap: sketch(recent.and_then(|recent| recent.gap.as_ref())),
        }
    }

    /// As part of a sentence.
    fn figures(&self) -> String {
        let errors = percent(self.errors.unwrap_or_default());
        let first = self.first_event.reliable_quantile(0.95).map(latency);
        let first = first.map_or_else(String::new, |first| format!(", first token p95 {first}"));
        format!("{}: {errors} errors{first}", self.name)
    }
}

/// The assessment of a state. `verdict` is that of an analysis, if there is one.
#[must_use]
pub fn assess(state: &v1::State, verdict: Option<&v1::Analysis>) -> Assessment {
    let generations = [
        GenerationFigures::new("Old", state.old.as_ref()),
        GenerationFigures::new("New", state.new.as_ref()),
    ];
    let assessed = verdict.map(assess_analysis);
    let has_failed = |assessed: &&Assessment| assessed.level == Level::Attention;
    let failed = || Some(assessed.as_ref().filter(has_failed)?.text.clone());
    // If there is an analysis, it decides whether new is worse than old.
    let worse = || comparison::worse(&generations).filter(|_| verdict.is_none());
    let bad = || {
        failed()
            .or_else(worse)
            .or_else(|| many_errors(&generations))
    };
    // If new is bad, it is even more important which plan is in force.
    let attention = outage(state).or_else(|| match (bad(), stale_plan(state)) {
        (Some(bad), Some(stale)) => Some(format!("{bad} {stale}")),
        (bad, stale) => bad.or(stale),
    });
    if let Some(text) = attention.or_else(|| split(state)) {
        let level = Level::Attention;
        return Assessment { level, text };
    }
    let share = share(state);
    let serving = serving(state, &generations);
    // If only one generation has requests, there is nothing to compare.
    if let Some(assessed) = assessed.filter(|_| serving.len() > 1) {
        let text = format!("{} {share}", assessed.text);
        return Assessment { text, ..assessed };
    }
    if let Some(generation) = serving
        .iter()
        .find(|generation| generation.errors.is_none())
    {
        let text = if generations.iter().all(|generation| generation.ended == 0) {
            format!("{share} No requests ended in the last 5 minutes.")
        } else {
            format!(
                "{share} Not enough data: {} finished {} in the last 5 minutes; {}.",
                generation.name.to_lowercase(),
                only(generation.ended, "request"),
                needed(ENOUGH)
            )
        };
        let level = Level::NotEnoughData;
        return Assessment { level, text };
    }
    if let Some(text) = comparison::unclear(&generations).filter(|_| serving.len() > 1) {
        let text = format!("{share} {text}");
        let level = Level::NotEnoughData;
        return Assessment { level, text };
    }
    let figures: Vec<_> = serving
        .iter()
        .map(|generation| generation.figures())
        .collect();
    Assessment {
        level: Level::Good,
        text: format!("{share} {}.", figures.join("; ")),
    }
}

/// Why the proxy serves no requests, or soon will not.
fn outage(state: &v1::State) -> Option<String> {
    match state.phase() {
        v1::Phase::Starting => return Some("The proxy is starting.".to_owned()),
        v1::Phase::Settling | v1::Phase::Draining | v1::Phase::Ending => {
            return Some("The proxy is shutting down.".to_owned());
        }
        v1::Phase::Ready | v1::Phase::Unspecified => {}
    }
    (!state.ready).then(|| "Not ready: cannot reach any model server.".to_owned())
}

/// Why the plan in force is not the newest.
fn stale_plan(state: &v1::State) -> Option<String> {
    let plan = state.plan.as_ref()?;
    if plan.refusal.is_some() {
        return Some(
            "The newest plan could not be applied; the last good plan stays in force.".to_owned(),
        );
    }
    plan.source_lost_for
        .as_ref()
        .map(|_| "The plan source cannot be reached; the last good plan stays in force.".to_owned())
}

/// Describes the verdict of an analysis on new.
#[must_use]
pub fn assess_analysis(verdict: &v1::Analysis) -> Assessment {
    let passes = verdict.verdict == Verdict::PASS;
    let fails = verdict.verdict == Verdict::FAIL;
    let (level, so) = match (passes, fails) {
        (true, _) => (Level::Good, "New is good enough"),
        (_, true) if verdict.rolled_back => {
            (Level::Attention, "New has failed and was rolled back")
        }
        (_, true) => (Level::Attention, "New has failed"),
        // The name may be one of a newer version.
        (false, false) => (
            Level::NotEnoughData,
            "It is not yet known whether new is good enough",
        ),
    };
    let text = format!("{so}: {}", verdict.text);
    Assessment { level, text }
}

/// A generation that fails many requests, no matter how the other one does.
fn many_errors(generations: &[GenerationFigures; 2]) -> Option<String> {
    generations.iter().find_map(|generation| {
        let errors = percent(generation.errors.filter(|errors| *errors > MANY_ERRORS)?);
        let name = generation.name;
        Some(format!(
            "{name} failed {errors} of its requests in the last 5 minutes."
        ))
    })
}

/// An observed split that differs from the desired one.
fn split(state: &v1::State) -> Option<String> {
    let plan = state.plan.as_ref()?;
    let wanted = plan.share_of_new()?;
    let age = state.time.zip(plan.since);
    if age.is_some_and(|(now, since)| now.seconds - since.seconds < WINDOW) {
        // Part of the minute belongs to an earlier split.
        return None;
    }
    let last = state.assigned_last_minute.as_ref()?;
    let observed = last.share_of_new()?;
    (last.old.saturating_add(last.new) >= ENOUGH && (observed - wanted).abs() > OFF).then(|| {
        format!(
            "New got {} of the requests of the last minute; the split is {}.",
            percent(observed),
            percent(wanted)
        )
    })
}

/// The generations that the plan gives traffic to.
fn serving<'a>(
    state: &v1::State,
    [old, new]: &'a [GenerationFigures; 2],
) -> Vec<&'a GenerationFigures> {
    let wanted = state.plan.as_ref().and_then(v1::Plan::share_of_new);
    match wanted {
        Some(0.0) => vec![old],
        Some(1.0) => vec![new],
        _ => vec![old, new],
    }
}

fn share(state: &v1::State) -> String {
    match state.plan.as_ref().and_then(v1::Plan::share_of_new) {
        None => "The split is unknown.".to_owned(),
        Some(0.0) => "Old gets all requests.".to_owned(),
        Some(1.0) => "New gets all requests.".to_owned(),
        Some(share) => format!("New gets {} of the requests.", percent(share)),
    }
}

#[cfg(test)]
mod tests;
