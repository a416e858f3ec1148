//! `crossfade status` and the verbs beside it: what an update and its proxies say of themselves, asked from where a person
//! sits, and the few edits that a person makes.
//!
//! Must not know how a proxy counts, nor what the controller decides.

mod change;
mod cluster;
mod colour;
mod doors;
mod lag;
mod machine;
mod plain;
mod proxies;
mod text;
mod wanted;

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

pub use change::{Change, Verb};
pub use cluster::{Choice, Cluster};
pub use colour::coloured;
pub use machine::{json, json_list, yaml};
pub use plain::printable;
pub use proxies::Proxies;
pub use text::{list, text};

use crate::resource::DynamoUpdateConfig;
use crate::state_api::v1;

/// Why there is nothing to show, or nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no kubeconfig can be used (`crossfade status --proxy HOST:PORT` asks proxies without a cluster)"
    )]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The API server refused, in its own words.
    #[error("cannot {what}: {message}")]
    Refused { what: String, message: String },
    /// It did so for want of a right, which its words name.
    #[error("cannot {what}: {message}")]
    Forbidden { what: String, message: String },
    /// It cannot be reached, or its answer cannot be read.
    #[error("cannot {what}")]
    Api {
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("there is no update in namespace {0}")]
    NoUpdate(String),
    #[error("{0} was changed by someone else in the meantime: look again")]
    Conflict(String),
}

/// What the API server or the way to it says, beside what was tried.
fn api(what: &str) -> impl FnOnce(kube::Error) -> Error + use<> {
    let what = what.to_owned();
    move |error| match error {
        kube::Error::Api(status) if status.code == 403 => Error::Forbidden {
            what,
            message: status.message,
        },
        kube::Error::Api(status) => Error::Refused {
            what,
            message: status.message,
        },
        error => Error::Api {
            what,
            source: Box::new(error),
        },
    }
}

/// What one proxy said of itself, or why it did not.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its pod, or its address.
    pub name: String,
    pub state: Result<v1::State, String>,
}

/// A proxy of the namespace that has nothing to do with the update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its pod.
    pub name: String,
    /// The update that it follows, if it does.
    pub follows: Option<String>,
}

/// Something that happened to an update, as an Event tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// RFC 3339; empty where it is not known.
    pub at: String,
    pub warning: bool,
    pub reason: String,
    pub note: String,
}

/// One look at an update.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The resource; none without a cluster.
    pub update: Option<Box<DynamoUpdateConfig>>,
    /// When that was read.
    pub at: Option<Timestamp>,
    /// How long ago the resource was last edited; `None` where the cluster does not tell.
    pub since_edit: Option<Duration>,
    /// Where the figures are from, in words.
    pub origin: String,
    /// Those that follow the update, have refused an edit of it, or say nothing.
    pub proxies: Vec<Asked>,
    pub others: Vec<Other>,
    /// The newest last.
    pub events: Vec<Happened>,
    /// Why the Events are not known, where that is so.
    pub events_unknown: Option<String>,
}

impl Look {
    /// The states of the proxies that answered.
    pub fn states(&self) -> impl Iterator<Item = &v1::State> {
        self.proxies
            .iter()
            .filter_map(|asked| asked.state.as_ref().ok())
    }
}
