//! Carries out one action, or writes a status.
//!
//! A write of the update carries the `resourceVersion` that the decision was based on, or the one that the preceding write
//! returned, so a decision never overwrites a state that it has not seen. Contains no policy.

use std::sync::Arc;

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::{CustomResourceExt, Error as ClientError};
use serde_json::{Value as Json, json};

use super::Key;
pub(super) use super::leader_client::Error;
use super::leader_client::LeaderClient;
use super::parsed::MANAGER;
use crate::k8s::{Object, trimmed_update};
use crate::resource::{API_VERSION, DynamoUpdateConfig, DynamoUpdateConfigStatus, KIND};
use crate::rollout::{Action, DesiredSplit};

/// The update that an action was decided for.
#[derive(Clone, Copy)]
pub(super) struct Current<'a> {
    pub key: &'a Key,
    /// Its `resourceVersion`.
    pub version: &'a str,
    pub status: &'a DynamoUpdateConfigStatus,
}

/// Writes updates and their statuses.
#[derive(Clone)]
pub(super) struct Writer(pub LeaderClient);

impl Writer {
    /// Carries out an action. Returns the update, if it was written.
    ///
    /// # Errors
    /// Why it was not done.
    pub async fn execute(
        &self,
        update: Current<'_>,
        action: &Action,
    ) -> Result<Option<Object>, Error> {
        let Current {
            key,
            version,
            status,
        } = update;
        match action {
            Action::SetSplit(desired) => self.split(key, version, *desired).await.map(Some),
            Action::RecordFailure(memory) => {
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
        let kind = DynamoUpdateConfig::api_resource();
        let api = self.0.api(&key.namespace, &kind)?;
        Ok((api, PatchParams::apply(MANAGER).force()))
    }

    async fn write(
        &self,
        writing: impl Future<Output = Result<DynamicObject, ClientError>>,
    ) -> Result<Object, Error> {
        let object = self.0.write(writing).await?;
        Ok(Arc::new(trimmed_update(object)))
    }
}

/// The fields of the spec that the controller writes.
///
/// Always write all of them, because server-side apply removes a field that its owner leaves out.
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
