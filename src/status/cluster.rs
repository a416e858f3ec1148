//! An update in a cluster: the resource, its Events and the responses of its proxies.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::core::{NamespaceResourceScope, ObjectMeta};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::{
    Change, ComparisonAnswer, Error, EventRecord, RolloutVerb, StatusReport, Verb, api_of, change,
    escaped, port_forward,
};
use crate::error_chain::error_chain;
use crate::k8s::load_config;
use crate::resource::{DynamoRollout, DynamoUpdateConfig};

/// The field manager of the edits.
const WRITER: &str = "crossfade-cli";
/// How many times an edit is attempted while others change the resource.
const ATTEMPTS: u32 = 10;
const CONNECT: Duration = Duration::from_secs(5);
const READ: Duration = Duration::from_secs(20);

/// A resource that is shown and edited.
trait EditableResource:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug
{
}

impl EditableResource for DynamoUpdateConfig {}
impl EditableResource for DynamoRollout {}

/// The cluster and namespace, specified as for kubectl.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// By default the namespace of the context.
    pub namespace: Option<String>,
    /// By default the kubeconfig's current one, or the service account of this pod.
    pub context: Option<String>,
    /// By default `$KUBECONFIG`, else `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
}

/// A namespace of a cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    namespace: String,
    /// The address of the API server and the context, for messages.
    server: String,
}

