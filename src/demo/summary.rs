//! The result of the demo: counts, and a verdict derived from them. Pure.

use std::fmt;
use std::time::Duration;

use super::frame::milliseconds;
use super::load::{Counts, Ending};
use crate::printable::counted;
use crate::split::Generation;

/// A step with fewer responses is not compared with the split: one response more or less would be several percent.
const ENOUGH: u64 = 10;

/// The result of a demo. [`fmt::Display`] renders the report for people, without a final line end.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How long it ran.
    pub elapsed: Duration,
    /// Number of clients.
    pub streams: usize,
    /// True if the user ended it before the script did.
    pub interrupted: bool,
    /// The requests that the proxy counted as recovered.
    pub recovery: RecoveryCounts,
    /// Everything else is what the clients observed.
    counts: Counts,
    /// Splits (in percent) at which an upstream was down for a while.
    disturbed: Vec<u8>,
}

/// The requests that the proxy recovered, by its own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryCounts {
    /// Requests recovered by a retry.
    pub recovered: u64,
    /// Streams that another server continued; `None` if the demo continues none.
    pub continued: Option<u64>,
}

/// The step with the largest deviation from the wanted split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorstStep {
    /// The wanted split, in percent.
    pub wanted: u8,
    /// Number of responses.
    pub answers: u64,
    /// Number of responses from the new generation, by their text.
    pub new: u64,
    /// The difference between wanted and observed split, in percentage points.
    pub off: f64,
}

impl Summary {
    pub(super) fn new(
        counts: Counts,
        streams: usize,
        elapsed: Duration,
        recovery: RecoveryCounts,
    ) -> Self {
        Self {
            elapsed,
            streams,
            interrupted: false,
            recovery,
            counts,
            disturbed: Vec::new(),
        }
    }

    /// With the splits at which an upstream was down, and whether the script was cut short.
    pub(super) fn with(mut self, disturbed: Vec<u8>, interrupted: bool) -> Self {
        self.disturbed = disturbed;
        self.interrupted = interrupted;
        self
    }

