//! Assesses a split in one sentence, by comparing both generations over the same five minutes. Pure.

use super::v1;
use crate::telemetry::latency::{ENOUGH, Sketch};

/// Does anything need attention?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Everything that can be compared is as expected.
    Good,
    /// There is too little traffic to judge.
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

/// New needs attention if its error ratio exceeds old's by this much, and is at least twice as high.
const MORE_ERRORS: f64 = 0.01;
/// An error ratio that needs attention by itself.
const MANY_ERRORS: f64 = 0.05;
/// New needs attention if its p95 exceeds this multiple of old's.
const SLOWER: f64 = 1.25;
/// The observed split needs attention if it differs from the wanted one by this much.
const OFF: f64 = 0.05;
/// The seconds that the observed split covers.
const WINDOW: i64 = 60;

/// One generation in the last five minutes.
struct Side {
    name: &'static str,
    ended: u64,
    errors: Option<f64>,
    first_event: Option<f64>,
    gap: Option<f64>,
}

impl Side {
    fn new(name: &'static str, generation: Option<&v1::Generation>) -> Self {
        let recent = generation.and_then(|side| side.last_five_minutes.as_ref());
        let p95 = |latencies: Option<&v1::Latencies>| {
            latencies.and_then(|times| Sketch::from(times).reliable_quantile(0.95))
        };
        Self {
            name,
            ended: recent
                .and_then(|recent| recent.outcomes)
                .map_or(0, |outcomes| outcomes.count()),
            errors: recent.and_then(v1::Recent::error_ratio),
            first_event: p95(recent.and_then(|recent| recent.first_event.as_ref())),
            gap: p95(recent.and_then(|recent| recent.gap.as_ref())),
        }
    }
}

/// The assessment of a state.
#[must_use]
pub fn assess(state: &v1::State) -> Assessment {
    let sides = [
        Side::new("Old", state.old.as_ref()),
        Side::new("New", state.new.as_ref()),
    ];
    if let Some(text) = trouble(state).or_else(|| comparison(state, &sides)) {
        let level = Level::Attention;
        return Assessment { level, text };
    }
    let takes = takes(state);
    let serving = serving(state, &sides);
    if let Some(side) = serving.iter().find(|side| side.errors.is_none()) {
        let text = if sides.iter().all(|side| side.ended == 0) {
            format!("{takes} No request ended in the last 5 minutes.")
        } else {
            format!(
                "{takes} Not enough data: {} ended {} requests in the last 5 minutes; {ENOUGH} are needed.",
                side.name.to_lowercase(),
                side.ended
            )
        };
        let level = Level::NotEnoughData;
        return Assessment { level, text };
    }
    let figures: Vec<String> = serving
        .iter()
        .map(|side| {
            let errors = percent(side.errors.unwrap_or_default());
            let first = side.first_event.map(seconds);
            let first =
                first.map_or_else(String::new, |first| format!(", first token p95 {first}"));
            format!("{}: {errors} errors{first}", side.name)
        })
        .collect();
    Assessment {
        level: Level::Good,
        text: format!("{takes} {}.", figures.join("; ")),
    }
}

/// Problems that do not depend on the comparison.
fn trouble(state: &v1::State) -> Option<String> {
    match state.phase() {
        v1::Phase::Starting => return Some("The proxy is starting.".to_owned()),
        v1::Phase::Settling | v1::Phase::Draining | v1::Phase::Ending => {
            return Some("The proxy is shutting down.".to_owned());
        }
        v1::Phase::Ready | v1::Phase::Unspecified => {}
    }
    if !state.ready {
        return Some("Not ready: cannot reach any model server.".to_owned());
    }
    let plan = state.plan.as_ref()?;
    if plan.refusal.is_some() {
        return Some("A newer plan was refused; the last good plan stays in force.".to_owned());
    }
    plan.source_lost_for
        .as_ref()
        .map(|_| "The plan source cannot be reached; the last good plan stays in force.".to_owned())
}

/// Problems of one generation compared with the other.
fn comparison(state: &v1::State, [old, new]: &[Side; 2]) -> Option<String> {
    let analysis = state.plan.as_ref().and_then(|plan| plan.analysis.as_ref());
    if let Some(failed) = analysis.filter(|analysis| analysis.verdict == "fail") {
        let so = if failed.rolled_back {
            "New has failed and was rolled back"
        } else {
            "New has failed"
        };
        return Some(format!("{so}: {}", failed.text));
    }
    if let (Some(before), Some(now)) = (old.errors, new.errors)
        && now > before + MORE_ERRORS
        && now > 2.0 * before
    {
        return Some(format!(
            "New fails more requests than old: {} and {} in the last 5 minutes.",
            percent(now),
            percent(before)
        ));
    }
    for side in [old, new] {
        if let Some(errors) = side.errors.filter(|errors| *errors > MANY_ERRORS) {
            let errors = percent(errors);
            let name = side.name;
            return Some(format!(
                "{name} fails {errors} of its requests in the last 5 minutes."
            ));
        }
    }
    for (what, before, now) in [
        (
            "is slower to the first token",
            old.first_event,
            new.first_event,
        ),
        ("has longer gaps between tokens", old.gap, new.gap),
    ] {
        if let (Some(before), Some(now)) = (before, now)
            && now > SLOWER * before
        {
            return Some(format!(
                "New {what} than old: p95 {} and {} in the last 5 minutes.",
                seconds(now),
                seconds(before)
            ));
        }
    }
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
            "New gets {} of the requests of the last minute, but {} is wanted.",
            percent(observed),
            percent(wanted)
        )
    })
}

