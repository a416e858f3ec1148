//! Evaluates new based on the counts of an update's proxies. [`crate::rollout`] decides what follows from a verdict.

use std::time::{Duration, Instant};

use super::observer::{ComparisonResult, ProxyComparison};
use crate::analysis::{self, Accumulator, Counts, Margins, Memory, Reading, Reason, Report};
use crate::printable::counted;
use crate::rollout::{Timestamp, Trial, TrialResult, TrialVerdict};

/// The analysis of a trial, over many looks.
#[derive(Debug)]
pub(super) struct ControllerAnalysis {
    trial: Timestamp,
    margins: Margins,
    began: Instant,
    /// The time before `began` that it covers, because the proxies remember it.
    past: Duration,
    accumulator: Accumulator,
    whole: Memory,
    step: Option<Step>,
}

/// What was seen since the split reached the current step.
#[derive(Debug)]
struct Step {
    since: Timestamp,
    /// `since` by the clock of the analysis. Counts that may be from before then do not count.
    from: Duration,
    memory: Memory,
}

impl ControllerAnalysis {
    /// Whether it is about this trial, by these margins.
    pub fn is_of(&self, trial: &Trial, margins: &Margins) -> bool {
        self.trial == trial.since && self.margins == *margins
    }

    /// Begins with what the proxies remember of the trial, so that a restarted controller finds what its predecessor found.
    /// `None` while a proxy may still answer.
    pub fn begin(
        trial: &Trial,
        margins: Margins,
        comparisons: &[ProxyComparison],
        (now, wall): (Instant, Timestamp),
    ) -> Option<Self> {
        if comparisons
            .iter()
            .any(|one| matches!(one.answer, ComparisonResult::NotYet))
        {
            return None;
        }
        let remembered = |since: Timestamp| -> Vec<Vec<(Duration, Counts)>> {
            let long = wall.since(since);
            let each = comparisons.iter().filter_map(|one| one.past(now));
            each.map(|past| past.into_iter().filter(|(age, _)| *age <= long).collect())
                .collect()
        };
        let past = remembered(trial.since);
        let oldest = past.iter().flatten().map(|(age, _)| *age).max();
        let mut whole = Memory::default();
        analysis::replay(&mut whole, &margins, past);
        let step = trial.at_step_since.map(|since| {
            let mut memory = Memory::default();
            analysis::replay(&mut memory, &margins, remembered(since));
            let past = oldest.unwrap_or_default();
            Step {
                since,
                from: past.saturating_sub(wall.since(since)),
                memory,
            }
        });
        let mut accumulator = Accumulator::default();
        let remembered = comparisons.iter();
        let remembered = remembered.filter_map(|one| one.first_reading(now));
        let [] = accumulator.since_last(remembered, oldest.unwrap_or_default(), []);
        Some(Self {
            trial: trial.since,
            margins,
            began: now,
            past: oldest.unwrap_or_default(),
            accumulator,
            whole,
            step,
        })
    }

    /// Adds what the proxies have counted until `now`.
    pub fn observe(
        &mut self,
        trial: &Trial,
        comparisons: &[ProxyComparison],
        now: Instant,
    ) -> TrialResult {
        let at = self.past + now.saturating_duration_since(self.began);
        if self.step.as_ref().map(|step| step.since) != trial.at_step_since {
            self.step = trial.at_step_since.map(|since| Step {
                since,
                from: at,
                memory: Memory::default(),
            });
        }
        let readings = comparisons.iter();
        let readings = readings.filter_map(|one| one.reading(now));
        let margins = &self.margins;
        let window = at.saturating_sub(margins.window);
        let step = self.step.as_ref();
        let step = step.map_or(Duration::MAX, |step| step.from.max(window));
        let from = [window, step];
        let [counts, of_step] = self.accumulator.since_last(readings, at, from);
        let whole = self.whole.look(margins, counts, at);
        let step = self.step.as_mut();
        let step = step.map(|step| step.memory.look(margins, of_step, at));
        let (verdict, reason, sentence) = verdict(whole, step, comparisons);
        TrialResult {
            trial: self.trial,
            step: trial.at_step_since,
            verdict,
            reason: reason.as_str().to_owned(),
            sentence,
        }
    }
}

