//! `crossfade status` and the commands that edit an update or a rollout: reads them and their proxies from a user's machine,
//! and makes the few edits that a user requests.

mod change;
mod cluster;
mod colour;
mod format;
mod json;
mod lag;
mod port_forward;
mod proxies;
mod rollout;
mod text;
mod verdict;
mod wanted;

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

pub use change::{Change, Section, Verb};
pub use cluster::{Cluster, ClusterOptions};
pub use colour::coloured;
pub use format::printable;
pub use json::{json, json_list, rollout_json, rollouts_json, yaml};
pub use proxies::ProxyClients;
pub use rollout::RolloutVerb;
pub use text::{list, rollout as rollout_text, rollout_history, rollouts as rollout_list, text};
pub use verdict::{AnalysisReport, CommandAnalysis, ComparisonAnswer, margins, no_report};

use crate::error_chain::{error_chain, root_cause};
use crate::resource::DynamoUpdateConfig;
use crate::state_api::v1;

/// Why an update cannot be shown or edited.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot load a kubeconfig")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The API server rejected the request with this message.
    #[error("cannot {what}: {message}")]
    Refused { what: String, message: String },
    /// It rejected the request because of a missing permission, which its message names.
    #[error("cannot {what}: {message}")]
    Forbidden { what: String, message: String },
    #[error("cannot {what}: cannot reach the API server{}: {cause}", named(.server))]
    Unreachable {
        what: String,
        /// Its address and the context, if known.
        server: String,
        cause: String,
    },
    #[error(
        "cannot {what}: the API server{} does not accept the credentials: {message}", named(.server)
    )]
    Unauthorized {
        what: String,
        server: String,
        message: String,
    },
    /// Its response cannot be read.
    #[error("cannot {what}: {cause}")]
    Api { what: String, cause: String },
    #[error(
        "no update found in namespace {0}: choose another one with -n; `kubectl get duc --all-namespaces` lists all updates"
    )]
    NoUpdate(String),
    #[error(
        "there is no update {name} in namespace {namespace}; `kubectl get duc --all-namespaces` lists all updates"
    )]
    NoSuchUpdate { name: String, namespace: String },
    #[error("{one} and {other} analyse new with different margins: set the margins with flags")]
    DifferentMargins { one: String, other: String },
    #[error(
        "no rollout found in namespace {0}: choose another one with -n; `kubectl get dro --all-namespaces` lists all rollouts"
    )]
    NoRollout(String),
    #[error(
        "there is no rollout {name} in namespace {namespace}; `kubectl get dro --all-namespaces` lists all rollouts"
    )]
    NoSuchRollout { name: String, namespace: String },
    #[error(
        "cannot {what}: the cluster{} has no CRD of updates; install it with `crossfade crd | kubectl apply -f -` \
         or the chart crossfade-crds", named(.server)
    )]
    NoDefinition { what: String, server: String },
    #[error("there are {0} updates in namespace {1}: name one of them")]
    SeveralUpdates(usize, String),
    #[error("{0} has been changed in the meantime: check its new state and run the command again")]
    Conflict(String),
}

/// A server in the middle of a sentence.
fn named(server: &str) -> String {
    match server {
        "" => String::new(),
        server => format!(" {server}"),
    }
}

/// The error of a request to the API server, with what was attempted. The texts contain parts of objects and responses, whose line
/// breaks must not look like those of this program.
fn api(what: &str) -> impl FnOnce(kube::Error) -> Error + use<> {
    api_of("", what)
}

/// The same with the address of the API server and the context.
fn api_of(server: &str, what: &str) -> impl FnOnce(kube::Error) -> Error + use<> {
    let (server, what) = (server.to_owned(), escaped(what));
    move |error| match error {
        kube::Error::Api(status) if status.code == 401 => Error::Unauthorized {
            what,
            server,
            message: escaped(&status.message),
        },
        kube::Error::Api(status) if status.code == 403 => Error::Forbidden {
            what,
            message: escaped(&status.message),
        },
        // For an unknown resource, the API server reports nothing more.
        kube::Error::Api(status) if status.code == 404 && status.details.is_none() => {
            Error::NoDefinition { what, server }
        }
        kube::Error::Api(status) => Error::Refused {
            what,
            message: escaped(&status.message),
        },
        kube::Error::Service(error) => Error::Unreachable {
            what,
            server,
            cause: escaped(&root_cause(&*error)),
        },
        error => Error::Api {
            what,
            cause: escaped(&error_chain(&error)),
        },
    }
}

fn escaped(text: &str) -> String {
    crate::printable::printable(text).to_string()
}

/// The report of one proxy, or why there is none.
#[derive(Clone, Debug)]
pub struct ProxyAnswer {
    /// Its pod or its address.
    pub name: String,
    pub state: Result<v1::State, String>,
}

/// A proxy of the namespace that does not concern the update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its pod.
    pub name: String,
    /// The update that it follows, if any.
    pub follows: Option<String>,
}

/// An Event of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// RFC 3339; empty if unknown.
    pub at: String,
    pub warning: bool,
    pub reason: String,
    pub note: String,
}

/// A report on an update.
#[derive(Clone, Debug, Default)]
pub struct StatusReport {
    /// The resource; `None` without a cluster.
    pub update: Option<Box<DynamoUpdateConfig>>,
    /// When the resource was read.
    pub at: Option<Timestamp>,
    /// Time since the last edit of the resource; `None` if the cluster does not record it.
    pub since_edit: Option<Duration>,
    /// The source of the figures, for display.
    pub origin: String,
    /// The proxies that follow the update, have rejected an edit of it, or did not respond.
    pub proxies: Vec<ProxyAnswer>,
    pub others: Vec<Other>,
    /// Newest last.
    pub events: Vec<EventRecord>,
    /// Why the Events could not be read, if they could not.
    pub events_unknown: Option<String>,
}

impl StatusReport {
    /// The verdict on new: the controller's, or else that of proxies that evaluate new on their own, whose total is `all`.
    fn verdict(&self, all: Option<&v1::State>) -> Option<v1::Analysis> {
        let of_controller = self.update.as_ref().and_then(|update| {
            let status = update.status.as_ref()?;
            status.verdict(update.metadata.generation)
        });
        let of_proxies = || all?.verdict().cloned();
        of_controller.map(Into::into).or_else(of_proxies)
    }

    /// The states of the proxies that answered.
    pub fn states(&self) -> impl Iterator<Item = &v1::State> {
        self.proxies
            .iter()
            .filter_map(|proxy| proxy.state.as_ref().ok())
    }
}
