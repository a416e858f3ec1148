//! The replicas of a part, by its pods.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;

use super::PodsOf;
use crate::k8s::cache::Object;
use crate::k8s::workloads::object::{is_selected, label, pod_has_ended, pod_is_ready};

impl PodsOf {
    /// Those among `pods` that have not ended.
    pub(super) fn among<'a>(&self, pods: &'a [Object]) -> impl Iterator<Item = &'a Object> {
        let is_meant = |pod: &&Object| is_selected(pod, &self.labels) && !pod_has_ended(pod);
        pods.iter().filter(is_meant)
    }
}

/// The replicas that some pods form.
pub(super) struct Replicas {
    pub present: u32,
    pub terminating: u32,
    pub ready_since: Vec<Timestamp>,
}

impl Replicas {
    pub fn of(of: &PodsOf, pods: &[Object]) -> Self {
        let mut replicas: BTreeMap<String, Vec<&Object>> = BTreeMap::new();
        for pod in of.among(pods) {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let replica = of.replica.and_then(|replica| label(pod, replica));
            let replica = replica.unwrap_or(name).to_owned();
            replicas.entry(replica).or_default().push(pod);
        }
        let ends =
            |pods: &[&Object]| { pods.iter() }.any(|pod| pod.metadata.deletion_timestamp.is_some());
        let terminating = replicas.values().filter(|pods| ends(pods)).count() as u32;
        let ready_since = replicas.values().filter_map(|pods| {
            let since = pods.iter().map(|pod| ready_since(pod));
            since.collect::<Option<Vec<_>>>()?.into_iter().max()
        });
        Self {
            present: replicas.len() as u32 - terminating,
            terminating,
            ready_since: ready_since.collect(),
        }
    }
}

/// Since when a pod has been ready, if it is.
pub(in crate::k8s::workloads) fn ready_since(pod: &DynamicObject) -> Option<Timestamp> {
    if !pod_is_ready(pod) {
        return None;
    }
    let conditions = pod.data.pointer("/status/conditions")?.as_array()?;
    let ready = conditions
        .iter()
        .find(|condition| condition["type"] == "Ready")?;
    let since = ready["lastTransitionTime"].as_str();
    // A pod without this time counts as ready for a long time.
    Some(
        since
            .and_then(|since| since.parse().ok())
            .unwrap_or(Timestamp::UNIX_EPOCH),
    )
}
