//! The arguments of the demo, as a subcommand and as a separate program.

use clap::Args;
use clap::builder::BoolishValueParser;

use super::Options;
use crate::duration::whole_seconds;

fn length(text: &str) -> Result<u64, String> {
    whole_seconds(text, 5..=3600)
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Length of the demo
    #[arg(long, env = "CROSSFADE_SECONDS", default_value_t = 60, value_name = "DURATION", value_parser = length)]
    seconds: u64,
    /// Number of concurrent streams
    #[arg(long, env = "CROSSFADE_STREAMS", default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..=2000))]
    streams: u16,
    /// Print plain lines even on a terminal
    #[arg(long, env = "CROSSFADE_PLAIN", value_parser = BoolishValueParser::new())]
    plain: bool,
    /// End broken streams with an error, instead of continuing them on the other generation
    #[arg(long, env = "CROSSFADE_NO_CONTINUATION", value_parser = BoolishValueParser::new())]
    no_continuation: bool,
}

impl DemoArgs {
    #[must_use]
    pub fn options(&self) -> Options {
        Options {
            seconds: self.seconds,
            plain: self.plain,
            streams: usize::from(self.streams),
            continuation: !self.no_continuation,
        }
    }
}
