//! Describes a verdict.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::{Metric, NoVerdict, Report, Row, Verdict};
use crate::printable::{latency, needed, only, percent, thousands};

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

    /// Its name in a sentence.
    const fn in_prose(self) -> &'static str {
        match self {
            Self::Failures => "failure rate",
            Self::FirstTokenP50 => "time to first token (p50)",
            Self::FirstTokenP95 => "time to first token (p95)",
            Self::GapP99 => "gap between tokens (p99)",
            Self::TimePerToken => "time per token (p50)",
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
            _ if old > 0.0 => format!("{:+.1}%", (new / old - 1.0) * 100.0),
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
            Verdict::Fail(row) => format!("{}.", Comparison::of(row)),
            Verdict::Inconclusive(NoVerdict::NoTraffic) => {
                format!("No requests were received in {}.", length(self.covers))
            }
            Verdict::Inconclusive(NoVerdict::TooFew(generation, has, required)) => format!(
                "Not enough data: {generation} received {} in {}; {}.",
                only(*has, "request"),
                length(self.covers),
                needed(*required)
            ),
            Verdict::Inconclusive(NoVerdict::InFlight(hung)) => format!(
                "{} of new's requests {} no result yet (still in flight, or failed in a session and not answered by old); \
                 this is a larger share than of old's requests.",
                thousands(*hung),
                if *hung == 1 { "has" } else { "have" }
            ),
            Verdict::Inconclusive(NoVerdict::TooFewValues(metric, generation, has, required)) => {
                let values = match metric {
                    Metric::Failures => {
                        let requests = only(*has, "request");
                        format!("{generation} answered or failed {requests}")
                    }
                    metric => {
                        let values = only(*has, "value");
                        format!("{generation} has {values} for the {}", metric.in_prose())
                    }
                };
                let warmup = match (metric, *generation) {
                    (Metric::Failures, _) | (_, "old") => "",
                    _ => ", not counting those of its warm-up",
                };
                let (covers, needed) = (length(self.covers), needed(*required));
                format!("Not enough data: {values} in {covers}{warmup}; {needed}.")
            }
            Verdict::Inconclusive(NoVerdict::FewCompleted(completed, required)) => format!(
                "Not enough data: new completed {} in {}; {}.",
                only(*completed, "request"),
                length(self.covers),
                needed(*required)
            ),
            Verdict::Inconclusive(NoVerdict::MostFail(class, row)) => {
                let class = Some(&**class);
                let comparison = Comparison { row, class };
                format!("{comparison}; that is too many for a pass.")
            }
            Verdict::Inconclusive(NoVerdict::Unclear(row)) => {
                format!("{}; that is not enough evidence yet.", Comparison::of(row))
            }
        }
    }
}

/// `New fails 2.1% of its requests, and old fails 0.30% (1,240 and 11,020 requests in 5 min)`.
struct Comparison<'a> {
    row: &'a Row,
    /// The API class that the figures are of, if not of all requests.
    class: Option<&'a str>,
}

impl<'a> Comparison<'a> {
    const fn of(row: &'a Row) -> Self {
        Self { row, class: None }
    }
}

impl Display for Comparison<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { row, class } = self;
        let [old, new] = row.figures.map(|figure| {
            figure.map_or_else(|| "unknown".to_owned(), |value| row.metric.figure(value))
        });
        match row.metric {
            Metric::Failures => write!(f, "New fails {new} of its requests, and old fails {old}")?,
            metric => write!(
                f,
                "New's {} is {new}, and old's is {old}",
                metric.in_prose()
            )?,
        }
        let [of_old, of_new] = row.samples.map(thousands);
        write!(f, " ({of_new} and {of_old} requests")?;
        if let Some(class) = class {
            write!(f, " of the API class '{class}'")?;
        }
        write!(f, " in {})", length(row.covers))
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
