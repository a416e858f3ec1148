//! The reports of an update's own proxies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::super::Key;
use super::super::limits::Limits;
use super::super::old_frontends;
use super::super::parsed::ParsedUpdate;
use super::super::poller::{Pace, Pollers};
use super::super::proxies::{self, LastReport, ProxyReport};
use super::{Observed, Observer, ProxyPod, kinds};
use crate::k8s::Object;
use crate::k8s::workloads::pod_is_ready;
use crate::rollout::{Experience, Lengths, NoReport, ObservedProxy, PerGeneration, ProxyState};

/// The reports of all proxies together.
pub(super) struct ProxyReports {
    pub proxies: Vec<ObservedProxy>,
    pub assigned: PerGeneration<u64>,
    pub lengths: Lengths,
}

impl Observer {
    /// The last report of the proxy at `address`, which `pollers` follow from now on. `None` if there are too many.
    pub(super) fn last_report(
        &self,
        pollers: &Pollers<LastReport>,
        key: &Key,
        address: &str,
    ) -> Option<Result<LastReport, Instant>> {
        let owned = address.to_owned();
        let permit = || self.limits.proxy(&key.namespace);
        let follow = |sink, share| proxies::follow(owned, sink, share);
        pollers.poll(key, address, Pace::Normal, permit, follow)
    }

    /// Starts to follow the proxies in these pods. Returns the last report of each, or since when it is polled; `None` for a pod
    /// without the port, or beyond the limit.
    pub(super) fn follow_pods(
        &self,
        key: &Key,
        pods: &[Object],
    ) -> Vec<(ProxyPod, Option<Result<LastReport, Instant>>)> {
        let port = &self.settings.options.proxies.port;
        let all = self.cache.of(&kinds::pods(), &key.namespace);
        let shared = old_frontends::shared_addresses(&all.unwrap_or_else(|_| pods.to_vec()), port);
        let follow = |pod: &Object| {
            let proxy_pod = ProxyPod {
                pod: pod.metadata.name.clone().unwrap_or_default(),
                ready: pod_is_ready(pod),
                may_have_clients: old_frontends::may_have_clients(pod),
                address: admin_address(pod, port, &shared),
            };
            let address = proxy_pod.address.as_ref().ok();
            let last = address.and_then(|address| self.last_report(&self.proxies, key, address));
            (proxy_pod, last)
        };
        let reports: Vec<_> = pods.iter().map(follow).collect();
        let proxy_pods: Arc<[ProxyPod]> = reports.iter().map(|(one, _)| one.clone()).collect();
        let addresses = proxy_pods.iter().filter_map(|one| one.address.clone().ok());
        self.proxies.keep(key, &addresses.collect());
        self.known().insert(key.clone(), proxy_pods);
        reports
    }

    /// Follows the proxies in these pods, and returns their reports.
    pub(super) fn reports(
        &self,
        parsed: &ParsedUpdate,
        pods: &[Object],
        early_until: &mut Option<Instant>,
    ) -> ProxyReports {
        let mut assigned = PerGeneration::default();
        let mut lengths = Lengths::default();
        let followed = self.follow_pods(&parsed.key, pods);
        let proxies = followed.into_iter().map(|(proxy_pod, last)| {
            let state = match last {
                None => Err({ proxy_pod.address }
                    .err()
                    .unwrap_or(NoReport::TooMany(Limits::MAX_PROXIES))),
                Some(Err(since)) if !Observed::misses(early_until, since) => Err(NoReport::NotYet),
                Some(Err(_)) => Err(NoReport::NoAnswer),
                Some(Ok(last)) => last.report().ok_or(NoReport::NoAnswer).map(|report| {
                    assigned.old = u64::saturating_add(assigned.old, report.assigned.old);
                    assigned.new = u64::saturating_add(assigned.new, report.assigned.new);
                    lengths.add(&report.lengths);
                    state(parsed, &report, last.new_serves)
                }),
            };
            ObservedProxy {
                name: proxy_pod.pod,
                ready: proxy_pod.ready,
                state,
            }
        });
        let proxies = proxies.collect();
        ProxyReports {
            proxies,
            assigned,
            lengths,
        }
    }
}

/// The address of the admin port of a pod, whose name is `port`, unless it is one of `shared`.
fn admin_address(pod: &Object, port: &str, shared: &BTreeSet<String>) -> Result<String, NoReport> {
    match old_frontends::address_of(pod, port) {
        Some(address) if !shared.contains(&address) => Ok(address),
        None if old_frontends::ports(pod, port).len() != 1 => {
            Err(NoReport::NoPort(port.to_owned()))
        }
        _ => Err(NoReport::NoOwnAddress),
    }
}

/// The part of a proxy's report that concerns this update: a report about another update says nothing about this one.
fn state(parsed: &ParsedUpdate, report: &ProxyReport, new_serves: Experience) -> ProxyState {
    let is_own = report.uid.is_some() && report.uid == parsed.identity.uid;
    ProxyState {
        applied: if is_own { report.generation } else { 0 },
        leaves_old: report.leaves_old,
        old_drains: report.old_drains,
        may_reach_old: report.may_reach_old,
        open_streams: report.open,
        quiet_for: report.quiet_for,
        moving: report.moving,
        new_serves: if is_own { new_serves } else { Experience::None },
        new_is_impaired: is_own && report.new_is_impaired,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::k8s::object;

    #[test]
    fn a_pod_is_polled_only_at_an_address_of_its_own() {
        let ports = json!([{"name": "crossfade", "containerPort": 9464}]);
        let pod = |ports: &Json, status: Json| {
            let spec = json!({"containers": [{"ports": ports}]});
            object(json!({"metadata": {"name": "old-0"}, "spec": spec, "status": status}))
        };
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let own = pod(&ports, json!({"podIP": "10.0.0.1"}));
        let one = pod(&ports, json!({"podIP": "10.0.0.2"}));
        let other = pod(&ports, json!({"podIP": "10.0.0.2", "phase": "Running"}));
        let reused = pod(&ports, json!({"podIP": "10.0.0.1", "phase": "Succeeded"}));
        let nowhere = pod(&ports, ready.clone());
        let bare = pod(&json!([]), ready);
        let all = [own, one, other, reused, nowhere, bare];
        let shared = old_frontends::shared_addresses(&all, "crossfade");
        let [own, one, other, _, nowhere, bare] = &all;
        let address = |pod| admin_address(pod, "crossfade", &shared);
        assert_eq!(address(own).as_deref(), Ok("10.0.0.1:9464"));
        for pod in [one, other, nowhere] {
            assert_eq!(address(pod), Err(NoReport::NoOwnAddress), "{pod:?}");
        }
        assert_eq!(address(bare), Err(NoReport::NoPort("crossfade".to_owned())));
    }
}
