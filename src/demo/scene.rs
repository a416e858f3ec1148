//! All that one picture of the demo shows, gathered at one moment; the words for it that every form of output shares.
//!
//! Pure. Must not know how it is drawn.

use std::net::SocketAddr;
use std::time::Duration;

use super::Sample;
use super::load::{Ending, Tally};
use super::script::{Life, Situation};
use crate::split::Generation;

/// What the clients saw so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Whole answers, by generation of the text.
    pub(super) completed: [u64; 2],
    /// Ended with an error that the client was told.
    pub(super) failed: u64,
    /// Ended without a word.
    pub(super) broken: u64,
    /// Never answered.
    pub(super) unreachable: u64,
}

impl From<&Tally> for Seen {
    fn from(tally: &Tally) -> Self {
        Self {
            completed: Generation::ALL
                .map(|generation| tally.count(Some(generation), Ending::Completed)),
            failed: tally.total(Ending::Failed),
            broken: tally.total(Ending::Broken),
            unreachable: tally.total(Ending::Unreachable),
        }
    }
}

/// One moment of the past.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moment {
    /// When, from the beginning.
    pub(super) at: Duration,
    /// Share of the new generation that the proxy observed, 0 to 1.
    pub(super) observed: Option<f64>,
    /// Streams open on each generation.
    pub(super) open: [i64; 2],
}

impl Moment {
    /// Share of the new generation among the open streams, 0 to 1.
    pub(super) fn open_share(&self) -> Option<f64> {
        let [old, new] = self.open.map(share);
        (old + new > 0.0).then(|| new / (old + new))
    }
}

fn share(count: i64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(0))
}

/// One picture.
#[derive(Clone, Debug)]
pub(super) struct Scene<'a> {
    /// Where the proxy is.
    pub(super) address: SocketAddr,
    /// How many clients there are.
    pub(super) streams: usize,
    /// Where the proxy's own page is, if it has one.
    pub(super) page: Option<&'a str>,
    /// Since the beginning.
    pub(super) elapsed: Duration,
    /// Of the script.
    pub(super) length: Duration,
    /// Where the script stands.
    pub(super) situation: Situation,
    /// The proxy's figures.
    pub(super) sample: Sample,
    /// The clients' figures.
    pub(super) seen: Seen,
    /// All moments so far, in order.
    pub(super) history: &'a [Moment],
    /// When an upstream was dead, as far as that has begun.
    pub(super) outages: &'a [(Duration, Duration)],
}

impl Scene<'_> {
    /// True once the script is over and only open streams are waited for.
    pub(super) fn is_over(&self) -> bool {
        self.elapsed >= self.length
    }

    /// What happens now, in a line.
    pub(super) fn caption(&self) -> String {
        if self.is_over() {
            return "over: the last streams go on to their end".to_owned();
        }
        let Situation { percent, victim } = self.situation;
        match (victim, percent) {
            (Some((victim, Life::Dead(since))), _) => {
                let side = victim.as_str().to_uppercase();
                format!(
                    "the {side} upstream was KILLED {:.1} s ago: its requests are saved",
                    since.as_secs_f64()
                )
            }
            (Some((victim, Life::Back)), _) => {
                format!("the {} upstream is back", victim.as_str().to_uppercase())
            }
            (None, 0) => "the OLD generation serves alone".to_owned(),
            (None, 100) => "all that begins now goes to the NEW generation".to_owned(),
            (None, percent) => format!("{percent} % of what begins now goes to the NEW generation"),
        }
    }

    /// True while an upstream is dead.
    pub(super) fn is_outage(&self) -> bool {
        matches!(self.situation.victim, Some((_, Life::Dead(_))))
    }
}

/// A share from 0 to 1 in percent, with one decimal; a dash without one.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// A time in milliseconds, with as many decimals; a dash without one.
pub(super) fn milliseconds(time: Option<Duration>, decimals: usize) -> String {
    time.map_or_else(
        || "-".to_owned(),
        |time| format!("{:.decimals$}", time.as_secs_f64() * 1000.0),
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::demo::Percentiles;
    use crate::demo::script::Script;

    /// A picture from the middle of a fade, with a figure everywhere.
    pub(in crate::demo) fn example<'a>(
        history: &'a [Moment],
        outages: &'a [(Duration, Duration)],
    ) -> Scene<'a> {
        let script = Script::new(60);
        let elapsed = outages
            .first()
            .map_or(Duration::from_secs(20), |(from, _)| {
                *from + Duration::from_millis(700)
            });
        let times = |p50, p95, p99| {
            let [p50, p95, p99] =
                [p50, p95, p99].map(|ms: u64| Some(Duration::from_micros(ms * 1000 + 300)));
            Percentiles {
                p50,
                p95,
                p99,
                count: 100,
            }
        };
        Scene {
            address: ([127, 0, 0, 1], 8123).into(),
            streams: 48,
            page: Some("http://127.0.0.1:9090/"),
            elapsed,
            length: script.length,
            situation: script.situation(elapsed),
            sample: Sample {
                wanted: 0.5,
                observed: Some(0.4871),
                open: [27, 16],
                first_event: [times(211, 288, 297), times(209, 285, 301)],
                gap: [times(30, 39, 41), times(31, 38, 42)],
                outcomes: [[612, 1, 2, 3], [233, 4, 21, 5]],
                saves: 37,
                epoch: 12,
            },
            seen: Seen {
                completed: [631, 214],
                failed: 21,
                broken: 0,
                unreachable: 0,
            },
            history,
            outages,
        }
    }

    /// Moments as they would have been until `elapsed`.
    pub(in crate::demo) fn history(elapsed: Duration) -> Vec<Moment> {
        let script = Script::new(60);
        (0..elapsed.as_millis() / 100)
            .map(|tick| {
                let at = Duration::from_millis(u64::try_from(tick).unwrap() * 100);
                let percent = script.situation(at).percent;
                let new = i64::from(percent) * 44 / 100;
                Moment {
                    at,
                    observed: Some(f64::from(percent) / 100.0),
                    open: [44 - new, new],
                }
            })
            .collect()
    }

    #[test]
    fn the_caption_says_who_is_dead() {
        let outages: Vec<_> = Script::new(60).outages().collect();
        let scene = example(&[], &outages);
        assert!(scene.is_outage());
        assert_eq!(
            scene.caption(),
            "the NEW upstream was KILLED 0.7 s ago: its requests are saved"
        );
        let over = Scene {
            elapsed: scene.length,
            ..scene
        };
        assert!(over.caption().starts_with("over"));
    }
}
