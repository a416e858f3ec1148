//! Finds what uses old's frontends as its new generation: updates, and proxies that follow an earlier plan.
//!
//! Anything that cannot be listed, or does not state its target, is unknown. Contains no policy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::CustomResourceExt;
use serde_json::json;

use super::super::Key;
use super::super::old_frontends::{self, is_alive};
use super::super::parsed::{self, ParsedUpdate};
use super::Observer;
use super::kinds::{pods, services};
use super::old_pods::OldPods;
use super::other_proxies::OtherProxies;
use super::route_match::services_of_host;
use super::services::ServicesToOld;
use super::update_targets::UpdateTargets;
use crate::k8s::{NotSynced, Object, Scope};
use crate::resource::status::UpdatePhase;
use crate::resource::{DynamoUpdateConfig, Host, TargetAddress, TargetScope};

/// Whether an update is complete. Its proxies may be where nobody looks for them: in pods without labels, or outside the cluster.
/// Only once it is complete have all of them been seen, so only then does it prove something that none is left.
fn is_complete(update: &Object) -> bool {
    let status = &update.data["status"];
    status["phase"] == json!(UpdatePhase::Complete)
        && status["observedGeneration"] == json!(update.metadata.generation)
}

impl Observer {
    /// What uses old's frontends as its new generation, if known. `unlabelled` are those of `old` that no label marks as
    /// frontends: only here are their proxies polled.
    pub(super) fn updates_to_old(
        &self,
        parsed: &ParsedUpdate,
        old: &OldPods,
        to_old: &ServicesToOld,
        updates: &[Object],
        unlabelled: Vec<Object>,
    ) -> Option<Vec<String>> {
        let mut rests_on = BTreeSet::new();
        let old = (old, unlabelled);
        let found = self.find_updates_to_old(parsed, old, to_old, updates, &mut rests_on);
        match found {
            Some(_) => self.rests_on(&parsed.key, rests_on),
            // The missing confirmation of a namespace may be why it is unknown, and not all namespaces may have been reached.
            None => self.also_rests_on(&parsed.key, rests_on),
        }
        found
    }

    fn find_updates_to_old(
        &self,
        parsed: &ParsedUpdate,
        (old, unlabelled): (&OldPods, Vec<Object>),
        to_old: &ServicesToOld,
        updates: &[Object],
        rests_on: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        let own = &parsed.key.namespace;
        // The proxies of another namespace may run with --kube-allow-any-target, so their updates may name any target.
        let elsewhere = match self.settings.watched_scope {
            Scope::All => self.cache.all(&DynamoUpdateConfig::api_resource()).ok()?,
            Scope::Namespace(_) => Vec::new(),
        };
        let elsewhere = elsewhere
            .iter()
            .filter(|update| update.metadata.namespace.as_ref() != Some(own));
        let all = updates.iter().chain(elsewhere.clone());
        self.update_targets.keep(all.clone());
        let mut elsewhere = self.proxies_elsewhere(parsed, elsewhere, rests_on).ok()?;
        elsewhere.extend(unlabelled);
        let others = self.other_proxies(parsed, elsewhere, old, to_old)?;
        let mut found = Vec::new();
        if self.lead_to(&parsed.plan.new, own, old, to_old).ok()? {
            found.push("this one, by spec.newFrontendService".to_owned());
        }
        let is_this = |update: &&Object| update.metadata.uid == parsed.identity.uid;
        for update in all.filter(|update| !is_this(update)) {
            if self.sends_to(update, parsed, &others, (old, to_old), rests_on)? {
                found.push(parsed::key(update).name_relative_to(&parsed.key));
            }
        }
        found.extend(others.found);
        Some(found)
    }

    /// The pods whose proxies may follow an earlier plan of an update of another namespace. What the update names does not show
    /// where they send requests: a proxy that cannot use the last edit, or has not received it, keeps its plan.
    fn proxies_elsewhere<'a>(
        &self,
        parsed: &ParsedUpdate,
        elsewhere: impl Iterator<Item = &'a Object>,
        rests_on: &mut BTreeSet<String>,
    ) -> Result<Vec<Object>, NotSynced> {
        let mut found = BTreeMap::new();
        // According to the user, nothing of another namespace leads to old.
        if self.settings.options.assume_isolated {
            return Ok(Vec::new());
        }
        // All proxies of a complete update have applied its last edit.
        for update in elsewhere.filter(|update| !is_complete(update)) {
            let key = parsed::key(update);
            rests_on.insert(key.namespace.clone());
            let port = &self.settings.options.proxies.port;
            let mut polled = self.cache.of(&pods(), &key.namespace)?;
            polled.retain(|pod| is_alive(pod) && !old_frontends::ports(pod, port).is_empty());
            // An earlier edit may have named other frontends, so these are not all of its proxies.
            let sources = &self.lead_of(update, parsed).sources;
            polled.extend(self.frontends_of(&key, sources)?);
            found.extend(polled.into_iter().map(|pod| (parsed::key(&pod), pod)));
        }
        Ok(found.into_values().collect())
    }

    /// The frontends of all these deployments.
    fn frontends_of(
        &self,
        key: &Key,
        sources: &BTreeSet<String>,
    ) -> Result<Vec<Object>, NotSynced> {
        if sources.is_empty() {
            return self.frontend_pods(key, "");
        }
        let mut found = Vec::new();
        for source in sources {
            found.extend(self.frontend_pods(key, source)?);
        }
        Ok(found)
    }

    /// Where another update sends requests.
    fn lead_of(&self, update: &Object, parsed: &ParsedUpdate) -> Arc<UpdateTargets> {
        let key = parsed::key(update);
        let scope = TargetScope {
            anywhere: key.namespace != parsed.key.namespace
                || self.settings.options.allow_any_target,
            namespace: key.namespace,
            domain: self.settings.options.domain.clone(),
        };
        self.update_targets.of(update, &scope)
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
        let namespace = BTreeSet::from([key.namespace.clone()]);
        let mut has_proxies = |sources: &BTreeSet<String>| {
            let pods = self.frontends_of(&key, sources);
            // The absence of frontends elsewhere must be confirmed separately.
            let is_unknown = is_elsewhere && !self.cache.are_confirmed(&namespace);
            rests_on.extend(namespace.clone());
            pods.ok()
                .map(|pods| is_followed || !pods.is_empty() || is_unknown)
        };
        let is_complete = is_complete(update);
        let lead = self.lead_of(update, parsed);
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
            return Some(!is_complete || has_proxies(&lead.sources)?);
        }
        if lead.is_usable {
            return Some(false);
        }
        // If an unusable update of another namespace counted by itself, anyone could keep the flags of all other updates false.
        // Its visible proxies have been polled instead; that there are no others must be confirmed.
        if is_elsewhere {
            let is_known =
                self.settings.options.assume_isolated || self.cache.are_confirmed(&namespace);
            return is_known.then_some(false);
        }
        (!has_proxies(&lead.sources)?).then_some(false)
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
                    let domain = &self.settings.options.domain;
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
        let found = services_of_host(name, namespace, &self.settings.options.domain);
        let Some((namespace, name)) = found.first() else {
            return Ok(false);
        };
        Ok(self.cache.one(&services(), namespace, name)?.is_some())
    }
}