/// The generations that the plan gives traffic to.
fn serving<'a>(state: &v1::State, [old, new]: &'a [Side; 2]) -> Vec<&'a Side> {
    let wanted = state.plan.as_ref().and_then(v1::Plan::share_of_new);
    match wanted {
        Some(0.0) => vec![old],
        Some(1.0) => vec![new],
        _ => vec![old, new],
    }
}

fn takes(state: &v1::State) -> String {
    match state.plan.as_ref().and_then(v1::Plan::share_of_new) {
        None => "The split is not known.".to_owned(),
        Some(0.0) => "Old takes all requests.".to_owned(),
        Some(1.0) => "New takes all requests.".to_owned(),
        Some(share) => format!("New takes {} of the requests.", percent(share)),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn seconds(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    format!("{seconds:.2} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A side whose `ended` exchanges had `failed` failures and a first token after `millis`.
    fn side(ended: u64, failed: u64, millis: u64) -> Option<v1::Generation> {
        let latencies = Sketch::new(
            [(
                crate::telemetry::latency::Scale::index(millis * 1_000_000),
                ended,
            )],
            0,
        );
        Some(v1::Generation {
            last_five_minutes: Some(v1::Recent {
                outcomes: Some(v1::Outcomes {
                    completed: ended - failed,
                    failed,
                    ..Default::default()
                }),
                first_event: Some((&latencies).into()),
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    fn state(new: u32, sides: [Option<v1::Generation>; 2]) -> v1::State {
        let [old, fresh] = sides;
        v1::State {
            phase: v1::Phase::Ready.into(),
            ready: true,
            plan: Some(v1::Plan {
                weights: Some(v1::Weights {
                    old: 100 - new,
                    new,
                }),
                ..Default::default()
            }),
            old,
            new: fresh,
            ..Default::default()
        }
    }

    #[test]
    fn the_sentence_says_how_it_stands_and_why() {
        let good = || [side(1000, 1, 300), side(500, 1, 310)];
        let mut failed = state(0, good());
        failed.plan.as_mut().unwrap().analysis = Some(v1::Analysis {
            verdict: "fail".into(),
            text: "New fails 3.0 % of requests, old 0.0 %.".into(),
            rolled_back: true,
        });
        let mut off = state(5, good());
        off.assigned_last_minute = Some(v1::Requests { old: 10, new: 90 });
        let mut unreachable = state(5, good());
        unreachable.ready = false;
        let mut refused = state(5, good());
        refused.plan.as_mut().unwrap().refusal = Some(v1::Refusal::default());
        for (state, level, begins) in [
            (
                state(25, good()),
                Level::Good,
                "New takes 25.0 % of the requests. Old: 0.1 % errors, first token p95",
            ),
            (
                state(0, [side(1000, 1, 300), None]),
                Level::Good,
                "Old takes all requests. Old: 0.1 % errors",
            ),
            (
                state(5, [side(1000, 1, 300), side(49, 0, 300)]),
                Level::NotEnoughData,
                "New takes 5.0 % of the requests. Not enough data: new ended 49",
            ),
            (
                state(5, [side(0, 0, 1), None]),
                Level::NotEnoughData,
                "New takes 5.0 % of the requests. No request ended",
            ),
            (
                state(25, [side(1000, 3, 300), side(1000, 40, 300)]),
                Level::Attention,
                "New fails more requests than old: 4.0 % and 0.3 %",
            ),
            (
                state(25, [side(1000, 100, 300), side(1000, 100, 300)]),
                Level::Attention,
                "Old fails 10.0 %",
            ),
            (
                state(25, [side(1000, 0, 300), side(1000, 0, 400)]),
                Level::Attention,
                "New is slower to the first token than old: p95 400 ms and",
            ),
            (
                failed,
                Level::Attention,
                "New has failed and was rolled back: New fails 3.0 %",
            ),
            (off, Level::Attention, "New gets 90.0 % of the requests"),
            (unreachable, Level::Attention, "Not ready"),
            (refused, Level::Attention, "A newer plan was refused"),
        ] {
            let assessment = assess(&state);
            assert_eq!(assessment.level, level, "{}", assessment.text);
            assert!(assessment.text.starts_with(begins), "{}", assessment.text);
        }
    }

    #[test]
    fn the_observed_split_is_not_compared_with_a_plan_that_is_younger_than_its_minute() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let mut off = state(67, [side(1000, 1, 300), side(1000, 1, 300)]);
        off.assigned_last_minute = Some(v1::Requests { old: 42, new: 58 });
        off.plan.as_mut().unwrap().since = at(1000);
        for (now, level) in [(1059, Level::Good), (1060, Level::Attention)] {
            off.time = at(now);
            let assessment = assess(&off);
            assert_eq!(assessment.level, level, "{}", assessment.text);
        }
    }

    #[test]
    fn a_proxy_that_says_nothing_of_its_last_minutes_is_not_called_good() {
        let mut old = state(25, [None, None]);
        old.old = Some(v1::Generation::default());
        old.new = Some(v1::Generation::default());
        assert_eq!(assess(&old).level, Level::NotEnoughData);
    }
}