    /// Requests that ended.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.counts.ended()
    }

    /// Requests that were completed, by the generation whose text came back.
    #[must_use]
    pub fn completed(&self) -> [u64; 2] {
        Generation::ALL.map(|generation| self.counts.count(Some(generation), Ending::Completed))
    }

    /// Requests that were not: ended with an error, cut without one, never answered.
    #[must_use]
    pub fn lost(&self) -> [u64; 3] {
        [Ending::Failed, Ending::Broken, Ending::Unreachable]
            .map(|ending| self.counts.total(ending))
    }

    /// The step that deviated most from the wanted split, among those with at least ten responses. Steps with an outage are
    /// left out, since requests recovered by a retry come back from the other generation.
    #[must_use]
    pub fn worst_step(&self) -> Option<WorstStep> {
        let undisturbed = self
            .counts
            .by_split
            .iter()
            .filter(|(wanted, _)| !self.disturbed.contains(wanted));
        let assessed = undisturbed.filter(|(_, [old, new])| old + new >= ENOUGH);
        let steps = assessed.map(|(&wanted, &[old, new])| {
            let answers = old + new;
            let observed = 100.0 * float(new) / float(answers);
            WorstStep {
                wanted,
                answers,
                new,
                off: (observed - f64::from(wanted)).abs(),
            }
        });
        steps.max_by(|a, b| a.off.total_cmp(&b.off))
    }

    /// One sentence about what was lost, as far as the counts show.
    #[must_use]
    pub fn verdict(&self) -> String {
        let [failed, broken, unreachable] = self.lost();
        let (lost, lost_without_outage) = self.counts.lost();
        let requests = self.requests();
        if requests == 0 {
            return "no request ended, so there is no verdict".to_owned();
        }
        if lost == 0 {
            return match self.recovery.continued {
                Some(continued) => {
                    format!(
                        "0 cut, {continued} continued: all {requests} streams completed in full"
                    )
                }
                None => format!("no stream was lost: all {requests} completed in full"),
            };
        }
        let continued = self
            .recovery
            .continued
            .map(|count| format!("; {count} were continued"));
        let continued = continued.unwrap_or_default();
        if lost_without_outage == 0 && failed == lost {
            let mute = self.counts.count(None, Ending::Failed);
            return format!(
                "the split lost no stream; the kill cut {lost} ({} after its first token), each with an error event{continued}",
                lost - mute
            );
        }
        format!(
            "{lost} of {requests} streams were LOST: {failed} failed, {broken} broken, {unreachable} unanswered; \
             {lost_without_outage} without an outage{continued}"
        )
    }

    fn counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SPEAKERS: [Option<Generation>; 3] =
            [Some(Generation::Old), Some(Generation::New), None];
        writeln!(
            f,
            "  {:<24}{:>10}{:>10}{:>10}{:>10}",
            "by received text", "old", "new", "none", "all"
        )?;
        let mut row = |name: &str, counts: [u64; 3]| {
            write!(f, "  {name:<24}")?;
            counts
                .iter()
                .try_for_each(|count| write!(f, "{count:>10}"))?;
            writeln!(f, "{:>10}", counts.iter().sum::<u64>())
        };
        let of = |ending| SPEAKERS.map(|generation| self.counts.count(generation, ending));
        let requests = SPEAKERS.map(|generation| {
            Ending::ALL
                .iter()
                .map(|end| self.counts.count(generation, *end))
                .sum()
        });
        row("requests", requests)?;
        row("  completed", of(Ending::Completed))?;
        row("  ended with an error", of(Ending::Failed))?;
        row("  broken", of(Ending::Broken))?;
        row("  never answered", of(Ending::Unreachable))?;
        writeln!(
            f,
            "  {:<24}{:>40}",
            "recovered by the proxy", self.recovery.recovered
        )?;
        match self.recovery.continued {
            Some(continued) => writeln!(f, "  {:<24}{continued:>40}", "continued by the proxy"),
            None => Ok(()),
        }
    }

    fn times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, times, decimals) in [
            ("first token", &self.counts.first_token, 0),
            ("gap", &self.counts.gap, 1),
        ] {
            write!(f, "  {:<24}", format!("{name} p50 / p99, ms"))?;
            for times in times {
                let [p50, p99] = times
                    .percentiles([50, 99])
                    .map_or([None; 2], |both| both.map(Some))
                    .map(|time| milliseconds(time, decimals));
                write!(f, "{:>16}", format!("{p50} / {p99}"))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopped = if self.interrupted {
            ", stopped before its end"
        } else {
            ""
        };
        writeln!(
            f,
            "crossfade demo: {:.0} s, {} clients{stopped}",
            self.elapsed.as_secs_f64(),
            self.streams
        )?;
        self.counts(f)?;
        writeln!(
            f,
            "  {:<24}{:>16}{:>16}",
            "as seen by clients", "old", "new"
        )?;
        self.times(f)?;
        if let Some(WorstStep {
            wanted,
            answers,
            new,
            off,
        }) = self.worst_step()
        {
            let observed = format!("{new} of {answers} responses came from new");
            writeln!(
                f,
                "  {:<24}wanted {wanted}%, {observed}: {off:.1} points off",
                "worst step"
            )?;
        }
        for percent in &self.disturbed {
            writeln!(
                f,
                "  {:<24}not evaluated: an upstream was down",
                format!("step to {percent}%")
            )?;
        }
        if self.counts.open() > 0 {
            writeln!(
                f,
                "  {:<24}{}, not counted above",
                "still open at the end",
                counted(self.counts.open(), "stream")
            )?;
        }
        write!(f, "verdict: {}", self.verdict())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a demo has fewer than 2^52 requests"
)]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::load::RequestReport;

    fn counts(ends: &[(Ending, Option<Generation>, u8, bool)]) -> Counts {
        let mut counts = Counts::default();
        for &(ending, generation, percent, outage) in ends {
            counts.begin();
            let (first_token, gaps) = (
                Some(Duration::from_millis(200)),
                vec![Duration::from_millis(30)],
            );
            counts.end(
                &RequestReport {
                    ending,
                    generation,
                    first_token,
                    gaps,
                },
                percent,
                outage,
            );
        }
        counts
    }

    fn summary(ends: &[(Ending, Option<Generation>, u8, bool)]) -> Summary {
        let recovery = RecoveryCounts {
            recovered: 3,
            continued: None,
        };
        Summary::new(counts(ends), 4, Duration::from_secs(5), recovery).with(vec![50], false)
    }

    fn continued(count: u64, ends: &[(Ending, Option<Generation>, u8, bool)]) -> Summary {
        let mut summary = summary(ends);
        summary.recovery.continued = Some(count);
        summary
    }

    const OLD: Option<Generation> = Some(Generation::Old);
    const NEW: Option<Generation> = Some(Generation::New);

    #[test]
    fn no_stream_was_lost_is_said_only_when_all_were_completed() {
        let whole = [
            (Ending::Completed, OLD, 0, false),
            (Ending::Completed, NEW, 50, true),
        ];
        assert!(
            summary(&whole)
                .verdict()
                .contains("no stream was lost: all 2")
        );
        for ending in [Ending::Failed, Ending::Broken, Ending::Unreachable] {
            for outage in [false, true] {
                let ends = [whole[0], whole[1], (ending, None, 50, outage)];
                assert!(
                    !summary(&ends).verdict().contains("no stream was lost"),
                    "{ending:?}"
                );
            }
        }
        assert!(summary(&[]).verdict().contains("no verdict"));
    }

    #[test]
    fn only_losses_reported_while_an_upstream_was_down_are_excused() {
        let cut = |ending, outage| {
            summary(&[
                (Ending::Completed, OLD, 50, false),
                (ending, NEW, 50, outage),
            ])
            .verdict()
        };
        assert!(
            cut(Ending::Failed, true)
                .starts_with("the split lost no stream; the kill cut 1 (1 after its first token)")
        );
        assert!(cut(Ending::Failed, false).contains("1 of 2 streams were LOST"));
        assert!(cut(Ending::Broken, true).contains("1 of 2 streams were LOST"));
    }

    #[test]
    fn the_verdict_counts_the_streams_that_were_continued_beside_those_that_were_cut() {
        let whole = [
            (Ending::Completed, OLD, 0, false),
            (Ending::Completed, NEW, 50, true),
        ];
        let verdict = continued(1, &whole).verdict();
        assert_eq!(
            verdict,
            "0 cut, 1 continued: all 2 streams completed in full"
        );
        for outage in [false, true] {
            let cut = [whole[0], whole[1], (Ending::Failed, NEW, 50, outage)];
            let verdict = continued(1, &cut).verdict();
            assert!(!verdict.contains("0 cut"), "{verdict}");
            assert!(verdict.ends_with("; 1 were continued"), "{verdict}");
        }
        let text = continued(7, &whole).to_string();
        assert!(text.contains("continued by the proxy"), "{text}");
        assert!(!summary(&whole).to_string().contains("continued"));
    }

    #[test]
    fn the_worst_step_is_of_the_undisturbed_ones() {
        let mut ends = vec![(Ending::Completed, OLD, 50, true); 8];
        ends.extend([(Ending::Completed, OLD, 25, false); 12]);
        ends.extend([(Ending::Completed, NEW, 25, false); 4]);
        ends.extend([(Ending::Completed, OLD, 30, false); 6]);
        ends.extend([(Ending::Completed, NEW, 30, false); 4]);
        ends.extend([(Ending::Completed, OLD, 95, false); 1]);
        let worst = summary(&ends).worst_step().unwrap();
        assert_eq!((worst.wanted, worst.new, worst.answers), (30, 4, 10));
        assert!((worst.off - 10.0).abs() < 1e-9);
        assert_eq!(summary(&[]).worst_step(), None);
    }

    #[test]
    fn the_report_adds_up() {
        let ends = [
            (Ending::Completed, OLD, 0, false),
            (Ending::Completed, NEW, 100, false),
            (Ending::Failed, NEW, 50, true),
            (Ending::Unreachable, None, 50, true),
        ];
        let summary = summary(&ends);
        assert_eq!(
            (summary.requests(), summary.completed(), summary.lost()),
            (4, [1, 1], [1, 0, 1])
        );
        let text = summary.to_string();
        let row = |name: &str| -> Vec<u64> {
            let line = text
                .lines()
                .find(|line| line.trim_start().starts_with(name))
                .unwrap();
            line.split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect()
        };
        assert_eq!(row("requests"), [1, 2, 1, 4]);
        assert_eq!(row("completed"), [1, 1, 0, 2]);
        assert_eq!(row("ended with an error"), [0, 1, 0, 1]);
        assert_eq!(row("never answered"), [0, 0, 1, 1]);
        assert_eq!(row("recovered by the proxy"), [3]);
        assert!(
            text.contains("200 / 200") && text.contains("30.0 / 30.0"),
            "{text}"
        );
        assert!(!text.contains("still open") && !text.contains('\x1b'));
    }
}
