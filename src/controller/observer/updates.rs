//! Finds what uses old's frontends as its new generation: updates, and proxies that follow an earlier plan.
//!
//! Anything that cannot be listed, or does not state its target, is unknown. Contains no policy.

use std::collections::BTreeSet;

use kube::CustomResourceExt;
use serde_json::json;

use super::super::parsed::{self, ParsedUpdate};
use super::Observer;
use super::kinds::services;
use super::old_pods::OldPods;
use super::other_proxies::OtherProxies;
use super::route_match::services_of_host;
use super::services::ServicesToOld;
use crate::k8s::{NotSynced, Object, Scope};
use crate::resource::status::UpdatePhase;
use crate::resource::{DynamoUpdateConfig, Host, TargetAddress, TargetScope};

impl Observer {
    /// What uses old's frontends as its new generation, if known.
    pub(super) fn updates_to_old(
        &self,
        parsed: &ParsedUpdate,
        old: &OldPods,
        to_old: &ServicesToOld,
        updates: &[Object],
    ) -> Option<Vec<String>> {
        let others = self.other_proxies(parsed, old, to_old)?;
        let mut found = Vec::new();
        let own = &parsed.key.namespace;
        if self.lead_to(&parsed.plan.new, own, old, to_old).ok()? {
            found.push("this one, by spec.newFrontendService".to_owned());
        }
        // The proxies of another namespace may run with --kube-allow-any-target, so their updates may name any target.
        let elsewhere = match self.settings.sees {
            Scope::All => self.cache.all(&DynamoUpdateConfig::api_resource()).ok()?,
            Scope::Namespace(_) => Vec::new(),
        };
        let elsewhere = elsewhere
            .iter()
            .filter(|update| update.metadata.namespace.as_ref() != Some(own));
        let is_this = |update: &&Object| update.metadata.uid == parsed.identity.uid;
        let mut rests_on = BTreeSet::new();
        let all = updates.iter().chain(elsewhere);
        self.update_targets.keep(all.clone());
        for update in all.filter(|update| !is_this(update)) {
            if self.sends_to(update, parsed, &others, (old, to_old), &mut rests_on)? {
                found.push(parsed::key(update).name_relative_to(&parsed.key));
            }
        }
        self.rests_on(&parsed.key, rests_on);
        found.extend(others.found);
        Some(found)
    }

    /// Whether another update sends requests to the frontends of old. `None` if unknown. Adds the namespace of an update that
    /// would, if it had proxies.
    fn sends_to(
        &self,
        update: &Object,
        parsed: &ParsedUpdate,
        others: &OtherProxies,
        (old, to_old): (&OldPods, &ServicesToOld),
        rests_on: &mut BTreeSet<String>,
    ) -> Option<bool> {
        let key = parsed::key(update);
        let uid = update.metadata.uid.as_ref();
        let is_followed = uid.is_some_and(|uid| others.follow.contains(uid));
        let is_elsewhere = key.namespace != parsed.key.namespace;
        // Without frontends, and if no proxy reports that it follows the update, none is known to send requests.
        let mut has_proxies = |source: Option<&str>| {
            let pods = self.frontend_pods(&key, source.unwrap_or_default());
            let namespace = BTreeSet::from([key.namespace.clone()]);
            // The absence of frontends elsewhere must be confirmed separately.
            let is_unknown = is_elsewhere && !self.cache.are_confirmed(&namespace);
            rests_on.extend(namespace);
            pods.ok()
                .map(|pods| is_followed || !pods.is_empty() || is_unknown)
        };
        // Its proxies may be where nobody looks for them: in pods without labels, or outside the cluster. Only once an update is
        // complete have all of them been seen, so only then does it prove something that none is left.
        let status = &update.data["status"];
        let is_complete = status["phase"] == json!(UpdatePhase::Complete)
            && status["observedGeneration"] == json!(update.metadata.generation);
        let scope = TargetScope {
            namespace: key.namespace.clone(),
            domain: self.settings.domain.clone(),
            anywhere: is_elsewhere || self.settings.any_target,
        };
        let lead = self.update_targets.of(update, &scope);
        let source = lead.source.as_deref();
        let leads_to_old = || {
            self.lead_to(&lead.targets, &key.namespace, old, to_old)
                .ok()
        };
        let leads = match lead.is_usable {
            true => {
                let is_meant =
                    !is_elsewhere && lead.target_deployment == parsed.spec.source_deployment;
                lead.gives && (is_meant || leads_to_old()?)
            }
            // The last usable plan stays in force.
            false => leads_to_old()?,
        };
        if leads {
            return Some(!is_complete || has_proxies(source)?);
        }
        // If an unusable update of another namespace counted, anyone could keep the flags of all other updates false.
        if lead.is_usable || is_elsewhere {
            return Some(false);
        }
        (!has_proxies(source)?).then_some(false)
    }

    /// Whether a pod of `old` is behind one of these targets of a plan in `namespace`.
    pub(super) fn lead_to(
        &self,
        targets: &[TargetAddress],
        namespace: &str,
        old: &OldPods,
        to_old: &ServicesToOld,
    ) -> Result<bool, NotSynced> {
        for target in targets {
            let leads = match &target.host {
                Host::Ip(address) => {
                    let address = address.to_canonical();
                    old.listen_at(address, target.port)
                        || old.listen_at_node(address, target.port)
                        || to_old.has_address(address)
                        || to_old.has_node_port(target.port)
                }
                Host::Name(name) => {
                    let domain = &self.settings.domain;
                    to_old.has_host(name, namespace, old, domain)
                        // A name of anything else may be that of a node.
                        || (to_old.has_node_port(target.port)
                            && !self.is_service(name, namespace)?)
                }
            };
            let mut endpoints = self.endpoints_of(target)?.into_iter().flatten();
            if leads || endpoints.any(|endpoint| old.has(endpoint.pod.as_deref(), endpoint.ip)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_service(&self, name: &str, namespace: &str) -> Result<bool, NotSynced> {
        let found = services_of_host(name, namespace, &self.settings.domain);
        let Some((namespace, name)) = found.first() else {
            return Ok(false);
        };
        Ok(self.cache.one(&services(), namespace, name)?.is_some())
    }
}
