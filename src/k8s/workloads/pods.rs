//! Pods, by Dynamo's labels or by an explicit selector. A replica that spans several nodes is several pods and one worker,
//! ready when all of them are.

use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};

use super::object::{is_selected, label, pod_has_ended, pod_is_ready, role};
use super::{Counts, GRAPH, Shelves, Unseen, WORKER_HASH, Which, Workload};
use crate::k8s::shelves::Object;
use crate::rollout::Role;

pub(super) struct Pods;

impl Workload for Pods {
    fn kind(&self) -> &'static str {
        "Pod"
    }

    fn count(&self, shelves: &Shelves, which: &Which) -> Result<Counts, Unseen> {
        let mut pods = shelves.of(&resource(), &which.namespace)?;
        pods.retain(|pod| {
            let is_meant = match which.selector.is_empty() {
                true => label(pod, GRAPH) == Some(&which.name),
                false => is_selected(pod, &which.selector),
            };
            is_meant
                && which
                    .revision
                    .as_deref()
                    .is_none_or(|hash| label(pod, WORKER_HASH) == Some(hash))
        });
        Ok(count(&pods))
    }
}

pub(super) fn resource() -> ApiResource {
    super::resource("", "v1", "Pod", "pods")
}

/// The workers that these pods make.
pub(super) fn count(pods: &[Object]) -> Counts {
    // By role and replica: how many pods, how many of them ready, how many there should be.
    let mut replicas: BTreeMap<(Role, String), (usize, usize, usize)> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod_has_ended(pod)) {
        let Some(role) = role(pod) else { continue };
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let (replica, size) = replica(pod);
        let counted = replicas.entry((role, replica)).or_insert((0, 0, size));
        counted.0 += 1;
        counted.1 += usize::from(pod_is_ready(pod));
    }
    let mut counts = Counts::new();
    for ((role, _), (pods, ready, size)) in replicas {
        let workers = counts.entry(role).or_default();
        workers.desired += 1;
        workers.ready += u32::from(ready == pods && ready >= size);
    }
    counts
}

/// Which replica a pod belongs to, and of how many pods that is made, as far as it is known.
fn replica(pod: &DynamicObject) -> (String, usize) {
    const LWS: &str = "leaderworkerset.sigs.k8s.io";
    if let Some(group) = label(pod, &format!("{LWS}/group-key")) {
        let annotations = pod.metadata.annotations.as_ref();
        let size = annotations.and_then(|notes| notes.get(&format!("{LWS}/size"))?.parse().ok());
        return (group.to_owned(), size.unwrap_or(1));
    }
    let group = label(pod, super::pod_clique::GROUP);
    let index = label(pod, "grove.io/podcliquescalinggroup-replica-index");
    if let (Some(group), Some(index)) = (group, index) {
        return (format!("{group}/{index}"), 1);
    }
    (pod.metadata.name.clone().unwrap_or_default(), 1)
}
