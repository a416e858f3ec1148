//! Describes a verdict.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::{Metric, Report, Row, Verdict, Why};
use crate::printable::{counted, latency, percent, thousands};

impl Metric {
    /// Its name, for display.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Failures => "failed requests",
            Self::FirstTokenP50 => "first token, p50",
            Self::FirstTokenP95 => "first token, p95",
            Self::GapP99 => "gap between tokens, p99",
            Self::TimePerToken => "time per token, p50",
        }
    }

    /// Formats a figure of this metric.
    #[must_use]
    pub fn figure(self, value: f64) -> String {
        match self {
            Self::Failures => percent(value),
            _ => latency(value),
        }
    }
}

impl Row {
    /// By how much new's figure differs from old's: in percentage points, or in percent of old's.
    #[must_use]
    pub fn difference(&self) -> Option<String> {
        let [Some(old), Some(new)] = self.figures else {
            return None;
        };
        Some(match self.metric {
            Metric::Failures => {
                let points = (new - old) * 100.0;
                let digits = if points.abs() < 1.0 && points != 0.0 {
                    2
                } else {
                    1
                };
                format!("{points:+.digits$} points")
            }
            _ if old > 0.0 => format!("{:+.1} %", (new / old - 1.0) * 100.0),
            _ => return None,
        })
    }
}

impl Verdict {
    /// The name of a pass.
    pub const PASS: &'static str = "pass";
    /// The name of a fail.
    pub const FAIL: &'static str = "fail";
    /// All names.
    pub const NAMES: [&'static str; 3] = [Self::PASS, Self::FAIL, Self::INCONCLUSIVE];
    /// The name of no verdict.
    pub const INCONCLUSIVE: &'static str = "inconclusive";

    /// The name in JSON and on pages.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Pass => Self::PASS,
            Self::Fail(_) => Self::FAIL,
            Self::Inconclusive(_) => Self::INCONCLUSIVE,
        }
    }
}

impl Report {
    /// The verdict and its reason in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        match &self.verdict {
            Verdict::Pass => "New is within the margins.".to_owned(),
            Verdict::Fail(row) => format!("{}.", Comparison(row)),
            Verdict::Inconclusive(Why::NoTraffic) => {
                format!("No request began in {}.", length(self.covers))
            }
            Verdict::Inconclusive(Why::TooFew(side, has, needed)) => format!(
                "Not enough data: {side} began {} in {}; {} are needed.",
                counted(*has, "request"),
                length(self.covers),
                thousands(*needed)
            ),
            Verdict::Inconclusive(Why::InFlight(hung)) => format!(
                "{} of new's requests {} no result (in flight, or failed in a session and not answered by old), a larger part than of old's.",
                thousands(*hung),
                if *hung == 1 { "has" } else { "have" }
            ),
            Verdict::Inconclusive(Why::TooFewValues(metric, side, has, needed)) => {
                let values = match metric {
                    Metric::Failures => {
                        let were = if *has == 1 { "was" } else { "were" };
                        let requests = counted(*has, "request");
                        format!("{requests} of {side} {were} answered or failed")
                    }
                    metric => {
                        let values = counted(*has, "value");
                        format!("{side} has {values} of '{}'", metric.title())
                    }
                };
                let warmup = match (metric, *side) {
                    (Metric::Failures, _) | (_, "old") => "",
                    _ => ", without those of its warm-up",
                };
                let (covers, needed) = (length(self.covers), thousands(*needed));
                format!("Not enough data: {values} in {covers}{warmup}; {needed} are needed.")
            }
            Verdict::Inconclusive(Why::FewCompleted(completed, needed)) => format!(
                "Not enough data: new completed {} in {}; {} are needed.",
                counted(*completed, "request"),
                length(self.covers),
                thousands(*needed)
            ),
            Verdict::Inconclusive(Why::MostFail(class, row)) => {
                format!(
                    "{}, of the API class '{class}'; that is too many for a pass.",
                    Comparison(row)
                )
            }
            Verdict::Inconclusive(Why::Unclear(row)) => {
                format!("{}; that is not enough evidence yet.", Comparison(row))
            }
        }
    }
}

/// `new fails 2.1 % of requests, old 0.3 % (1,240 and 11,020 in 5 min)`.
struct Comparison<'a>(&'a Row);

impl Display for Comparison<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(row) = self;
        let [old, new] = row.figures.map(|figure| {
            figure.map_or_else(|| "unknown".to_owned(), |value| row.metric.figure(value))
        });
        let [of_old, of_new] = row.samples.map(thousands);
        match row.metric {
            Metric::Failures => write!(f, "New fails {new} of requests, old {old}")?,
            metric => write!(f, "New's {} is {new}, old's {old}", metric.title())?,
        }
        write!(f, " ({of_new} and {of_old} in {})", length(row.covers))
    }
}

/// `5 min`, or seconds below two minutes.
fn length(length: Duration) -> String {
    if length < Duration::from_secs(1) {
        return "under 1 s".to_owned();
    }
    let seconds = length.as_secs_f64().round() as u64;
    if seconds < 120 {
        return format!("{seconds} s");
    }
    format!("{} min", (seconds + 30) / 60)
}
