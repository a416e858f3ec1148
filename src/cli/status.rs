//! The arguments of `crossfade status`.

use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Error};

use super::cluster::{ClusterChoice, Early, is_typed};
use super::parse::{admin_port, seconds};
use crate::app::hand::{Form, Wish};

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The update; without it the only one of the namespace, or a list of all
    name: Option<String>,
    /// Ask the proxies with these admin ports, without a cluster: host:port; repeat it or separate by commas
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
    /// Look again and again, until it is interrupted
    #[arg(short, long, env = "CROSSFADE_WATCH", value_parser = BoolishValueParser::new())]
    watch: bool,
    /// Time between two looks
    #[arg(long, env = "CROSSFADE_INTERVAL", value_name = "DURATION", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// The form of what is printed
    #[arg(
        short,
        long,
        env = "CROSSFADE_OUTPUT",
        value_name = "FORM",
        default_value = "text"
    )]
    output: Form,
}

/// What contradicts addresses.
const OF_CLUSTERS: [(&str, &str); 4] = [
    ("name", "NAME"),
    ("namespace", "--namespace"),
    ("context", "--context"),
    ("kubeconfig", "--kubeconfig"),
];

impl StatusArgs {
    /// Proxies at addresses or an update in a cluster: what is typed counts more than what the environment says, and both
    /// typed contradict each other. `given` are its own arguments, `early` is what stands before it.
    ///
    /// # Errors
    /// When they do, or when no address is left.
    pub(super) fn settle(&mut self, early: Early, given: &ArgMatches) -> Result<(), Error> {
        let own = OF_CLUSTERS.into_iter().find(|(id, _)| is_typed(given, id));
        let of_cluster = own.map(|(_, flag)| flag).or(early.first());
        self.cluster.after(early, given);
        self.proxy.retain(|address| !address.is_empty());
        match of_cluster {
            None if self.proxy.is_empty() && is_typed(given, "proxy") => Err(Error::raw(
                ErrorKind::InvalidValue,
                "--proxy names no address\n",
            )),
            None => Ok(()),
            Some(flag) if is_typed(given, "proxy") => Err(Error::raw(
                ErrorKind::ArgumentConflict,
                format!("--proxy asks without a cluster, so it cannot be used with {flag}\n"),
            )),
            Some(_) => {
                self.proxy.clear();
                Ok(())
            }
        }
    }

    /// What they ask for.
    #[must_use]
    pub fn wish(self) -> Wish {
        Wish {
            name: self.name,
            proxies: self.proxy,
            cluster: self.cluster.choice(),
            every: self.watch.then_some(self.interval),
            form: self.output,
        }
    }
}
