//! Carries out one action of a rollout, or writes its status.
//!
//! Each write is conditional on the `resourceVersion` that the decision was based on. Contains no policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::CustomResourceExt;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use serde_json::{Value as Json, json};

use super::super::Key;
use super::super::leader_client::{Error, LeaderClient, status_code};
use super::objects::{self, Objects};
use super::revisions;
use crate::k8s::kinds::services;
use crate::k8s::workloads::{self, Resize};
use crate::k8s::{Object, resource_version, version_number};
use crate::resource::rollout_status::DynamoRolloutStatus;
use crate::resource::{API_VERSION, DynamoRollout, DynamoUpdateConfig, KIND, ROLLOUT_KIND};
use crate::rollout::Role;
use crate::scaling::Sizes;

/// A written object, which a watch must show before the next decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenObject {
    pub kind: String,
    pub name: String,
    pub version: u64,
}

/// Writes what a rollout changes, and its status.
#[derive(Clone)]
pub(super) struct Writer(pub LeaderClient);

impl Writer {
    /// Writes the status.
    ///
    /// # Errors
    /// Why it was not written.
    pub async fn status(
        &self,
        key: &Key,
        version: &str,
        status: &DynamoRolloutStatus,
        manager: &str,
    ) -> Result<Object, Error> {
        let api = self.0.api(&key.namespace, &DynamoRollout::api_resource())?;
        let patch = json!({
            "apiVersion": API_VERSION,
            "kind": ROLLOUT_KIND,
            "metadata": {"name": key.name, "namespace": key.namespace, "resourceVersion": version},
            "status": status,
        });
        let params = PatchParams::apply(manager).force();
        let patch = Patch::Apply(&patch);
        let written = api.patch_status(&key.name, &params, &patch);
        self.0.write(written).await.map(Arc::new)
    }

