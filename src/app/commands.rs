//! The commands for updates: `status` shows an update, once or repeatedly; the others edit it after a confirmation.

mod frame;
mod rollout;
mod verdict;

use std::io::{self, BufRead, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use self::frame::Frame;
pub use self::rollout::{RolloutOptions, edit_rollout, rollout, rollout_history};
pub use self::verdict::{JudgeOptions, MarginChanges, judge};
use crate::error_chain::error_chain;
use crate::files;
use crate::printable::{self, printable};
use crate::resource::{DynamoRollout, DynamoUpdateConfig};
use crate::status::{self, Change, Cluster, ClusterOptions, ProxyClients, StatusReport, Verb};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Status(#[from] status::Error),
    #[error("cannot write")]
    Output(#[source] io::Error),
    /// There is no cluster, and proxies can be asked without one.
    #[error("{}; to query proxies without a cluster, use --proxy HOST:PORT", error_chain(.0))]
    NoCluster(status::Error),
    #[error("cannot start")]
    Start(#[from] super::Error),
    #[error("no changes were made: confirmation needs a terminal; use --yes")]
    NoTerminal,
    #[error("no changes were made: cannot read the confirmation")]
    Confirmation(#[source] io::Error),
}

impl Error {
    /// The error of a command that also has `--proxy`.
    fn with_proxy_flag(error: status::Error) -> Self {
        match error {
            status::Error::Config(_) => Self::NoCluster(error),
            error => Self::Status(error),
        }
    }
}

/// The output format of `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    Text,
    Json,
    Yaml,
}

/// The options of `status`.
#[derive(Clone, Debug)]
pub struct StatusOptions {
    /// The update. Without a name, the only one of the namespace.
    pub name: Option<String>,
    /// Asks these admin ports instead of a cluster.
    pub proxies: Vec<String>,
    pub cluster: ClusterOptions,
    /// Repeats at this interval.
    pub every: Option<Duration>,
    pub form: OutputFormat,
}

/// The input to read.
enum Source {
    Proxies(ProxyClients),
    /// The update of this name; without a name, all of them.
    Cluster(Cluster, Option<String>),
    /// The rollout of this name; without a name, all of them.
    Rollouts(Cluster, Option<String>),
}

/// The input that was read.
enum View {
    One(Box<StatusReport>),
    Several(Vec<DynamoUpdateConfig>),
    Rollout(Box<DynamoRollout>),
    Rollouts(Vec<DynamoRollout>),
}

impl Source {
    async fn view(&mut self) -> Result<View, status::Error> {
        let report = match self {
            Self::Rollouts(cluster, name) => return rollout::view(cluster, name.as_deref()).await,
            Self::Proxies(proxies) => proxies.report().await,
            Self::Cluster(cluster, Some(name)) => cluster.report(name).await?,
            Self::Cluster(cluster, None) => {
                let mut updates = cluster.updates().await?;
                match updates.pop() {
                    None => return Err(status::Error::NoUpdate(cluster.namespace().to_owned())),
                    Some(only) if updates.is_empty() => cluster.report_on(only).await,
                    Some(last) => {
                        updates.push(last);
                        return Ok(View::Several(updates));
                    }
                }
            }
        };
        Ok(View::One(report.into()))
    }
}

impl View {
    /// Whether there was anything to show.
    fn has_data(&self) -> bool {
        match self {
            Self::One(report) => report.update.is_some() || report.states().next().is_some(),
            Self::Several(_) | Self::Rollout(_) | Self::Rollouts(_) => true,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::One(report) => status::text(report),
            Self::Several(updates) => status::list(updates),
            Self::Rollout(rollout) => status::rollout_text(rollout, Timestamp::now()),
            Self::Rollouts(rollouts) => status::rollout_list(rollouts),
        }
    }

    fn printed(&self, form: OutputFormat, one_of_many: bool) -> String {
        let json = || match self {
            Self::One(report) => status::json(report),
            Self::Several(updates) => status::json_list(updates),
            Self::Rollout(rollout) => status::rollout_json(rollout),
            Self::Rollouts(rollouts) => status::rollouts_json(rollouts),
        };
        match form {
            OutputFormat::Text if one_of_many => self.text() + "\n",
            OutputFormat::Text => self.text(),
            OutputFormat::Json => as_json(&json(), one_of_many),
            OutputFormat::Yaml => format!("---\n{}", status::yaml(&json())),
        }
    }
}

/// On one line if there are several, as readers of a JSON stream expect.
fn as_json(value: &Value, one_of_many: bool) -> String {
    let mut text = Vec::new();
    let written = match one_of_many {
        true => printable::write_json(&mut text, value),
        false => printable::write_json_pretty(&mut text, value),
    };
    written.expect("writing to a Vec does not fail");
    text.push(b'\n');
    String::from_utf8(text).expect("JSON is UTF-8")
}

/// Shows an update. Fails if there is nothing to show.
///
/// # Errors
/// When the cluster cannot be read. With `--watch`, this is not an error, because the cluster may become reachable again.
pub fn status(options: StatusOptions) -> Result<ExitCode, Error> {
    super::runtime()?.block_on(async {
        let source = if options.proxies.is_empty() {
            let cluster = Cluster::open(&options.cluster).await;
            Source::Cluster(cluster.map_err(Error::with_proxy_flag)?, options.name)
        } else {
            Source::Proxies(ProxyClients::at(options.proxies))
        };
        show(source, options.every, options.form).await
    })
}

/// Shows what is read, once or repeatedly.
async fn show(
    mut source: Source,
    every: Option<Duration>,
    form: OutputFormat,
) -> Result<ExitCode, Error> {
    if let Some(pause) = every {
        watch(source, pause, form).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let view = source.view().await?;
    let text = view.printed(form, false);
    print(&match form == OutputFormat::Text && is_coloured() {
        true => status::coloured(&text),
        false => text,
    })?;
    Ok(ExitCode::from(u8::from(!view.has_data())))
}

/// Reports repeatedly, until the output has no reader.
async fn watch(mut source: Source, pause: Duration, form: OutputFormat) -> Result<(), Error> {
    let drawn = form == OutputFormat::Text && io::stdout().is_terminal();
    let mut frame = Frame::default();
    loop {
        let seen = source.view().await;
        let now = Timestamp::now().strftime("%H:%M:%SZ").to_string();
        let text = match (seen, drawn) {
            (Ok(view), false) => view.printed(form, true),
            (Err(error), false) => {
                let why = status::printable(&error_chain(&error));
                files::explain(format_args!("crossfade: {why}"));
                String::new()
            }
            (Ok(view), true) => {
                frame.report(now, view.text());
                frame.draw(size())
            }
            (Err(error), true) => {
                frame.failed(now, status::printable(&error_chain(&error)));
                frame.draw(size())
            }
        };
        let text = match drawn && is_coloured() {
            true => status::coloured(&text),
            false => text,
        };
        if !print(&text)? {
            return Ok(());
        }
        tokio::time::sleep(pause).await;
    }
}

/// Whether the output should be coloured (no-color.org).
fn is_coloured() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Columns and rows of the terminal, if known.
fn size() -> Option<(u16, u16)> {
    let size = crossterm::terminal::size().ok()?;
    (size.0 > 0 && size.1 > 0).then_some(size)
}

/// Writes to standard output. Returns false once it has no reader.
fn print(text: &str) -> Result<bool, Error> {
    files::print(text.as_bytes()).map_err(Error::Output)
}

/// Shows what a verb changes in an update, asks for confirmation, and makes the changes.
///
/// # Errors
/// When the cluster cannot be read or rejects the edit, or when there is no terminal for the confirmation.
pub fn edit(name: &str, choice: &ClusterOptions, yes: bool, verb: Verb) -> Result<ExitCode, Error> {
    super::runtime()?.block_on(async {
        let cluster = Cluster::open(choice).await?;
        let update = cluster.update(name).await?;
        let changes = verb.changes(&update);
        let caveat = verb.caveat(&update.spec);
        match confirm(name, cluster.namespace(), &changes, caveat.as_deref(), yes)? {
            Confirmation::NoChanges => Ok(ExitCode::SUCCESS),
            Confirmation::Declined => Ok(ExitCode::FAILURE),
            Confirmation::Confirmed => {
                cluster.apply(&update, verb).await?;
                // The change has been made, even if this message cannot be written.
                let _ = print("changed\n");
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

/// How to proceed with the changes that were shown.
enum Confirmation {
    /// There are none.
    NoChanges,
    Declined,
    Confirmed,
}

/// Shows changes, and asks for confirmation.
fn confirm(
    name: &str,
    namespace: &str,
    changes: &[Change],
    caveat: Option<&str>,
    yes: bool,
) -> Result<Confirmation, Error> {
    let (name, namespace) = (printable(name), printable(namespace));
    print(&format!("{name} in namespace {namespace}\n"))?;
    if changes.is_empty() {
        print("  nothing to change\n")?;
        return Ok(Confirmation::NoChanges);
    }
    for change in changes {
        print(&format!("  {}\n", printable(change)))?;
    }
    if let Some(caveat) = caveat {
        print(&format!("  {}\n", printable(caveat)))?;
    }
    if !yes && !confirmed()? {
        print("no changes were made\n")?;
        return Ok(Confirmation::Declined);
    }
    Ok(Confirmation::Confirmed)
}

fn confirmed() -> Result<bool, Error> {
    if !io::stdin().is_terminal() {
        return Err(Error::NoTerminal);
    }
    print("Apply the change? [y/N] ")?;
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if read.map_err(Error::Confirmation)? == 0 {
        // At the end of input the cursor is still on the line of the question.
        print("\n")?;
    }
    let answer = answer.trim().to_lowercase();
    Ok(matches!(&*answer, "y" | "yes"))
}
