//! Carries out one action, or writes a status.
//!
//! A write of the update carries the `resourceVersion` that the decision was based on, or the one that the preceding write
//! returned, so a decision never overwrites a state that it has not seen. Contains no policy.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::{Client, CustomResourceExt, Error as ClientError};
use serde_json::{Value as Json, json};

use super::parsed::MANAGER;
use super::{Key, Metrics};
use crate::k8s::workloads::ScalingError;
use crate::k8s::{Connection, Leading, Object, trimmed_update};
use crate::resource::{API_VERSION, DynamoUpdateConfig, DynamoUpdateConfigStatus, KIND};
use crate::rollout::{Action, DesiredSplit};

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The object has changed since it was observed: reconcile again.
    #[error("it has changed meanwhile")]
    Changed,
    #[error("this replica may no longer be the leader")]
    NotLeading,
    #[error(transparent)]
    Unscalable(#[from] ScalingError),
    #[error("the API server does not answer")]
    Late,
    #[error("the API server refuses it")]
    Refused(#[source] Box<ClientError>),
}

/// The update that an action was decided for.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub key: &'a Key,
    /// Its `resourceVersion`.
    pub version: &'a str,
    pub status: &'a DynamoUpdateConfigStatus,
}

/// Writes to the API server while this replica leads.
#[derive(Clone)]
pub(super) struct Writer {
    client: Client,
    leading: Leading,
    /// Timeout of a write. A write that starts while the lease is surely held ends before another replica can hold the lease.
    patience: Duration,
    metrics: Arc<Metrics>,
}

impl Writer {
    pub fn new(
        connection: &Connection,
        leading: Leading,
        lease: Duration,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            client: connection.client(),
            leading,
            patience: lease / 3,
            metrics,
        }
    }

    /// Carries out an action. Returns the update, if that was written.
    ///
    /// # Errors
    /// Why it was not done.
    pub async fn execute(
        &self,
        update: Found<'_>,
        action: &Action,
    ) -> Result<Option<Object>, Error> {
        let Found {
            key,
            version,
            status,
        } = update;
        match action {
            Action::SetSplit(desired) => self.split(key, version, *desired).await.map(Some),
            Action::Latch(memory) => {
                let status = DynamoUpdateConfigStatus {
                    memory: Some((**memory).clone()),
                    ..status.clone()
                };
                self.status(key, version, &status).await.map(Some)
            }
        }
    }

    async fn split(
        &self,
        key: &Key,
        version: &str,
        desired: DesiredSplit,
    ) -> Result<Object, Error> {
        let (api, params) = self.open(key)?;
        let patch = patch(key, version, "spec", spec(desired));
        let patch = Patch::Apply(&patch);
        self.write(api.patch(&key.name, &params, &patch)).await
    }

    /// Writes the status.
    ///
    /// # Errors
    /// Why it was not written.
    pub async fn status(
        &self,
        key: &Key,
        version: &str,
        status: &DynamoUpdateConfigStatus,
    ) -> Result<Object, Error> {
        let (api, params) = self.open(key)?;
        let patch = patch(key, version, "status", json!(status));
        let patch = Patch::Apply(&patch);
        self.write(api.patch_status(&key.name, &params, &patch))
            .await
    }

    fn open(&self, key: &Key) -> Result<(Api<DynamicObject>, PatchParams), Error> {
        if self.leading.remaining().is_none() {
            return Err(Error::NotLeading);
        }
        let kind = DynamoUpdateConfig::api_resource();
        let api = Api::namespaced_with(self.client.clone(), &key.namespace, &kind);
        Ok((api, PatchParams::apply(MANAGER).force()))
    }

    async fn write(
        &self,
        writing: impl Future<Output = Result<DynamicObject, ClientError>>,
    ) -> Result<Object, Error> {
        self.metrics.writes.inc();
        match tokio::time::timeout(self.patience, writing).await {
            Ok(Ok(object)) => Ok(Arc::new(trimmed_update(object))),
            Ok(Err(ClientError::Api(status))) if status.code == 409 => Err(Error::Changed),
            Ok(Err(error)) => Err(Error::Refused(error.into())),
            Err(_) => Err(Error::Late),
        }
    }
}

/// The fields of the spec that the controller writes.
///
/// Always write all of them: server-side apply removes a field that its owner leaves out.
fn spec(desired: DesiredSplit) -> Json {
    let split = desired.split;
    json!({
        "oldDraining": desired.old_draining,
        "trafficSplitPercent": split.rounded_percent(),
        "weights": {"old": split.old(), "new": split.new_weight()},
    })
}

fn patch(key: &Key, version: &str, part: &str, content: Json) -> Json {
    json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": key.name, "namespace": key.namespace, "resourceVersion": version},
        part: content,
    })
}
