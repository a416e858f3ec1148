//! The data of one frame of the demo, and the wording that all outputs share. Pure.

use std::net::SocketAddr;
use std::time::Duration;

use super::Sample;
use super::load::{Counts, Ending};
use super::script::{ScriptState, ServerState};
use crate::printable;
use crate::split::Generation;

/// The clients' observations so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientTotals {
    /// Complete responses, by the generation of the text.
    pub(super) completed: [u64; 2],
    /// Ended with an error that the client got.
    pub(super) failed: u64,
    /// Cut without an error.
    pub(super) broken: u64,
    /// Never answered.
    pub(super) unreachable: u64,
}

impl From<&Counts> for ClientTotals {
    fn from(counts: &Counts) -> Self {
        Self {
            completed: Generation::ALL
                .map(|generation| counts.count(Some(generation), Ending::Completed)),
            failed: counts.total(Ending::Failed),
            broken: counts.total(Ending::Broken),
            unreachable: counts.total(Ending::Unreachable),
        }
    }
}

/// One point of the history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HistoryPoint {
    /// Time since the start.
    pub(super) at: Duration,
    /// Share of the new generation that the proxy observed, 0 to 1.
    pub(super) observed: Option<f64>,
    /// Streams open on each generation.
    pub(super) open: [i64; 2],
}

impl HistoryPoint {
    /// Share of the new generation among the open streams, 0 to 1.
    pub(super) fn open_share(&self) -> Option<f64> {
        let [old, new] = self.open.map(share);
        (old + new > 0.0).then(|| new / (old + new))
    }
}

fn share(count: i64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(0))
}

/// The data of one frame.
#[derive(Clone, Debug)]
pub(super) struct DemoFrame<'a> {
    /// Address of the proxy.
    pub(super) address: SocketAddr,
    /// Number of clients.
    pub(super) streams: usize,
    /// URL of the proxy's live page, if any.
    pub(super) page: Option<&'a str>,
    /// Time since the start.
    pub(super) elapsed: Duration,
    /// Length of the script.
    pub(super) length: Duration,
    /// State of the script.
    pub(super) state: ScriptState,
    /// The proxy's figures.
    pub(super) sample: Sample,
    /// The clients' figures.
    pub(super) clients: ClientTotals,
    /// The history so far, in order.
    pub(super) history: &'a [HistoryPoint],
    /// The outages that have started.
    pub(super) outages: &'a [(Duration, Duration)],
}

impl DemoFrame<'_> {
    /// Whether the script is over, so that only open streams are left.
    pub(super) fn is_over(&self) -> bool {
        self.elapsed >= self.length
    }

    /// What happens now, in one line.
    pub(super) fn caption(&self) -> String {
        if self.is_over() {
            return "done: waiting for the last streams".to_owned();
        }
        let ScriptState { percent, killed } = self.state;
        match (killed, percent) {
            (Some((killed, ServerState::Down(since))), _) => {
                let generation = killed.as_str().to_uppercase();
                format!(
                    "the {generation} upstream was KILLED {:.1} s ago; its requests fail over",
                    since.as_secs_f64()
                )
            }
            (Some((killed, ServerState::Restarted)), _) => {
                format!("the {} upstream is back", killed.as_str().to_uppercase())
            }
            (None, 0) => "all requests go to the OLD generation".to_owned(),
            (None, 100) => "all new requests go to the NEW generation".to_owned(),
            (None, percent) => format!("{percent}% of new requests go to the NEW generation"),
        }
    }

    /// Whether an upstream is down.
    pub(super) fn is_outage(&self) -> bool {
        matches!(self.state.killed, Some((_, ServerState::Down(_))))
    }
}

/// A share from 0 to 1 in percent; a dash without a value.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), printable::percent)
}

/// A time in milliseconds, with this number of decimals; a dash without a value.
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

    /// A frame from the middle of a rollout, with data everywhere.
    pub(in crate::demo) fn example<'a>(
        history: &'a [HistoryPoint],
        outages: &'a [(Duration, Duration)],
    ) -> DemoFrame<'a> {
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
        DemoFrame {
            address: ([127, 0, 0, 1], 8123).into(),
            streams: 48,
            page: Some("http://127.0.0.1:9090/"),
            elapsed,
            length: script.length,
            state: script.state(elapsed),
            sample: Sample {
                wanted: 0.5,
                observed: Some(0.4871),
                open: [27, 16],
                first_event: [times(211, 288, 297), times(209, 285, 301)],
                gap: [times(30, 39, 41), times(31, 38, 42)],
                outcomes: [[612, 1, 2, 3], [233, 4, 21, 5]],
                recovered: 37,
                continued: 9,
                epoch: 12,
            },
            clients: ClientTotals {
                completed: [631, 214],
                failed: 21,
                broken: 0,
                unreachable: 0,
            },
            history,
            outages,
        }
    }

    /// The history until `elapsed`.
    pub(in crate::demo) fn history(elapsed: Duration) -> Vec<HistoryPoint> {
        let script = Script::new(60);
        (0..elapsed.as_millis() / 100)
            .map(|tick| {
                let at = Duration::from_millis(u64::try_from(tick).unwrap() * 100);
                let percent = script.state(at).percent;
                let new = i64::from(percent) * 44 / 100;
                HistoryPoint {
                    at,
                    observed: Some(f64::from(percent) / 100.0),
                    open: [44 - new, new],
                }
            })
            .collect()
    }

    #[test]
    fn the_caption_names_the_server_that_is_down() {
        let outages: Vec<_> = Script::new(60).outages().collect();
        let demo_frame = example(&[], &outages);
        assert!(demo_frame.is_outage());
        assert_eq!(
            demo_frame.caption(),
            "the NEW upstream was KILLED 0.7 s ago; its requests fail over"
        );
        let over = DemoFrame {
            elapsed: demo_frame.length,
            ..demo_frame
        };
        assert!(over.caption().starts_with("done"));
    }
}
