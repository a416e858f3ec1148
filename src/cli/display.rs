//! The flags of commands that show a state: the interval and the format.

use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::parse::seconds;
use crate::app::commands::OutputFormat;

#[derive(Debug, Args)]
pub struct Display {
    /// Repeat until interrupted
    #[arg(short, long, env = "CROSSFADE_WATCH", value_parser = BoolishValueParser::new())]
    watch: bool,
    /// Time between two refreshes of the output
    #[arg(long, env = "CROSSFADE_INTERVAL", value_name = "DURATION", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// Output format
    #[arg(
        short,
        long,
        env = "CROSSFADE_OUTPUT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub(super) output: OutputFormat,
}

impl Display {
    /// The time between two updates of the output; none if it is printed once.
    #[must_use]
    pub fn every(&self) -> Option<Duration> {
        self.watch.then_some(self.interval)
    }
}
