//! The reports of an update's own proxies.

use std::sync::Arc;
use std::time::Instant;

use super::super::Key;
use super::super::limits::Limits;
use super::super::old_frontends;
use super::super::parsed::ParsedUpdate;
use super::super::poller::{Pace, Pollers};
use super::super::proxies::{self, LastReport, ProxyReport};
use super::{Observed, Observer, ProxyPod};
use crate::k8s::Object;
use crate::k8s::workloads::pod_is_ready;
use crate::rollout::{Experience, Lengths, ObservedProxy, ProxyState, Sides, Silence};

/// The reports of all proxies together.
pub(super) struct ProxyReports {
    pub proxies: Vec<ObservedProxy>,
    pub assigned: Sides<u64>,
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
        let follow = |pod: &Object| {
            let proxy_pod = ProxyPod {
                pod: pod.metadata.name.clone().unwrap_or_default(),
                ready: pod_is_ready(pod),
                address: old_frontends::address_of(pod, &self.settings.proxies.port),
            };
            let address = proxy_pod.address.as_ref();
            let last = address.and_then(|address| self.last_report(&self.proxies, key, address));
            (proxy_pod, last)
        };
        let reports: Vec<_> = pods.iter().map(follow).collect();
        let proxy_pods: Arc<[ProxyPod]> = reports.iter().map(|(one, _)| one.clone()).collect();
        let addresses = proxy_pods.iter().filter_map(|one| one.address.clone());
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
        let mut assigned = Sides::default();
        let mut lengths = Lengths::default();
        let followed = self.follow_pods(&parsed.key, pods);
        let proxies = followed.into_iter().map(|(proxy_pod, last)| {
            let state = match last {
                None if proxy_pod.address.is_some() => Err(Silence::TooMany(Limits::MAX_PROXIES)),
                None => Err(Silence::NoPort(self.settings.proxies.port.clone())),
                Some(Err(since)) if !Observed::misses(early_until, since) => Err(Silence::NotYet),
                Some(Err(_)) => Err(Silence::NoAnswer),
                Some(Ok(last)) => last.report().ok_or(Silence::NoAnswer).map(|report| {
                    assigned.old += report.assigned.old;
                    assigned.new += report.assigned.new;
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
