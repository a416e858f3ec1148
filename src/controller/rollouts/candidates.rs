//! The pods among which a rollout chooses when it removes workers.

use std::collections::HashMap;

use super::super::Key;
use super::super::observer::Observer;
use super::objects;
use crate::k8s::workloads::{self, ScaleDownOrder, pod_is_ready};
use crate::k8s::{NotSynced, Object};
use crate::rollout::{PerGeneration, Role};
use crate::scaling::Pod;
use crate::split::Generation;

/// The pods of each role whose ready pods all report their requests; those with the fewest requests are removed first. Empty, and
/// no worker is polled, unless pods must be chosen now.
///
/// # Errors
/// When pods are not listed.
pub(super) fn candidates(
    observer: &Observer,
    rollout: &Key,
    chooses: bool,
    objects: &PerGeneration<objects::Objects>,
) -> Result<HashMap<(Generation, Role), Vec<Pod>>, NotSynced> {
    let pods = workloads::pods_resource();
    let all = observer.cache.of(&pods, &rollout.namespace)?;
    let mut roles: HashMap<_, Vec<Object>> = HashMap::new();
    for generation in Generation::ALL.into_iter().filter(|_| chooses) {
        for (role, (kind, scaled)) in objects.of(generation) {
            // With one pod, or if all are removed, there is nothing to choose.
            if scaled.removes == ScaleDownOrder::Unready && scaled.part.desired > 1 {
                roles.insert((generation, *role), scaled.pods(kind, &all));
            }
        }
    }
    let polled: Vec<Object> = roles.values().flatten().cloned().collect();
    let loads = observer.worker_loads(rollout, &polled);
    let candidate = |pod: &Object| {
        let name = objects::name_of(pod).to_owned();
        Pod {
            ready: pod_is_ready(pod),
            open_streams: loads.get(&name).copied(),
            marked: workloads::is_marked(pod),
            name,
        }
    };
    let roles = roles.into_iter().filter_map(|(role, pods)| {
        let pods: Vec<Pod> = pods.iter().map(candidate).collect();
        let is_known = pods
            .iter()
            .all(|pod| !pod.ready || pod.open_streams.is_some());
        (is_known && !pods.is_empty()).then_some((role, pods))
    });
    Ok(roles.collect())
}
