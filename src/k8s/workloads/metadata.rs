//! DynamoWorkerMetadata (nvidia.com/v1alpha1) of pods, by Dynamo namespace: the same data that the frontends read. Each object
//! has the name of its pod, and `spec.data` has no fixed schema. A worker is a pod with an endpoint named `generate`.

use serde_json::Value as Json;

use super::{Cache, Counts, NotSynced, WorkerQuery, Workload, object, pods};
use crate::k8s::kinds::api_resource;
use crate::rollout::{Role, Workers};

pub(super) struct Metadata;

impl Workload for Metadata {
    fn kind(&self) -> &'static str {
        "DynamoWorkerMetadata"
    }

    fn count(&self, cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
        if let Some(revision) = &which.revision {
            return Err(NotSynced::Ambiguous(format!(
                "DynamoWorkerMetadata has no revision such as {revision}: name the Dynamo namespace of the generation"
            )));
        }
        let (kind, plural) = (self.kind(), "dynamoworkermetadatas");
        let kind = api_resource("nvidia.com", "v1alpha1", kind, plural);
        let mut counts = Counts::new();
        for object in cache.of(&kind, &which.namespace)? {
            let Some(by_endpoint) = role(&object.data["spec"]["data"], &which.name) else {
                continue;
            };
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let pod = cache.one(&pods::resource(), &which.namespace, name)?;
            let Some(pod) = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()) else {
                continue;
            };
            let labelled = object::label(&pod, super::COMPONENT).and_then(|_| object::role(&pod));
            let workers = Workers {
                ready: u32::from(object::pod_is_ready(&pod)),
                desired: 1,
            };
            object::add(&mut counts, labelled.unwrap_or(by_endpoint), workers);
        }
        Ok(counts)
    }
}

/// The role of a pod in this Dynamo namespace, from the component of its first `generate` endpoint.
fn role(data: &Json, namespace: &str) -> Option<Role> {
    let endpoints = data["endpoints"].as_object()?;
    let mut own = endpoints.values().filter(|endpoint| {
        endpoint["namespace"] == namespace && endpoint["endpoint"] == "generate"
    });
    let component = own.next()?["component"].as_str().unwrap_or_default();
    Some(match component {
        "prefill" => Role::Prefill,
        "decode" => Role::Decode,
        _ => Role::Worker,
    })
}
