//! An update in a cluster: the resource, its Events, and its proxies, asked through the API server.
//!
//! Must not know how any of it is shown.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::config::KubeConfigOptions;
use kube::{Client, Config};

use super::proxies::{PATIENCE, counted};
use super::{Asked, Error, Happened, Look, Verb, change};
use crate::resource::DynamoUpdateConfig;
use crate::state_api::{self, v1, whole};

/// The name of the admin port of a proxy's container.
const PORT: &str = "crossfade";
/// Who writes the edits, as `metadata.managedFields` has it.
const WRITER: &str = "crossfade-cli";
/// How often an edit is tried while the resource changes under it.
const ATTEMPTS: u32 = 10;
const CONNECT: Duration = Duration::from_secs(5);
const READ: Duration = Duration::from_secs(20);

/// Which cluster and namespace, as kubectl's users name them.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// By default that of the context.
    pub namespace: Option<String>,
    /// By default the kubeconfig's current one, or the service account of this pod.
    pub context: Option<String>,
}

/// The way to a namespace of a cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    namespace: String,
}

impl Cluster {
    /// Reads how to reach it. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub async fn open(choice: &Choice) -> Result<Self, Error> {
        // An error means that the process has chosen before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = match &choice.context {
            None => Config::infer()
                .await
                .map_err(|error| Error::Config(error.into()))?,
            context => {
                let options = KubeConfigOptions {
                    context: context.clone(),
                    ..KubeConfigOptions::default()
                };
                let config = Config::from_kubeconfig(&options).await;
                config.map_err(|error| Error::Config(error.into()))?
            }
        };
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(READ);
        config.default_retry = false;
        let namespace = choice.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Error::Config(error.into()))?;
        Ok(Self { client, namespace })
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// All updates of the namespace, by name.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub async fn updates(&self) -> Result<Vec<DynamoUpdateConfig>, Error> {
        let list = self.resources().list(&ListParams::default()).await;
        let list = list.map_err(api("list the updates"))?;
        Ok(list.items)
    }

    /// The update of this name.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub async fn update(&self, name: &str) -> Result<DynamoUpdateConfig, Error> {
        let found = self.resources().get(name).await;
        found.map_err(api(&format!("read the update {name}")))
    }

    /// One look at an update: the resource, then what its proxies say, as far as one may ask them.
    ///
    /// # Errors
    /// When the resource cannot be read.
    pub async fn look(&self, name: &str) -> Result<Look, Error> {
        let update = self.update(name).await?;
        let (asked, events) = tokio::join!(self.proxies(&update), self.events(name));
        let (origin, proxies) = match asked {
            Ok(proxies) if proxies.is_empty() => {
                let why = format!("no pod of the namespace has a container port named {PORT}");
                (format!("the resource's status alone: {why}"), proxies)
            }
            Ok(proxies) => match proxies.iter().filter(|asked| asked.state.is_ok()).count() {
                0 => (
                    "the resource's status alone: no proxy could be asked".to_owned(),
                    proxies,
                ),
                some => (
                    format!("{}, asked through the API server", counted(some)),
                    proxies,
                ),
            },
            Err(error) => (
                format!("the resource's status alone: {}", whole(&error)),
                Vec::new(),
            ),
        };
        Ok(Look {
            update: Some(Box::new(update)),
            origin,
            proxies,
            // They are a help, and the right to read them may be missing.
            events: events.unwrap_or_default(),
        })
    }

    /// Makes the changes of `verb` that were shown, whatever else of the resource has changed since: with a controller its
    /// status always does.
    ///
    /// # Errors
    /// [`Error::Conflict`] if they would be others by now, else [`Error::Api`].
    pub async fn apply(&self, shown: &DynamoUpdateConfig, verb: Verb) -> Result<(), Error> {
        let name = shown.metadata.name.as_deref().unwrap_or_default();
        let changes = verb.changes(&shown.spec);
        let parameters = PatchParams {
            field_manager: Some(WRITER.into()),
            ..PatchParams::default()
        };
        let mut version = shown.metadata.resource_version.clone();
        for _ in 0..ATTEMPTS {
            let patch = Patch::Merge(change::patch(&changes, version.as_deref()));
            match self.resources().patch(name, &parameters, &patch).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(api(&format!("change the update {name}"))(error)),
            }
            let now = self.update(name).await?;
            if now.metadata.uid != shown.metadata.uid || verb.changes(&now.spec) != changes {
                break;
            }
            version = now.metadata.resource_version;
        }
        Err(Error::Conflict(name.into()))
    }

    fn resources(&self) -> Api<DynamoUpdateConfig> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// What the proxies of this update say, and why others say nothing. Those of other updates are left out.
    async fn proxies(&self, update: &DynamoUpdateConfig) -> Result<Vec<Asked>, Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let list = pods
            .list(&ListParams::default())
            .await
            .map_err(api("list the pods"))?;
        let doors = list.items.iter().filter_map(door);
        let asked = join_all(doors.map(|(name, port)| ask(&pods, name, port))).await;
        let name = update.metadata.name.as_deref();
        let follows = |state: &v1::State| {
            let resource = state.plan.as_ref().and_then(|plan| plan.resource.as_ref());
            resource.and_then(|resource| resource.name.as_deref()) == name
        };
        let ours = |asked: &Asked| asked.state.as_ref().map_or(true, follows);
        Ok(asked.into_iter().filter(ours).collect())
    }

    async fn events(&self, name: &str) -> Result<Vec<Happened>, kube::Error> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let about = format!("involvedObject.kind=DynamoUpdateConfig,involvedObject.name={name}");
        let list = events.list(&ListParams::default().fields(&about)).await?;
        let mut events: Vec<Happened> = list.items.into_iter().map(happened).collect();
        events.sort_by(|one, other| one.at.cmp(&other.at));
        Ok(events)
    }
}