/// New fails by all counts of its trial. It passes by the counts since the current step began, if every proxy has reported.
fn verdict(
    whole: Report,
    step: Option<Report>,
    comparisons: &[ProxyComparison],
) -> (TrialVerdict, Reason, String) {
    if matches!(whole.verdict, analysis::Verdict::Fail(_)) {
        return (TrialVerdict::Fail, whole.reason(), whole.sentence());
    }
    let report = step.unwrap_or(whole);
    let unavailable: Vec<String> = comparisons
        .iter()
        .filter_map(ProxyComparison::obstacle)
        .collect();
    let obstacle = match unavailable.first() {
        _ if comparisons.is_empty() => "No proxy can be compared.".to_owned(),
        None => String::new(),
        Some(first) => {
            let (count, all) = (
                unavailable.len(),
                counted(comparisons.len() as u64, "proxy"),
            );
            format!("{count} of {all} cannot be compared: {first}.")
        }
    };
    let reason = report.reason();
    let has_passed = report.verdict == analysis::Verdict::Pass;
    match (has_passed, obstacle.is_empty()) {
        (true, true) => (TrialVerdict::Pass, reason, report.sentence()),
        (true, false) => (TrialVerdict::Inconclusive, Reason::NotComparable, obstacle),
        (false, true) => (TrialVerdict::Inconclusive, reason, report.sentence()),
        (false, false) => {
            let sentence = format!("{} {obstacle}", report.sentence());
            (TrialVerdict::Inconclusive, Reason::NotComparable, sentence)
        }
    }
}

impl ProxyComparison {
    fn reading(&self, now: Instant) -> Option<Reading> {
        match &self.answer {
            ComparisonResult::Counts(compared) => {
                let reading = compared.counts.as_ref().ok()?.reading(&self.name)?;
                let age = now.saturating_duration_since(compared.at);
                Some(Reading { age, ..reading })
            }
            ComparisonResult::NotYet | ComparisonResult::Unavailable(_) => None,
        }
    }

    /// Its counts when it was first queried.
    fn first_reading(&self, now: Instant) -> Option<Reading> {
        match &self.answer {
            ComparisonResult::Counts(compared) => {
                let (at, first) = compared.past.as_ref()?;
                let reading = first.reading(&self.name)?;
                let age = now.saturating_duration_since(*at);
                Some(Reading { age, ..reading })
            }
            ComparisonResult::NotYet | ComparisonResult::Unavailable(_) => None,
        }
    }

    /// Its counts at several times, with their ages, oldest first.
    fn past(&self, now: Instant) -> Option<Vec<(Duration, Counts)>> {
        let ComparisonResult::Counts(compared) = &self.answer else {
            return None;
        };
        let (at, past) = compared.past.as_ref()?;
        let since = now.saturating_duration_since(*at);
        let counts = past.past().into_iter();
        Some(counts.map(|(age, counts)| (age + since, counts)).collect())
    }

