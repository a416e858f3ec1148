//! The arguments of `crossfade judge`.

use std::time::Duration;

use clap::Args;

use super::connection::Connection;
use super::parse::{confidence, count, increase, kubernetes_name, margin, seconds, window};
use crate::app::commands::{JudgeOptions, MarginChanges, OutputFormat};

#[derive(Debug, Args)]
pub struct JudgeArgs {
    /// The update [default: the only one in the namespace]
    #[arg(value_parser = kubernetes_name)]
    name: Option<String>,
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Compare for this long, starting now, or until new fails, instead of using the last five minutes
    #[arg(long = "for", env = "CROSSFADE_FOR", value_name = "DURATION", value_parser = seconds)]
    wait: Option<Duration>,
    /// Time between two comparisons
    #[arg(long, env = "CROSSFADE_INTERVAL", value_name = "DURATION", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// Period that the figures cover [default: analysis.windowSeconds of the update, else 5m]
    #[arg(long, env = "CROSSFADE_WINDOW", value_name = "DURATION", value_parser = window)]
    window: Option<Duration>,
    /// Number of requests that each generation must have received, and new must have completed, in that period for a pass
    /// [default: analysis.minSamples of the update, else 200]
    #[arg(long, env = "CROSSFADE_MIN_SAMPLES", value_name = "NUMBER", value_parser = count)]
    min_samples: Option<usize>,
    /// By how many percentage points new's share of failed requests may exceed old's
    /// [default: analysis.maxFailureRateIncreasePercent of the update, else 0.5]
    #[arg(long, env = "CROSSFADE_MAX_FAILURE_RATE_INCREASE", value_name = "POINTS", value_parser = increase)]
    max_failure_rate_increase: Option<f64>,
    /// Maximum time to the first token of new, as a multiple of old's [default: analysis.ttftP95Ratio of the update, else 1.25]
    #[arg(long, env = "CROSSFADE_TTFT_RATIO", value_name = "RATIO", value_parser = margin)]
    ttft_ratio: Option<f64>,
    /// Maximum gap between tokens and time per token of new, as a multiple of old's [default: analysis.gapP99Ratio of the update,
    /// else 1.25]
    #[arg(long, env = "CROSSFADE_GAP_RATIO", value_name = "RATIO", value_parser = margin)]
    gap_ratio: Option<f64>,
    /// One minus the probability of ever failing a new generation that stays within the margins [default: analysis.confidence
    /// of the update, else 0.99]
    #[arg(long, env = "CROSSFADE_CONFIDENCE", value_name = "SHARE", value_parser = confidence)]
    confidence: Option<f64>,
    /// Output format
    #[arg(
        short,
        long,
        env = "CROSSFADE_OUTPUT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    output: OutputFormat,
}

impl JudgeArgs {
    /// The options.
    #[must_use]
    pub fn options(self) -> JudgeOptions {
        let (proxies, cluster) = self.connection.parts();
        JudgeOptions {
            name: self.name,
            proxies,
            cluster,
            wait: self.wait,
            every: self.interval,
            form: self.output,
            margins: MarginChanges {
                window: self.window,
                min_samples: self.min_samples.map(|count| count as u64),
                max_failure_rate_increase: self.max_failure_rate_increase,
                ttft_ratio: self.ttft_ratio,
                gap_ratio: self.gap_ratio,
                confidence: self.confidence,
            },
        }
    }
}
