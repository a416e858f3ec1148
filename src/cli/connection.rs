//! The flags of commands that ask proxies: at their addresses, or through a cluster.

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Error};

use super::cluster::{ClusterChoice, GlobalClusterArgs, is_typed};
use super::parse::admin_port;
use crate::status::ClusterOptions;

#[derive(Debug, Args)]
pub struct Connection {
    /// Query the proxies at these admin ports instead of a cluster: host:port; repeat the flag or separate values with commas
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
}

/// Arguments that conflict with addresses.
const CLUSTER_FLAGS: [(&str, &str); 4] = [
    ("name", "NAME"),
    ("namespace", "--namespace"),
    ("context", "--context"),
    ("kubeconfig", "--kubeconfig"),
];

impl Connection {
    /// Chooses between proxies at addresses and an update in a cluster: the command line overrides the environment, and both on
    /// the command line conflict. `given` are the subcommand's own arguments, `early` those before it.
    ///
    /// # Errors
    /// When both are given, or no address is left.
    pub(super) fn settle(
        &mut self,
        early: GlobalClusterArgs,
        given: &ArgMatches,
    ) -> Result<(), Error> {
        let own = CLUSTER_FLAGS
            .into_iter()
            .find(|(id, _)| is_typed(given, id));
        let of_cluster = own.map(|(_, flag)| flag).or(early.first());
        self.cluster.after(early, given);
        self.proxy.retain(|address| !address.is_empty());
        match of_cluster {
            None if self.proxy.is_empty() && is_typed(given, "proxy") => Err(Error::raw(
                ErrorKind::InvalidValue,
                "--proxy has no address",
            )),
            None => Ok(()),
            Some(flag) if is_typed(given, "proxy") => Err(Error::raw(
                ErrorKind::ArgumentConflict,
                format!("--proxy queries proxies directly and cannot be used with {flag}"),
            )),
            Some(_) => {
                self.proxy.clear();
                Ok(())
            }
        }
    }

    /// The addresses, if any, and the cluster.
    #[must_use]
    pub fn parts(self) -> (Vec<String>, ClusterOptions) {
        (self.proxy, self.cluster.choice())
    }
}