    /// Creates the update of a rollout, or writes its spec.
    ///
    /// # Errors
    /// Why it was not written.
    pub async fn update(
        &self,
        rollout: &Object,
        before: Option<&Object>,
        (spec, annotations): (&Json, &Json),
        manager: &str,
    ) -> Result<WrittenObject, Error> {
        let (namespace, name) = (
            rollout.metadata.namespace.as_deref().unwrap_or_default(),
            rollout.metadata.name.as_deref().unwrap_or_default(),
        );
        let kind = DynamoUpdateConfig::api_resource();
        let api = self.0.api(namespace, &kind)?;
        let mut metadata = json!({
            "name": name,
            "namespace": namespace,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": API_VERSION,
                "kind": ROLLOUT_KIND,
                "name": name,
                "uid": rollout.metadata.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        });
        if let Some(before) = before {
            metadata["resourceVersion"] = json!(before.metadata.resource_version);
            metadata["uid"] = json!(before.metadata.uid);
        }
        let patch = json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec,
        });
        let params = PatchParams::apply(manager).force();
        let patch = Patch::Apply(&patch);
        let written = self.0.write(api.patch(name, &params, &patch)).await?;
        Ok(shown(&kind, &written))
    }

    /// Writes the sizes that differ, one role after another. Adds the written objects to `done`, even if an error ends it.
    ///
    /// # Errors
    /// Why not everything was written.
    pub async fn scale(
        &self,
        key: &Key,
        (objects, sizes): (&Objects, &Sizes),
        manager: &str,
        done: &mut Vec<(Role, u32, WrittenObject)>,
    ) -> Result<(), Error> {
        for (role, (kind, scaled)) in objects {
            let Some(size) = sizes.get(role).filter(|size| **size != scaled.part.desired) else {
                continue;
            };
            let (resource, resize) = scaled.resize(kind, *size)?;
            let name = objects::name_of(scaled.sized());
            let version = scaled.version();
            let params = managed_by(manager);
            let api = self.0.api(&key.namespace, &resource)?;
            let written = match resize {
                Resize::Scale(size) => {
                    let patch = scale_patch(version, size);
                    let patch = Patch::Merge(&patch);
                    let scale = self.0.write(api.patch_scale(name, &params, &patch)).await?;
                    WrittenObject {
                        kind: resource.kind.clone(),
                        name: name.to_owned(),
                        version: version_number(scale.metadata.resource_version.as_deref()),
                    }
                }
                Resize::Patch(mut patch) => {
                    patch["metadata"] = json!({"resourceVersion": version});
                    let patch = Patch::Merge(&patch);
                    let object = self.0.write(api.patch(name, &params, &patch)).await?;
                    shown(&resource, &object)
                }
            };
            done.push((*role, *size, written));
        }
        Ok(())
    }

    /// Makes a Service select other pods.
    ///
    /// # Errors
    /// Why it was not written.
    pub async fn select(
        &self,
        service: &Object,
        selector: &BTreeMap<String, String>,
        manager: &str,
    ) -> Result<WrittenObject, Error> {
        let metadata = &service.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let api = self.0.api(namespace, &services())?;
        let mut wanted = json!(selector);
        // A merge patch removes fields that are null.
        let known = service.data["spec"]["selector"].as_object();
        for name in known.into_iter().flat_map(|known| known.keys()) {
            if !selector.contains_key(name) {
                wanted[name] = Json::Null;
            }
        }
        let patch = json!({
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "spec": {"selector": wanted},
        });
        let params = managed_by(manager);
        let patch = Patch::Merge(&patch);
        let written = self.0.write(api.patch(name, &params, &patch)).await?;
        Ok(shown(&services(), &written))
    }

    /// Creates a ControllerRevision.
    ///
    /// # Errors
    /// Why it was not created. [`Error::Changed`] if it already exists.
    pub async fn keep(&self, key: &Key, revision: &Json) -> Result<WrittenObject, Error> {
        let kind = revisions::resource();
        let api = self.0.api(&key.namespace, &kind)?;
        let object = serde_json::from_value(revision.clone());
        let object: DynamicObject = object.expect("it is written as an object");
        let params = PostParams::default();
        let written = self.0.write(api.create(&params, &object)).await?;
        Ok(shown(&kind, &written))
    }

    /// Deletes an object, if it is still the same. It may already be gone.
    ///
    /// # Errors
    /// Why it was not deleted.
    pub async fn delete(&self, kind: &ApiResource, object: &Object) -> Result<(), Error> {
        let metadata = &object.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let api = self.0.api(namespace, kind)?;
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone(),
            }),
            ..DeleteParams::background()
        };
        let deleted = async { api.delete(name, &params).await.map(|_| ()) };
        match self.0.write(deleted).await {
            Err(Error::Refused(error)) if status_code(&error) == Some(404) => Ok(()),
            other => other,
        }
    }

    /// Marks a pod to be removed first when its Deployment shrinks, if it is still the same.
    ///
    /// # Errors
    /// Why it was not marked.
    pub async fn mark(&self, pod: &Object, manager: &str) -> Result<WrittenObject, Error> {
        let metadata = &pod.metadata;
        let kind = workloads::pods_resource();
        let api = self
            .0
            .api(metadata.namespace.as_deref().unwrap_or_default(), &kind)?;
        let params = managed_by(manager);
        // Its resourceVersion changes with its status.
        let patch = json!({
            "metadata": {"uid": metadata.uid, "annotations": workloads::mark()},
        });
        let patch = Patch::Merge(&patch);
        let written = api.patch(objects::name_of(pod), &params, &patch);
        let written = self.0.write(written).await?;
        Ok(shown(&kind, &written))
    }

    /// Deletes a pod, if it is still the same. It may already be gone.
    ///
    /// # Errors
    /// Why it was not deleted.
    pub async fn delete_pod(&self, pod: &Object) -> Result<(), Error> {
        let mut pod = DynamicObject::clone(pod);
        // Its status changes all the time.
        pod.metadata.resource_version = None;
        let pod = Arc::new(pod);
        self.delete(&workloads::pods_resource(), &pod).await
    }

    /// Scales a Deployment or StatefulSet to zero, if it is still the same.
    ///
    /// # Errors
    /// Why it was not scaled.
    pub async fn to_zero(
        &self,
        kind: &ApiResource,
        object: &Object,
        manager: &str,
    ) -> Result<(), Error> {
        let metadata = &object.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let api = self.0.api(namespace, kind)?;
        let params = managed_by(manager);
        let version = metadata.resource_version.as_deref().unwrap_or_default();
        let patch = scale_patch(version, 0);
        let patch = Patch::Merge(&patch);
        let written = api.patch_scale(name, &params, &patch);
        self.0.write(written).await.map(|_| ())
    }

    /// Scales the frontends of a graph to zero, if it is still the same.
    ///
    /// # Errors
    /// Why they were not scaled.
    pub async fn frontends_to_zero(&self, graph: &Object, manager: &str) -> Result<(), Error> {
        let metadata = &graph.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let api = self.0.api(namespace, &workloads::graphs())?;
        let params = managed_by(manager);
        let mut patch = workloads::frontends_to_zero(graph);
        patch["metadata"] = json!({"resourceVersion": metadata.resource_version});
        let patch = Patch::Merge(&patch);
        self.0
            .write(api.patch(name, &params, &patch))
            .await
            .map(|_| ())
    }
}

/// A patch in the name of `manager`.
fn managed_by(manager: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    }
}

fn scale_patch(version: &str, size: u32) -> Json {
    json!({"metadata": {"resourceVersion": version}, "spec": {"replicas": size}})
}

fn shown(kind: &ApiResource, object: &DynamicObject) -> WrittenObject {
    WrittenObject {
        kind: kind.kind.clone(),
        name: object.metadata.name.clone().unwrap_or_default(),
        version: resource_version(object),
    }
}

/// Now, to the second, as the API server keeps it.
pub(super) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