impl Cluster {
    /// Reads the kubeconfig. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub async fn open(choice: &ClusterOptions) -> Result<Self, Error> {
        // An error means that the process has already chosen a provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let loaded = load_config(choice.kubeconfig.as_ref(), choice.context.as_deref()).await;
        let (mut config, context) = loaded.map_err(|error| Error::Config(error.into()))?;
        let context = context.map(|name| format!(" (context '{}')", escaped(&name)));
        let server = format!(
            "{}{}",
            escaped(&config.cluster_url.to_string()),
            context.unwrap_or_default()
        );
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(READ);
        config.default_retry = false;
        let namespace = choice.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Error::Config(error.into()))?;
        Ok(Self {
            client,
            namespace,
            server,
        })
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
        self.list("list the updates").await
    }

    /// All rollouts of the namespace, by name.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub async fn rollouts(&self) -> Result<Vec<DynamoRollout>, Error> {
        self.list("list the rollouts").await
    }

    /// The rollout of this name.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub async fn rollout(&self, name: &str) -> Result<DynamoRollout, Error> {
        let none = Error::NoSuchRollout {
            name: name.to_owned(),
            namespace: self.namespace.clone(),
        };
        self.get(name, &format!("read the rollout {name}"), none)
            .await
    }

    /// The only update of the namespace.
    ///
    /// # Errors
    /// [`Error::Api`], or there is none or more than one.
    pub async fn only_update(&self) -> Result<DynamoUpdateConfig, Error> {
        let mut updates = self.updates().await?;
        match (updates.pop(), updates.len()) {
            (Some(only), 0) => Ok(only),
            (None, _) => Err(Error::NoUpdate(self.namespace.clone())),
            (Some(_), others) => Err(Error::SeveralUpdates(others + 1, self.namespace.clone())),
        }
    }

    /// The update of this name.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub async fn update(&self, name: &str) -> Result<DynamoUpdateConfig, Error> {
        let none = Error::NoSuchUpdate {
            name: name.to_owned(),
            namespace: self.namespace.clone(),
        };
        self.get(name, &format!("read the update {name}"), none)
            .await
    }

    /// A report on an update: the resource, then its proxies' answers, as far as permissions allow.
    ///
    /// # Errors
    /// When the resource cannot be read.
    pub async fn report(&self, name: &str) -> Result<StatusReport, Error> {
        Ok(self.report_on(self.update(name).await?).await)
    }

    /// A report on an update that has just been read.
    pub async fn report_on(&self, mut update: DynamoUpdateConfig) -> StatusReport {
        let at = Timestamp::now();
        let since_edit = since_edit(&update.metadata, at);
        // Useful only for merging edits, and longer than everything else.
        update.metadata.managed_fields = None;
        let name = update.metadata.name.as_deref().unwrap_or_default();
        let answers =
            port_forward::query_all(self.client.clone(), &self.namespace, &update.metadata);
        let (answers, events) = tokio::join!(answers, self.events(name));
        let origin = match &answers {
            Ok(answers) => answers.origin(),
            Err(error) => port_forward::alone(&error_chain(error)),
        };
        let (proxies, others) = answers.map_or_else(
            |_| Default::default(),
            |answers| (answers.proxies, answers.others),
        );
        let (events, events_unknown) = match events {
            Ok(events) => (events, None),
            Err(error) => (Vec::new(), Some(error_chain(&error))),
        };
        StatusReport {
            update: Some(Box::new(update)),
            at: Some(at),
            since_edit,
            origin,
            proxies,
            others,
            events,
            events_unknown,
        }
    }

    /// The counts of both generations that the proxies of an update report.
    ///
    /// # Errors
    /// When the pods cannot be listed.
    pub async fn compare(
        &self,
        update: &DynamoUpdateConfig,
        with_past: bool,
    ) -> Result<Vec<ComparisonAnswer>, Error> {
        let client = self.client.clone();
        port_forward::compare_all(client, &self.namespace, &update.metadata, with_past).await
    }

    /// Makes the changes of `verb` that were shown, even if the rest of the resource has changed since: with a controller, its
    /// status always changes.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the changes would now differ, otherwise [`Error::Api`].
    pub async fn apply(&self, shown: &DynamoUpdateConfig, verb: Verb) -> Result<(), Error> {
        let changes = |update: &DynamoUpdateConfig| verb.changes(update);
        self.edit(shown, changes, "update", Self::update).await
    }

    /// The same for a rollout.
    ///
    /// # Errors
    /// Same as [`Self::apply`].
    pub async fn apply_to_rollout(
        &self,
        shown: &DynamoRollout,
        verb: RolloutVerb,
    ) -> Result<(), Error> {
        let changes = |rollout: &DynamoRollout| verb.changes(rollout);
        self.edit(shown, changes, "rollout", Self::rollout).await
    }

    async fn edit<K: EditableResource>(
        &self,
        shown: &K,
        changes_to: impl Fn(&K) -> Vec<Change>,
        kind: &str,
        read: impl AsyncFn(&Self, &str) -> Result<K, Error>,
    ) -> Result<(), Error> {
        let name = shown.meta().name.as_deref().unwrap_or_default();
        let changes = changes_to(shown);
        let parameters = PatchParams {
            field_manager: Some(WRITER.into()),
            ..PatchParams::default()
        };
        let mut version = shown.meta().resource_version.clone();
        for _ in 0..ATTEMPTS {
            let patch = Patch::Merge(change::patch(&changes, version.as_deref()));
            match self.resources::<K>().patch(name, &parameters, &patch).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => {
                    return Err(api_of(&self.server, &format!("change the {kind} {name}"))(
                        error,
                    ));
                }
            }
            let now = read(self, name).await?;
            if now.meta().uid != shown.meta().uid || changes_to(&now) != changes {
                break;
            }
            version = now.meta().resource_version.clone();
        }
        Err(Error::Conflict(name.into()))
    }

    async fn list<K: EditableResource>(&self, what: &str) -> Result<Vec<K>, Error> {
        let list = self.resources().list(&ListParams::default()).await;
        list.map(|list| list.items)
            .map_err(api_of(&self.server, what))
    }

    /// The resource of this name, or `none` if there is none.
    async fn get<K: EditableResource>(
        &self,
        name: &str,
        what: &str,
        none: Error,
    ) -> Result<K, Error> {
        let found = self.resources().get(name).await;
        found.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 && status.details.is_some() => none,
            error => api_of(&self.server, what)(error),
        })
    }

    fn resources<K: EditableResource>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn events(&self, name: &str) -> Result<Vec<EventRecord>, Error> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let about = format!("involvedObject.kind=DynamoUpdateConfig,involvedObject.name={name}");
        let list = events.list(&ListParams::default().fields(&about)).await;
        let list = list.map_err(api_of(&self.server, "list the events"))?;
        let mut events: Vec<EventRecord> = list.items.into_iter().map(event_record).collect();
        events.sort_by(|one, other| one.at.cmp(&other.at));
        Ok(events)
    }
}

/// How long ago the resource was last edited, except for its status, according to the field managers.
fn since_edit(meta: &ObjectMeta, now: Timestamp) -> Option<Duration> {
    let managers = meta.managed_fields.iter().flatten();
    let edits = managers.filter(|manager| manager.subresource.as_deref() != Some("status"));
    let last = edits
        .filter_map(|edit| edit.time.as_ref())
        .map(|time| time.0)
        .max()?;
    // Another machine's clock may be a little ahead of this one's.
    Some(Duration::try_from(now.duration_since(last)).unwrap_or_default())
}

fn event_record(event: Event) -> EventRecord {
    let last = event.last_timestamp.map(|time| time.0);
    let at = last.or(event.event_time.map(|time| time.0));
    let at = at.or(event.metadata.creation_timestamp.map(|time| time.0));
    EventRecord {
        at: at.map_or_else(String::new, |at| {
            at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
        }),
        warning: event.type_.as_deref() == Some("Warning"),
        reason: event.reason.unwrap_or_default(),
        note: event.message.unwrap_or_default(),
    }
}

impl Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
