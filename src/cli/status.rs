//! The arguments of `crossfade status`, and which cluster is meant, as kubectl's users say it.

use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::parse::seconds;
use crate::app::hand::{Form, Wish};
use crate::status::Choice;

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The update; may be left out where the namespace has only one
    #[arg(conflicts_with = "proxy")]
    name: Option<String>,
    /// Ask the proxies with these admin ports, without a cluster: host:port; repeat it or separate by commas
    #[arg(
        long,
        env = "CROSSFADE_PROXY",
        value_name = "ADDR",
        value_delimiter = ',',
        conflicts_with_all = ["namespace", "context"]
    )]
    proxy: Vec<String>,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// Look again and again, until it is interrupted
    #[arg(short, long, env = "CROSSFADE_WATCH", value_parser = BoolishValueParser::new())]
    watch: bool,
    /// Time between two looks
    #[arg(long, env = "CROSSFADE_INTERVAL", value_name = "SECONDS", default_value = "2", value_parser = seconds)]
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

impl StatusArgs {
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

/// Which cluster and namespace.
#[derive(Clone, Debug, Args)]
pub struct ClusterChoice {
    /// The namespace of the update [default: that of the context]
    #[arg(short, long, env = "CROSSFADE_NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// The context of the kubeconfig [default: the current one]
    #[arg(long, env = "CROSSFADE_CONTEXT", value_name = "NAME")]
    context: Option<String>,
}

impl ClusterChoice {
    #[must_use]
    pub fn choice(&self) -> Choice {
        Choice {
            namespace: self.namespace.clone(),
            context: self.context.clone(),
        }
    }
}
