//! `judge`: compares new with old, once or for some time, and reports the verdict in its exit status.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Error, OutputFormat, as_json, print};
use crate::analysis::{Margins, Verdict};
use crate::error_chain::error_chain;
use crate::files::explain;
use crate::resource::DynamoUpdateConfig;
use crate::status::{
    self, AnalysisReport, Cluster, ClusterOptions, CommandAnalysis, ComparisonAnswer, ProxyClients,
};

/// The exit status if new is worse. Usage errors have 2.
const FAIL: u8 = 1;
/// The exit status if there is no verdict, for any reason.
const INCONCLUSIVE: u8 = 3;

/// The options of `judge`.
#[derive(Clone, Debug)]
pub struct JudgeOptions {
    /// The update. Without a name, the only one of the namespace.
    pub name: Option<String>,
    /// Asks these admin ports instead of a cluster.
    pub proxies: Vec<String>,
    pub cluster: ClusterOptions,
    /// Compares for this long from now on, instead of using the last minutes.
    pub wait: Option<Duration>,
    /// The time between two looks.
    pub every: Duration,
    pub form: OutputFormat,
    /// Changes the update's margins, or the defaults.
    pub margins: MarginChanges,
}

/// Margins that were given by flags.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MarginChanges {
    pub window: Option<Duration>,
    pub min_samples: Option<u64>,
    /// In percentage points.
    pub max_failure_rate_increase: Option<f64>,
    pub ttft_ratio: Option<f64>,
    pub gap_ratio: Option<f64>,
    pub confidence: Option<f64>,
}

impl MarginChanges {
    fn of(self, margins: Margins) -> Margins {
        let increase = self.max_failure_rate_increase;
        Margins {
            window: self.window.unwrap_or(margins.window),
            min_samples: self.min_samples.unwrap_or(margins.min_samples),
            max_failure_rate_increase: increase
                .map_or(margins.max_failure_rate_increase, |percent| percent / 100.0),
            ttft_ratio: self.ttft_ratio.unwrap_or(margins.ttft_ratio),
            gap_ratio: self.gap_ratio.unwrap_or(margins.gap_ratio),
            confidence: self.confidence.unwrap_or(margins.confidence),
        }
    }
}

/// Where the counts come from.
enum Source {
    Proxies(ProxyClients),
    Cluster(Cluster, Box<DynamoUpdateConfig>),
}

impl Source {
    async fn open(options: &JudgeOptions) -> Result<Self, status::Error> {
        if !options.proxies.is_empty() {
            return Ok(Self::Proxies(ProxyClients::at(options.proxies.clone())));
        }
        let cluster = Cluster::open(&options.cluster).await?;
        let update = match &options.name {
            Some(name) => cluster.update(name).await?,
            None => cluster.only_update().await?,
        };
        Ok(Self::Cluster(cluster, update.into()))
    }

    /// The margins of the update, or else of the plans that the proxies have, with the changes by flags.
    fn margins(
        &self,
        changes: MarginChanges,
        answers: &[ComparisonAnswer],
    ) -> Result<Margins, status::Error> {
        let mut margins = match self {
            Self::Cluster(_, update) => {
                let analysis = update.spec.analysis.as_ref();
                let margins = analysis.map_or_else(Margins::default, |analysis| analysis.margins());
                return Ok(changes.of(margins));
            }
            Self::Proxies(_) => status::margins(answers).into_iter(),
        };
        let Some((first, of_first)) = margins.next() else {
            return Ok(changes.of(Margins::default()));
        };
        let of_first = changes.of(of_first);
        match margins.find(|(_, others)| changes.of(*others) != of_first) {
            None => Ok(of_first),
            Some((other, _)) => Err(status::Error::DifferentMargins {
                one: first.to_owned(),
                other: other.to_owned(),
            }),
        }
    }

    /// Why the controller has rolled new back, if it has.
    fn rolled_back(&self) -> Option<&str> {
        let Self::Cluster(_, update) = self else {
            return None;
        };
        let analysis = update.status.as_ref()?.analysis.as_ref()?;
        analysis.rolled_back.then_some(&*analysis.message)
    }

