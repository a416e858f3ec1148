//! The arguments of `crossfade status`.

use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Error};

use super::cluster::{ClusterChoice, Early, is_typed};
use super::parse::{admin_port, seconds};
use crate::app::commands::{Form, StatusOptions};

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The update [default: the only one in the namespace; if there are several, all are listed]
    name: Option<String>,
    /// Ask the proxies at these admin ports instead of a cluster: host:port; repeat the flag or separate values by commas
    #[arg(
        long,
        env = "CROSSFADE_PROXY",
        value_name = "ADDR",
        value_delimiter = ',',
        value_parser = admin_port
    )]
    proxy: Vec<String>,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// Repeat until interrupted
    #[arg(short, long, env = "CROSSFADE_WATCH", value_parser = BoolishValueParser::new())]
    watch: bool,
    /// Time between two updates of the output
    #[arg(long, env = "CROSSFADE_INTERVAL", value_name = "DURATION", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// Output format
    #[arg(
        short,
        long,
        env = "CROSSFADE_OUTPUT",
        value_name = "FORM",
        default_value = "text"
    )]
    output: Form,
}

/// Arguments that conflict with addresses.
const OF_CLUSTERS: [(&str, &str); 4] = [
    ("name", "NAME"),
    ("namespace", "--namespace"),
    ("context", "--context"),
    ("kubeconfig", "--kubeconfig"),
];

/// Chooses between proxies at addresses and an update in a cluster: the command line overrides the environment, and both on
/// the command line conflict. `given` are the subcommand's own arguments, `early` those before it.
///
/// # Errors
/// When both are given, or no address is left.
pub(super) fn settle(
    proxy: &mut Vec<String>,
    cluster: &mut ClusterChoice,
    early: Early,
    given: &ArgMatches,
) -> Result<(), Error> {
    let own = OF_CLUSTERS.into_iter().find(|(id, _)| is_typed(given, id));
    let of_cluster = own.map(|(_, flag)| flag).or(early.first());
    cluster.after(early, given);
    proxy.retain(|address| !address.is_empty());
    match of_cluster {
        None if proxy.is_empty() && is_typed(given, "proxy") => Err(Error::raw(
            ErrorKind::InvalidValue,
            "--proxy has no address\n",
        )),
        None => Ok(()),
        Some(flag) if is_typed(given, "proxy") => Err(Error::raw(
            ErrorKind::ArgumentConflict,
            format!("--proxy asks proxies directly and cannot be used with {flag}\n"),
        )),
        Some(_) => {
            proxy.clear();
            Ok(())
        }
    }
}

impl StatusArgs {
    /// Chooses between proxies at addresses and an update in a cluster.
    ///
    /// # Errors
    /// As for [`settle`].
    pub(super) fn settle(&mut self, early: Early, given: &ArgMatches) -> Result<(), Error> {
        settle(&mut self.proxy, &mut self.cluster, early, given)
    }

    /// The options.
    #[must_use]
    pub fn options(self) -> StatusOptions {
        StatusOptions {
            name: self.name,
            proxies: self.proxy,
            cluster: self.cluster.choice(),
            every: self.watch.then_some(self.interval),
            form: self.output,
        }
    }
}