    /// Why its counts cannot be compared, if they cannot.
    fn obstacle(&self) -> Option<String> {
        match &self.answer {
            ComparisonResult::Counts(compared) if self.reading(compared.at).is_some() => None,
            ComparisonResult::Counts(_) => {
                Some(format!("{} does not identify its process", self.name))
            }
            ComparisonResult::NotYet => Some(format!("{} has not responded yet", self.name)),
            ComparisonResult::Unavailable(why) => Some(format!("{} {why}", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::analysis::requests;
    use crate::controller::comparisons::ReportedCounts;
    use crate::state_api::v1;

    const WALL: Timestamp = Timestamp::from_unix_millis(1_700_000_000_000);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The counts of a proxy: seconds ago, requests of both generations, and those that new failed.
    fn comparison(counts: &[(i64, [u64; 2], u64)]) -> Arc<v1::Comparison> {
        let duration = |seconds| prost_types::Duration { seconds, nanos: 0 };
        let counts = counts.iter().map(|(age, [old, new], failed)| {
            v1::Counts::new(duration(*age), &requests(*old, *new, *failed))
        });
        Arc::new(v1::Comparison {
            series: 1,
            series_age: None,
            new_targets: Vec::new(),
            margins: None,
            rolled_back: String::new(),
            failed: String::new(),
            process: Some(v1::Process {
                started: Some(prost_types::Timestamp::default()),
                uptime: Some(duration(500)),
                ..Default::default()
            }),
            counts: counts.collect(),
        })
    }

    fn proxy_comparison(name: &str, answer: ComparisonResult) -> ProxyComparison {
        ProxyComparison {
            name: name.to_owned(),
            answer,
        }
    }

    fn reported(
        counts: [u64; 2],
        failed: u64,
        past: Option<(Instant, Arc<v1::Comparison>)>,
    ) -> ProxyComparison {
        let counts = Ok(comparison(&[(0, counts, failed)]));
        proxy_comparison(
            "a",
            ComparisonResult::Counts(ReportedCounts {
                counts,
                // New at any look.
                at: Instant::now() + seconds(3600),
                past,
            }),
        )
    }

    fn trial(ago: u64) -> Trial {
        Trial {
            since: Timestamp::from_unix_millis(WALL.unix_millis() - ago * 1000),
            ..Trial::default()
        }
    }

    #[test]
    fn one_that_starts_again_finds_what_the_proxies_remember_of_this_trial_and_no_more() {
        let now = Instant::now();
        let past = comparison(&[(120, [0, 0], 0), (60, [900, 100], 50), (0, [1800, 200], 50)]);
        let proxies = [reported([1800, 200], 50, Some((now, past)))];
        for (ago, expected) in [(300, TrialVerdict::Fail), (90, TrialVerdict::Inconclusive)] {
            let trial = trial(ago);
            let analysis =
                ControllerAnalysis::begin(&trial, Margins::default(), &proxies, (now, WALL));
            let trial_result = analysis.unwrap().observe(&trial, &proxies, now);
            assert_eq!(
                trial_result.verdict, expected,
                "{ago}: {}",
                trial_result.sentence
            );
            assert_eq!(trial_result.trial, trial.since);
        }
        let waits = [proxy_comparison("a", ComparisonResult::NotYet)];
        assert!(
            ControllerAnalysis::begin(&trial(1), Margins::default(), &waits, (now, WALL)).is_none()
        );
    }

    #[test]
    fn nothing_passes_by_requests_from_before_the_window_or_the_step() {
        let now = Instant::now();
        let at = |counts, seconds: u64| {
            let mut one = reported(counts, 0, None);
            if let ComparisonResult::Counts(compared) = &mut one.answer {
                compared.at = now + Duration::from_secs(seconds);
            }
            [one]
        };
        let margins = Margins {
            window: seconds(10),
            ..Margins::default()
        };
        let mut trial = trial(0);
        let begun = |margins| {
            ControllerAnalysis::begin(&self::trial(0), margins, &[], (now, WALL)).unwrap()
        };
        let mut analysis = begun(margins);
        let verdict = |result: TrialResult| (result.verdict, result.reason);
        // A gap in the reports that is longer than the window, but in which the controller looked.
        analysis.observe(&trial, &at([0, 0], 0), now);
        for second in 1..12 {
            analysis.observe(&trial, &[], now + seconds(second));
        }
        let late = analysis.observe(&trial, &at([900, 900], 12), now + seconds(12));
        assert_eq!(
            verdict(late),
            (TrialVerdict::Inconclusive, "no_traffic".to_owned())
        );
        let next = analysis.observe(&trial, &at([1800, 1800], 13), now + seconds(13));
        assert_eq!(next.verdict, TrialVerdict::Pass, "{}", next.sentence);
        // A gap that began before the step, although it ends after its first look.
        let mut analysis = begun(Margins::default());
        analysis.observe(&trial, &at([0, 0], 0), now);
        trial.at_step_since = Some(WALL.after(seconds(1)));
        analysis.observe(&trial, &[], now + seconds(1));
        let late = analysis.observe(&trial, &at([900, 900], 2), now + seconds(2));
        assert_eq!(
            verdict(late),
            (TrialVerdict::Inconclusive, "no_traffic".to_owned())
        );
        let next = analysis.observe(&trial, &at([1800, 1800], 3), now + seconds(3));
        assert_eq!(next.verdict, TrialVerdict::Pass, "{}", next.sentence);
    }

    #[test]
    fn nothing_passes_while_a_proxy_reports_nothing_and_a_failure_needs_no_answer_of_all() {
        let now = Instant::now();
        let mut trial = trial(0);
        let begun = |proxies: &[ProxyComparison]| {
            ControllerAnalysis::begin(&self::trial(0), Margins::default(), proxies, (now, WALL))
                .unwrap()
        };
        let unavailable = || {
            proxy_comparison(
                "b",
                ComparisonResult::Unavailable("is too old to be compared".to_owned()),
            )
        };
        let nobody = begun(&[]).observe(&trial, &[], now);
        assert_eq!(nobody.verdict, TrialVerdict::Inconclusive);
        for (others, failed, expected) in [
            (vec![], 0, TrialVerdict::Pass),
            (vec![unavailable()], 0, TrialVerdict::Inconclusive),
            (
                vec![proxy_comparison("b", ComparisonResult::NotYet)],
                0,
                TrialVerdict::Inconclusive,
            ),
            (vec![unavailable()], 100, TrialVerdict::Fail),
        ] {
            let mut analysis = begun(&[reported([0, 0], 0, None)]);
            analysis.observe(&trial, &[reported([0, 0], 0, None)], now);
            let proxies = [vec![reported([900, 300], failed, None)], others].concat();
            let trial_result = analysis.observe(&trial, &proxies, now + seconds(10));
            assert_eq!(trial_result.verdict, expected, "{}", trial_result.sentence);
        }
        // A step is passed by what was observed since it began.
        let mut analysis = begun(&[reported([0, 0], 0, None)]);
        analysis.observe(&trial, &[reported([0, 0], 0, None)], now);
        trial.at_step_since = Some(WALL.after(seconds(10)));
        let proxies = [reported([900, 300], 0, None)];
        let trial_result = analysis.observe(&trial, &proxies, now + seconds(10));
        assert_eq!(
            trial_result.verdict,
            TrialVerdict::Inconclusive,
            "{}",
            trial_result.sentence
        );
        assert_eq!(trial_result.step, trial.at_step_since);
        let proxies = [reported([1800, 600], 0, None)];
        let trial_result = analysis.observe(&trial, &proxies, now + seconds(20));
        assert_eq!(
            trial_result.verdict,
            TrialVerdict::Pass,
            "{}",
            trial_result.sentence
        );
    }
}
