//! The result of a comparison: its verdict, and its renderings as text and JSON.

use serde_json::{Value, json};

use crate::analysis::{Report, Row, Verdict};
use crate::status::printable;
use crate::status::proxies::counted;

/// The result, for display and for scripts.
#[derive(Clone, Debug)]
pub struct AnalysisReport {
    pub report: Report,
    /// Requests, or values of a latency, that each generation must have.
    pub(super) needed: u64,
    /// The number of queried processes, and a remark on those that reported nothing.
    pub(super) queried: usize,
    pub(super) silent: Vec<String>,
    /// Not all processes send requests to the same new generation.
    pub(super) differ: bool,
    /// What each process does, if their plans differ otherwise.
    pub(super) disagree: Vec<String>,
    /// Why new has failed, if all requests go to old because of that: in this case, new gets few requests.
    pub(super) rolled_back: Option<String>,
    /// Why new has failed by the analysis of a proxy or a controller, which has observed more than this comparison.
    pub(super) failed: Option<String>,
}

impl AnalysisReport {
    /// The same, if the controller of an update has failed new for this reason and sends all requests to old.
    #[must_use]
    pub fn or_rolled_back(mut self, why: Option<&str>) -> Self {
        self.rolled_back = self.rolled_back.or_else(|| why.map(str::to_owned));
        self
    }

    /// The same, if the controller of an update has failed new for this reason.
    #[must_use]
    pub fn or_failed(mut self, why: Option<&str>) -> Self {
        self.failed = self.failed.or_else(|| why.map(str::to_owned));
        self
    }

    /// Whether any proxy reported counts.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.silent.len() < self.queried
    }

    /// The name of the verdict. There is no pass without a report from every proxy, because a missing one may have seen failures
    /// of new. Counts of different new generations, or of different splits, are not evidence against either.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match &self.report.verdict {
            _ if self.rolled_back.is_some() => Verdict::FAIL,
            _ if !self.disagree.is_empty() => Verdict::INCONCLUSIVE,
            _ if self.differ => Verdict::INCONCLUSIVE,
            _ if self.failed.is_some() => Verdict::FAIL,
            Verdict::Pass if !self.silent.is_empty() => Verdict::INCONCLUSIVE,
            verdict => verdict.as_str(),
        }
    }

    /// Whether new has failed by what this comparison has observed.
    fn has_failed(&self) -> bool {
        matches!(self.report.verdict, Verdict::Fail(_))
    }

    fn sentence(&self) -> String {
        if let Some(why) = &self.rolled_back {
            return format!("New has failed and was rolled back: {why}");
        }
        if !self.has_data() {
            return match &self.failed {
                Some(why) => format!("New has failed: {why}"),
                None => "No proxy could be queried.".to_owned(),
            };
        }
        if !self.disagree.is_empty() {
            let plans = self.disagree.join("; ");
            return format!("The proxies have different plans: {plans}.");
        }
        if self.differ {
            return "The proxies do not have the same new generation.".to_owned();
        }
        if let (Some(why), false) = (&self.failed, self.has_failed()) {
            return format!("New has failed: {why}");
        }
        if self.verdict() != self.report.verdict.as_str() {
            let silent = counted(self.silent.len(), self.queried);
            return format!("{silent} cannot be compared.");
        }
        self.report.sentence()
    }

    fn row_verdict(&self, row: &Row) -> &'static str {
        match &self.report.verdict {
            Verdict::Fail(failed) if failed.metric == row.metric => "fail",
            _ if row.figures.contains(&None) => "no data",
            _ if row.is_worse() => "worse",
            _ if row.samples.iter().any(|count| *count < self.needed) => "too little data",
            _ => "ok",
        }
    }

    /// The rows to show: of the failed metric, those by which it failed.
    fn rows(&self) -> impl Iterator<Item = &Row> {
        let failed = match &self.report.verdict {
            Verdict::Fail(failed) => Some(failed),
            _ => None,
        };
        let rows = self.report.rows.iter();
        rows.map(move |row| {
            failed
                .filter(|failed| failed.metric == row.metric)
                .unwrap_or(row)
        })
    }

    /// Renders the verdict and the figures.
    #[must_use]
    pub fn text(&self) -> String {
        // The sentence contains text from proxies and from the cluster.
        let sentence = printable(&self.sentence());
        let mut text = format!("{}: {sentence}\n\n", self.verdict());
        if self.has_data() {
            text += &self.table();
            text += "\n";
        }
        let reported = self.queried - self.silent.len();
        text += &format!("{}\n", counted(reported, self.queried));
        for silent in &self.silent {
            text += &format!("  {}\n", printable(silent));
        }
        text
    }

    fn table(&self) -> String {
        let mut text = line(["", "old", "new", "difference", "confidence", "verdict"]);
        for row in self.rows() {
            let [old, new] = row.figures;
            let figure = |figure: Option<f64>| {
                figure.map_or_else(|| "-".to_owned(), |value| row.metric.figure(value))
            };
            let difference = row.difference().unwrap_or_else(|| "-".to_owned());
            text += &line([
                row.metric.title(),
                &figure(old),
                &figure(new),
                &difference,
                &format!("{:.1}%", floor(row.confidence)),
                self.row_verdict(row),
            ]);
        }
        text
    }

    /// The same for scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let rows = self.rows().map(|row| {
            let [old, new] = row.figures;
            let [of_old, of_new] = row.samples;
            json!({
                "metric": row.metric.as_str(),
                "old": old,
                "new": new,
                "limit": row.limit,
                "confidence": row.confidence,
                "samples": {"old": of_old, "new": of_new},
                "verdict": self.row_verdict(row),
            })
        });
        json!({
            "verdict": self.verdict(),
            "text": self.sentence(),
            "coversSeconds": self.report.covers.as_secs_f64(),
            "metrics": rows.collect::<Vec<_>>(),
            "proxies": {"asked": self.queried, "silent": self.silent},
        })
    }
}

/// The result for scripts if no proxy could be asked, with the reason.
#[must_use]
pub fn no_report(why: &str) -> Value {
    json!({
        "verdict": Verdict::INCONCLUSIVE,
        "text": why,
        "coversSeconds": 0.0,
        "metrics": [],
        "proxies": {"asked": 0, "silent": []},
    })
}

/// In percent, so that less than certainty is never shown as certainty.
fn floor(confidence: f64) -> f64 {
    (confidence * 1000.0).floor() / 10.0
}

fn line([metric, old, new, difference, confidence, verdict]: [&str; 6]) -> String {
    format!("{metric:<23} {old:>9} {new:>9} {difference:>12} {confidence:>11}  {verdict}\n")
}
