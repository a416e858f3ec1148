//! Asks the proxies of other frontends for the targets of their plans. A proxy may follow the plan of an update that was deleted,
//! or an earlier edit of one, so the existing updates are not enough.
//!
//! Does not decide what follows from the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::super::old_frontends::{self, is_alive};
use super::super::parsed::{self, ParsedUpdate};
use super::super::proxies::ProxyReport;
use super::Observer;
use super::kinds::pods;
use super::old_pods::{OldPods, addresses};
use super::services::ServicesToOld;
use crate::k8s::{NotSynced, Object};
use crate::resource::{Host, TargetAddress};

/// Maximum number of proxies that are asked for one update. Each costs a connection, and a namespace's users can add pods.
const MAX_POLLED: usize = 1024;

/// The proxies of other frontends.
#[derive(Default)]
pub(super) struct OtherProxies {
    /// The proxies that lead to old, or do not report where they lead, as text for users.
    pub found: Vec<String>,
    /// `metadata.uid` of the updates that they follow.
    pub follow: BTreeSet<String>,
}

/// A pod with a proxy that is asked.
struct PolledProxy {
    pod: String,
    namespace: String,
    address: String,
}

impl Observer {
    /// Asks all proxies of the namespace except old's own, those of new's frontends in any namespace, and those of `more`, of
    /// which each counts even without a proxy. `None` if one of them may still answer, or something is not listed.
    pub(super) fn other_proxies(
        &self,
        parsed: &ParsedUpdate,
        more: Vec<Object>,
        old: &OldPods,
        to_old: &ServicesToOld,
    ) -> Option<OtherProxies> {
        let pods = self.pods_that_may_lead_to_old(parsed, old).ok()?;
        let port = &self.settings.options.proxies.port;
        let mut others = OtherProxies {
            found: self.proxies_without_port(parsed, &pods)?,
            ..OtherProxies::default()
        };
        let mut polled = Vec::new();
        let shared = self.shared_addresses(parsed, &pods, &more).ok()?;
        let has_port = |pod: &&Object| !old_frontends::ports(pod, port).is_empty();
        for pod in pods.iter().filter(has_port).chain(&more) {
            let name = parsed::key(pod).name_relative_to(&parsed.key);
            match old_frontends::address_of(pod, port) {
                Some(address) if !shared.contains(&address) => polled.push(PolledProxy {
                    pod: name,
                    namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                    address,
                }),
                // It has several such ports, or another pod may answer instead.
                _ => others.found.push(unknown(&name)),
            }
        }
        if polled.len() > MAX_POLLED {
            let more = polled.len() - MAX_POLLED;
            let name = format!("{more} more proxies, which are too many to query");
            others.found.push(name);
            polled.truncate(MAX_POLLED);
        }
        let mut is_known = true;
        for one in &polled {
            let Some(last) = self.last_report(&self.other_proxies, &parsed.key, &one.address)
            else {
                let name = format!(
                    "the proxy of {}, which is not queried because there are too many",
                    one.pod
                );
                others.found.push(name);
                continue;
            };
            match last.map(|last| last.report()) {
                Err(_) => is_known = false,
                Ok(Some(report)) => {
                    if follows(&report, parsed) && may_send_to_old(&report) {
                        others.found.push(format!(
                            "the proxy of {}, which follows this update and still uses old",
                            one.pod
                        ));
                    }
                    self.note(&mut others, parsed, one, report, (old, to_old))?;
                }
                Ok(None) => others.found.push(unknown(&one.pod)),
            }
        }
        let addresses = polled.into_iter().map(|one| one.address);
        self.other_proxies.keep(&parsed.key, &addresses.collect());
        is_known.then_some(others)
    }

    /// The addresses that several pods in the namespaces of the update and of these pods report.
    fn shared_addresses(
        &self,
        parsed: &ParsedUpdate,
        others: &[Object],
        frontends: &[Object],
    ) -> Result<BTreeSet<String>, NotSynced> {
        let of_pods = others.iter().chain(frontends);
        let of_pods = of_pods.filter_map(|pod| pod.metadata.namespace.as_ref());
        let namespaces: BTreeSet<&String> = of_pods.chain([&parsed.key.namespace]).collect();
        let mut all = Vec::new();
        for namespace in namespaces {
            all.extend(self.cache.of(&pods(), namespace)?);
        }
        let port = &self.settings.options.proxies.port;
        Ok(old_frontends::shared_addresses(&all, port))
    }

