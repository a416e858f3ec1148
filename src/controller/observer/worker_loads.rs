//! Observes how many requests each worker is working on.

use std::collections::{BTreeMap, BTreeSet};

use super::super::old_frontends::address_of;
use super::super::poller::Pace;
use super::super::{Key, worker_load};
use super::Observer;
use crate::k8s::Object;

/// Maximum number of workers polled per rollout.
const MAX_POLLED: usize = 256;

impl Observer {
    /// The requests of each of these workers, by the name of its pod. Polls exactly these workers from now on. Leaves out a
    /// worker that does not report its requests.
    pub fn worker_loads(&self, rollout: &Key, pods: &[Object]) -> BTreeMap<String, u64> {
        let mut polled = BTreeSet::new();
        let mut loads = BTreeMap::new();
        for pod in pods.iter().take(MAX_POLLED) {
            let mut ports = worker_load::PORTS.iter();
            let target = ports.find_map(|port| address_of(pod, port)?.parse().ok());
            let Some(target) = target else {
                continue;
            };
            let frontend = self.address(target, None);
            let name = self.polled_as(&frontend, &rollout.namespace);
            let served = self.loads.poll(
                rollout,
                &name,
                Pace::Normal,
                || self.limits.share(&rollout.namespace),
                |sink, share| worker_load::follow(frontend, share, sink),
            );
            polled.insert(name);
            let pod = pod.metadata.name.clone().unwrap_or_default();
            if let Some(Ok(Some(load))) = served {
                loads.insert(pod, load);
            }
        }
        self.loads.keep(rollout, &polled);
        loads
    }
}