    /// Why the controller has failed new by the margins of the update, if it has, and if no other margins are requested.
    fn failed(&self, changes: MarginChanges) -> Option<&str> {
        let Self::Cluster(_, update) = self else {
            return None;
        };
        let analysis = update.status.as_ref()?.analysis.as_ref()?;
        let is_failed = analysis.failed_at.is_some() && changes == MarginChanges::default();
        is_failed.then_some(&*analysis.message)
    }

    /// Adds the controller's verdict.
    fn complete(&self, analysed: AnalysisReport, changes: MarginChanges) -> AnalysisReport {
        let analysed = analysed.or_rolled_back(self.rolled_back());
        analysed.or_failed(self.failed(changes))
    }

    async fn compare(&mut self, with_past: bool) -> Result<Vec<ComparisonAnswer>, status::Error> {
        match self {
            Self::Proxies(proxies) => Ok(proxies.compare(with_past).await),
            Self::Cluster(cluster, update) => cluster.compare(update, with_past).await,
        }
    }
}

/// Compares new with old and prints the verdict. The exit status is 0 for a pass, 1 if new fails, and 3 if there is no verdict.
///
/// # Errors
/// When the process cannot start. If something cannot be read, there is no verdict.
pub fn judge(options: &JudgeOptions) -> Result<ExitCode, Error> {
    super::super::runtime()?.block_on(async {
        let analysed = match analysed(options).await {
            Ok(analysed) => analysed,
            Err(error) => {
                let why = error_chain(&Error::with_proxy_flag(error));
                explain(format_args!("crossfade: {}", status::printable(&why)));
                if options.form != OutputFormat::Text {
                    let _ = print(&structured(options.form, &status::no_report(&why)));
                }
                return Ok(ExitCode::from(INCONCLUSIVE));
            }
        };
        let text = match options.form {
            OutputFormat::Text => analysed.text(),
            form => structured(form, &analysed.json()),
        };
        if let Err(error) = print(&text) {
            // The exit status of an error would mean that new fails.
            explain(format_args!("crossfade: {}", error_chain(&error)));
            return Ok(ExitCode::from(INCONCLUSIVE));
        }
        Ok(match analysed.verdict() {
            Verdict::PASS => ExitCode::SUCCESS,
            Verdict::FAIL => ExitCode::from(FAIL),
            _ => ExitCode::from(INCONCLUSIVE),
        })
    })
}

/// For scripts.
fn structured(form: OutputFormat, analysed: &Value) -> String {
    match form {
        OutputFormat::Yaml => format!("---\n{}", status::yaml(analysed)),
        OutputFormat::Text | OutputFormat::Json => as_json(analysed, false),
    }
}

async fn analysed(options: &JudgeOptions) -> Result<AnalysisReport, status::Error> {
    let mut source = Source::open(options).await?;
    let Some(wait) = options.wait else {
        let answers = source.compare(true).await?;
        let margins = source.margins(options.margins, &answers)?;
        let analysed = CommandAnalysis::new(margins).past(&answers);
        return Ok(source.complete(analysed, options.margins));
    };
    let begin = Instant::now();
    let mut begun = None;
    loop {
        let answers = source.compare(false).await;
        let elapsed = begin.elapsed();
        let left = wait.saturating_sub(elapsed);
        let has_begun = begun.is_some();
        let analysed = match answers {
            Ok(answers) => {
                let mut analysis = match begun.take() {
                    Some(analysis) => analysis,
                    None => CommandAnalysis::new(source.margins(options.margins, &answers)?),
                };
                let analysed = analysis.observe(&answers, elapsed);
                let analysed = source.complete(analysed, options.margins);
                // Until a proxy has responded, its margins are unknown.
                begun = (has_begun || analysed.has_data()).then_some(analysis);
                Some(analysed)
            }
            // The API server may become reachable again.
            Err(error) if left.is_zero() => return Err(error),
            Err(_) => None,
        };
        if let Some(analysed) = analysed {
            let is_over = left.is_zero() || analysed.verdict() == Verdict::FAIL;
            if is_over {
                return Ok(analysed);
            }
        }
        tokio::time::sleep(options.every.min(left)).await;
    }
}
