//! `crossfade version`: the version of this program and of its interfaces.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::inject;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crossfade version
  crossfade version -o json")]
pub struct VersionArgs {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: VersionFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum VersionFormat {
    Text,
    Json,
    Yaml,
}

impl VersionArgs {
    /// Prints it.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let version = env!("CARGO_PKG_VERSION");
        let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
        let value = json!({
            "version": version,
            "platform": platform,
            "resource": "nvidia.com/v1alpha1",
            "state": "crossfade.v1",
        });
        let text = match self.output {
            VersionFormat::Text => format!("crossfade {version} ({platform})\n"),
            VersionFormat::Json => format!("{value:#}\n"),
            VersionFormat::Yaml => inject::yaml(&value),
        };
        super::print_all(text.as_bytes())
    }
}
