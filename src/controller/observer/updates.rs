//! Whatever sends requests to the frontends of old as its new generation: updates, and proxies that follow an earlier plan.
//!
//! Anything that cannot be listed, or does not state its target, is unknown. Contains no policy.

use kube::CustomResourceExt;
use kube::api::DynamicObject;

use super::super::parsed::{self, ParsedUpdate};
use super::Observer;
use super::kinds::{pods, services};
use super::other_proxies::OtherProxies;
use super::services::ServicesToOld;
use super::ways::{OldPods, service_of_host};
use crate::k8s::{NotSynced, Object, Scope};
use crate::resource::{DynamoUpdateConfig, Host, Target, TargetScope};

impl Observer {
    /// What sends requests to the frontends of old as to its new ones, if that is known; as for [`Self::clients`].
    pub(super) fn updates_to_old(
        &self,
        parsed: &ParsedUpdate,
        old: &[Object],
        updates: &[Object],
    ) -> Option<Vec<String>> {
        if !parsed.memory().phase.old_drains() {
            return None;
        }
        let all = self.cache.of(&pods(), &parsed.key.namespace).ok()?;
        let old = OldPods::of(old, &all);
        let to_old = self.services_to_old(parsed, &old).ok()?;
        let others = self.other_proxies(parsed, &old, &to_old)?;
        let mut found = Vec::new();
        let own = &parsed.key.namespace;
        if self.lead_to(&parsed.plan.new, own, &old, &to_old).ok()? {
            found.push("this one, by spec.newFrontendService".to_owned());
        }
        // Whoever runs the proxies of another namespace may let their updates lead anywhere.
        let elsewhere = match self.settings.sees {
            Scope::All => self.cache.all(&DynamoUpdateConfig::api_resource()).ok()?,
            Scope::Namespace(_) => Vec::new(),
        };
        let elsewhere = elsewhere
            .iter()
            .filter(|update| update.metadata.namespace.as_ref() != Some(own));
        let is_this = |update: &&Object| update.metadata.uid == parsed.identity.uid;
        for update in updates
            .iter()
            .chain(elsewhere)
            .filter(|update| !is_this(update))
        {
            if self.sends_to(update, parsed, &others, (&old, &to_old))? {
                found.push(parsed::key(update).told_from(&parsed.key));
            }
        }
        found.extend(others.found);
        Some(found)
    }

    /// Whether another update sends requests to the frontends of old. `None` if unknown.
    fn sends_to(
        &self,
        update: &Object,
        parsed: &ParsedUpdate,
        others: &OtherProxies,
        (old, to_old): (&OldPods, &ServicesToOld),
    ) -> Option<bool> {
        let key = parsed::key(update);
        let uid = update.metadata.uid.as_ref();
        let is_followed = uid.is_some_and(|uid| others.follow.contains(uid));
        // Without frontends, and if no proxy says that it follows the update, nobody sends anything.
        let is_used = |source: Option<&str>| {
            let pods = self.frontend_pods(&key, source.unwrap_or_default());
            pods.ok().map(|pods| is_followed || !pods.is_empty())
        };
        let is_elsewhere = key.namespace != parsed.key.namespace;
        let scope = TargetScope {
            namespace: key.namespace.clone(),
            domain: self.settings.domain.clone(),
            anywhere: is_elsewhere || self.settings.any_target,
        };
        let Ok(other) = ParsedUpdate::read_within(update, &scope) else {
            let is_used = is_used(parsed::source(update))?;
            if is_elsewhere {
                // Otherwise anybody could keep all others from their promises.
                let targets = targets_of(update);
                let leads = self.lead_to(&targets, &key.namespace, old, to_old);
                return Some(is_used && leads.ok()?);
            }
            // The last plan that could be used stays in force, whatever it was.
            return (!is_used).then_some(false);
        };
        let is_meant =
            !is_elsewhere && other.spec.target_deployment == parsed.spec.source_deployment;
        let targets = &other.plan.new;
        let leads = is_meant || self.lead_to(targets, &key.namespace, old, to_old).ok()?;
        let gives = other.plan.weights.new_weight() > 0;
        Some(leads && gives && is_used(other.spec.source_deployment.as_deref())?)
    }

    /// Whether a pod of `old` is behind one of these targets of a plan in `namespace`.
    pub(super) fn lead_to(
        &self,
        targets: &[Target],
        namespace: &str,
        old: &OldPods,
        to_old: &ServicesToOld,
    ) -> Result<bool, NotSynced> {
        for target in targets {
            let leads = match &target.host {
                Host::Ip(address) => {
                    old.listen_at(*address, target.port)
                        || old.listen_at_node(*address, target.port)
                        || to_old.has_address(*address)
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
            let mut behind = self.behind(target)?.into_iter().flatten();
            if leads || behind.any(|endpoint| old.has(endpoint.pod.as_deref(), endpoint.ip)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_service(&self, name: &str, namespace: &str) -> Result<bool, NotSynced> {
        let found = service_of_host(name, namespace, &self.settings.domain);
        let Some((namespace, name)) = found else {
            return Ok(false);
        };
        Ok(self.cache.one(&services(), &namespace, &name)?.is_some())
    }
}

/// The targets that an update names, in its spec and in the last valid one, even if it cannot be used.
fn targets_of(update: &DynamicObject) -> Vec<Target> {
    let (spec, valid) = (
        &update.data["spec"],
        &update.data["status"]["lastValid"]["spec"],
    );
    let named = [spec, valid].map(|spec| spec["newFrontendService"].as_str());
    let named = named.into_iter().flatten();
    let each = named.flat_map(|targets| targets.split(','));
    each.filter_map(|target| target.trim().parse().ok())
        .collect()
}