/// The pod's name and the port of its proxy, if it runs one.
fn door(pod: &Pod) -> Option<(String, u16)> {
    let spec = pod.spec.as_ref()?;
    let runs = pod.status.as_ref()?.phase.as_deref() == Some("Running");
    let sidecars = spec.init_containers.iter().flatten();
    let mut ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(PORT))?;
    let port = u16::try_from(port.container_port).ok()?;
    Some((pod.metadata.name.clone()?, port)).filter(|_| runs)
}

async fn ask(pods: &Api<Pod>, name: String, port: u16) -> Asked {
    let state = tokio::time::timeout(2 * PATIENCE, state(pods, &name, port)).await;
    let state = state.unwrap_or_else(|_| Err("no answer in time".to_owned()));
    Asked { name, state }
}

async fn state(pods: &Api<Pod>, name: &str, port: u16) -> Result<v1::State, String> {
    let mut forwarder = pods.portforward(name, &[port]).await.map_err(refusal)?;
    let stream = forwarder
        .take_stream(port)
        .ok_or("the port is not forwarded")?;
    let answer = async {
        let client = state_api::Client::over(stream, PATIENCE).await?;
        client.get().await
    };
    let answer = answer.await.map_err(|error| whole(&error));
    forwarder.abort();
    answer
}

/// What the API server said, without the rest of its answer.
fn refusal(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        error => whole(&error),
    }
}

fn happened(event: Event) -> Happened {
    let last = event.last_timestamp.map(|time| time.0);
    let at = last.or(event.event_time.map(|time| time.0));
    let at = at.or(event.metadata.creation_timestamp.map(|time| time.0));
    Happened {
        at: at.map_or_else(String::new, |at| {
            at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
        }),
        warning: event.type_.as_deref() == Some("Warning"),
        reason: event.reason.unwrap_or_default(),
        note: event.message.unwrap_or_default(),
    }
}

fn api(what: &str) -> impl FnOnce(kube::Error) -> Error + use<> {
    let what = what.to_owned();
    move |error| match error {
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

impl Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