    fn note(
        &self,
        others: &mut OtherProxies,
        parsed: &ParsedUpdate,
        one: &PolledProxy,
        report: ProxyReport,
        (old, to_old): (&OldPods, &ServicesToOld),
    ) -> Option<()> {
        let targets = reported_targets(&report, parsed);
        others.follow.extend(report.uid);
        let leads = targets.map(|targets| self.lead_to(&targets, &one.namespace, old, to_old));
        match leads.transpose().ok()? {
            None => others.found.push(unknown(&one.pod)),
            Some(true) => others.found.push(format!("the proxy of {}", one.pod)),
            Some(false) => {}
        }
        Some(())
    }

    /// The live pods of the namespace except old's, and the pods behind new's Services in other namespaces.
    fn pods_that_may_lead_to_old(
        &self,
        parsed: &ParsedUpdate,
        old: &OldPods,
    ) -> Result<Vec<Object>, NotSynced> {
        let own = &parsed.key.namespace;
        let mut found = self.cache.of(&pods(), own)?;
        found.retain(|pod| {
            let name = pod.metadata.name.as_deref();
            is_alive(pod) && !old.has(name, None)
        });
        for target in &parsed.plan.new {
            let elsewhere = { target.service(&self.settings.options.domain) }
                .filter(|(_, namespace)| namespace != own);
            let Some((_, namespace)) = elsewhere else {
                continue;
            };
            let endpoints = self.endpoints_of(target)?.into_iter().flatten();
            let names: BTreeSet<String> = endpoints.filter_map(|endpoint| endpoint.pod).collect();
            let pods = self.cache.of(&pods(), namespace)?;
            found.extend(pods.into_iter().filter(|pod| {
                let name = pod.metadata.name.as_ref();
                is_alive(pod) && name.is_some_and(|name| names.contains(name))
            }));
        }
        Ok(found)
    }

    /// The frontends of new whose responses come through a proxy without an admin port to ask.
    fn proxies_without_port(&self, parsed: &ParsedUpdate, pods: &[Object]) -> Option<Vec<String>> {
        let port = &self.settings.options.proxies.port;
        let mut has_port: BTreeMap<IpAddr, bool> = BTreeMap::new();
        for pod in pods {
            for address in addresses(pod) {
                *has_port.entry(address).or_default() |=
                    old_frontends::address_of(pod, port).is_some();
            }
        }
        let mut found = Vec::new();
        for frontend in self.new_frontends(parsed).ok()? {
            let polled = self.polled_as(&frontend, &parsed.key.namespace);
            let is_proxied = self
                .models
                .last(&polled)
                .is_some_and(|served| served.is_proxied);
            let address = match (frontend.address, &frontend.target.host) {
                (Some(address), _) => Some(address.ip()),
                (None, Host::Ip(address)) => Some(*address),
                (None, Host::Name(_)) => None,
            };
            let can_be_polled = address.is_some_and(|ip| has_port.get(&ip) == Some(&true));
            if is_proxied && !can_be_polled {
                found.push(format!(
                    "a proxy in front of {}, whose pod has no port {port}",
                    frontend.target
                ));
            }
        }
        Some(found)
    }
}

fn follows(report: &ProxyReport, parsed: &ParsedUpdate) -> bool {
    report.uid.is_some() && report.uid == parsed.identity.uid
}

/// The targets to which a proxy may send requests; `None` if it does not report them. Its own old is among them, because an
/// operator chooses it without any update: it may be old's frontends. If it follows this update, that is checked separately.
fn reported_targets(report: &ProxyReport, parsed: &ParsedUpdate) -> Option<Vec<TargetAddress>> {
    let mut reported = Vec::new();
    if report.gives_new {
        if report.new_targets.is_empty() {
            return None;
        }
        reported.extend(&report.new_targets);
    }
    match &report.fixed_targets {
        Some(fixed) => {
            reported.extend(&fixed.peers);
            if may_send_to_old(report) && !follows(report, parsed) {
                reported.extend(&fixed.old);
            }
        }
        None if may_send_to_old(report) => return None,
        None => {}
    }
    let targets = reported.into_iter().map(|target| target.parse().ok());
    targets.collect()
}

/// Whether a proxy uses its old, or may do so.
fn may_send_to_old(report: &ProxyReport) -> bool {
    let has_left = report.leaves_old && report.old_drains && report.may_reach_old == Some(0);
    !has_left || report.open.old > 0
}

fn unknown(pod: &str) -> String {
    format!("{pod}, whose proxy does not report where it routes")
}
