//! The arguments of the verbs that change an update, and what the command line tells of itself: completions and manual.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches};
use clap_complete::Shell;
use clap_mangen::Man;

use super::Cli;
use super::status::ClusterChoice;
use crate::status::Choice;

/// The name by which kubectl finds this program as its plugin.
const PLUGIN: &str = "kubectl-crossfade";

#[derive(Debug, Args)]
pub struct EditArgs {
    /// The update
    pub name: String,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// Do not ask before changing it
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    #[command(flatten)]
    pub edit: EditArgs,
    /// Share of requests that goes to new, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub split: u8,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for each subcommand here, instead of printing the first page
    pub directory: Option<PathBuf>,
}

impl Cli {
    /// The command line of this process. As `kubectl-crossfade` it calls itself what the user typed.
    #[must_use]
    pub fn of_this_process() -> Self {
        let mut command = Self::command();
        let name = std::env::args_os().next();
        let name = name.as_deref().map(Path::new).and_then(Path::file_stem);
        if name == Some(OsStr::new(PLUGIN)) {
            command = command.bin_name("kubectl crossfade");
        }
        let matches = command.get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

impl EditArgs {
    /// Which cluster and namespace is meant.
    #[must_use]
    pub fn choice(&self) -> Choice {
        self.cluster.choice()
    }
}

impl CompletionsArgs {
    /// Prints them.
    #[must_use]
    pub fn print(&self) -> ExitCode {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "crossfade", &mut text);
        // A reader that has gone is no error.
        let _ = io::stdout().write_all(&text);
        ExitCode::SUCCESS
    }
}

impl ManArgs {
    /// Prints the first page, or writes all.
    ///
    /// # Errors
    /// When the pages cannot be written.
    pub fn write(&self) -> io::Result<ExitCode> {
        if let Some(directory) = &self.directory {
            std::fs::create_dir_all(directory)?;
            clap_mangen::generate_to(Cli::command(), directory)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut page = Vec::new();
        Man::new(Cli::command()).render(&mut page)?;
        let _ = io::stdout().write_all(&page);
        Ok(ExitCode::SUCCESS)
    }
}
