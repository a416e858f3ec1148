//! The flags for cluster and namespace, as in kubectl: after the subcommand, before it, or in the environment.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use super::parse::kubernetes_name;
use crate::status::ClusterOptions;

/// After the subcommand.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterChoice {
    /// The namespace [default: that of the context]
    #[arg(short, long, env = "CROSSFADE_NAMESPACE", value_name = "NAME", value_parser = kubernetes_name)]
    namespace: Option<String>,
    /// The context of the kubeconfig [default: the current one]
    #[arg(long, env = "CROSSFADE_CONTEXT", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    context: Option<String>,
    /// The kubeconfig file [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, env = "CROSSFADE_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// The same, before the subcommand.
#[derive(Clone, Debug, Default, Args)]
#[command(
    next_help_heading = "Options for status, judge, set, pause, resume, drain-old, retry, and rollout (also accepted after the subcommand)"
)]
pub struct GlobalClusterArgs {
    /// The namespace
    #[arg(
        id = "early-namespace",
        short = 'n',
        long = "namespace",
        value_name = "NAME",
        value_parser = kubernetes_name
    )]
    namespace: Option<String>,
    /// The context of the kubeconfig
    #[arg(id = "early-context", long = "context", value_name = "NAME")]
    context: Option<String>,
    /// The kubeconfig file
    #[arg(id = "early-kubeconfig", long = "kubeconfig", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl ClusterChoice {
    /// Fills in flags that were given only before the subcommand. `given` are the subcommand's own arguments.
    pub(super) fn after(&mut self, early: GlobalClusterArgs, given: &ArgMatches) {
        fn settle<T>(own: &mut Option<T>, early: Option<T>, is_typed: bool) {
            if early.is_some() && !is_typed {
                *own = early;
            }
        }
        settle(
            &mut self.namespace,
            early.namespace,
            is_typed(given, "namespace"),
        );
        settle(&mut self.context, early.context, is_typed(given, "context"));
        settle(
            &mut self.kubeconfig,
            early.kubeconfig,
            is_typed(given, "kubeconfig"),
        );
    }

    #[must_use]
    pub fn choice(self) -> ClusterOptions {
        ClusterOptions {
            namespace: self.namespace,
            context: self.context,
            kubeconfig: self.kubeconfig,
        }
    }
}

impl GlobalClusterArgs {
    /// The namespace, for a command that has no other of these flags.
    pub(super) fn take_namespace(&mut self) -> Option<String> {
        self.namespace.take()
    }

    /// The first flag that was given, if any.
    pub(super) fn first(&self) -> Option<&'static str> {
        let given = [
            ("--namespace", self.namespace.is_some()),
            ("--context", self.context.is_some()),
            ("--kubeconfig", self.kubeconfig.is_some()),
        ];
        given
            .into_iter()
            .find_map(|(flag, is_given)| is_given.then_some(flag))
    }
}

/// Whether this argument is on the command line itself. Such an argument overrides the environment.
pub(super) fn is_typed(given: &ArgMatches, id: &str) -> bool {
    given.value_source(id) == Some(ValueSource::CommandLine)
}
