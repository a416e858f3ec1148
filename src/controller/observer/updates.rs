//! The updates that send requests to the frontends of old, as to their new ones.
//!
//! What cannot be listed or is not said is not known. Must not know what follows from it.

use std::collections::BTreeSet;

use kube::CustomResourceExt;

use super::super::old_frontends;
use super::super::parsed::{self, ParsedUpdate};
use super::super::poller::Pace;
use super::super::proxies::{self, Report};
use super::Observer;
use super::clients::pods;
use super::services::ServicesToOld;
use super::ways::{OldPods, service_of_host};
use crate::k8s::{NotSynced, Object};
use crate::resource::{DynamoUpdateConfig, Host};

impl Observer {
    /// The updates that send requests to the frontends of old as to their new ones, if that is known; as for [`Self::clients`].
    pub(super) fn updates_to_old(
        &self,
        parsed: &ParsedUpdate,
        old: &[Object],
        updates: &[Object],
    ) -> Option<Vec<String>> {
        if !parsed.memory().phase.old_drains() {
            return None;
        }
        let own = |update: &&Object| update.metadata.uid == parsed.identity.uid;
        if !self.go_by_what_there_is(parsed, updates)? {
            return None;
        }
        let all = self.cache.of(&pods(), &parsed.key.namespace).ok()?;
        let old = OldPods::of(old, &all);
        let to_old = self.services_to_old(parsed, &old).ok()?;
        let mut found = Vec::new();
        if self.leads_to_any(parsed, &old, &to_old).ok()? {
            found.push("this one, by spec.newFrontendService".to_owned());
        }
        // From another namespace only who may lead anywhere can lead here.
        let elsewhere = match self.settings.any_target {
            true => self.cache.all(&DynamoUpdateConfig::api_resource()).ok()?,
            false => Vec::new(),
        };
        let namespace = Some(&parsed.key.namespace);
        let elsewhere = elsewhere
            .iter()
            .filter(|update| update.metadata.namespace.as_ref() != namespace);
        for update in updates
            .iter()
            .chain(elsewhere)
            .filter(|update| !own(update))
        {
            if self.sends_to(update, parsed, &old, &to_old)? {
                found.push(parsed::key(update).told_from(&parsed.key));
            }
        }
        Some(found)
    }

    /// Does each proxy of new's frontends go by the last edit of an update that there is, or give its own new side nothing? The
    /// plan of one that was deleted, or that left its deployment, may stay in force, and lead anywhere. None if that is not
    /// known.
    fn go_by_what_there_is(&self, parsed: &ParsedUpdate, updates: &[Object]) -> Option<bool> {
        let new = self.pods_of_new(parsed).ok()?;
        let pods = self.cache.of(&pods(), &parsed.key.namespace).ok()?;
        let is_of_new = |pod: &&Object| {
            let name = pod.metadata.name.as_ref();
            name.is_some_and(|name| new.contains_key(name))
        };
        let port = &self.settings.proxies.port;
        let places = pods.iter().filter(is_of_new);
        let places = places.filter_map(|pod| old_frontends::address_of(pod, port));
        let places: BTreeSet<String> = places.collect();
        // By its last edit: what an earlier one says is not looked at.
        let is_there = |report: &Report| {
            let mut updates = updates.iter();
            updates.any(|update| {
                let generation = update.metadata.generation.unwrap_or(0);
                report.uid.is_some()
                    && update.metadata.uid == report.uid
                    && i64::try_from(report.generation).is_ok_and(|applied| applied >= generation)
            })
        };
        let mut all = Some(true);
        for place in &places {
            let address = place.clone();
            let follow = |sink| proxies::follow(address, sink);
            let heard = self
                .beyond
                .hear(&parsed.key, place, Pace::Usual, follow)
                .ok();
            let report = heard.and_then(|heard| heard.report());
            let is_known = report.map(|report| !report.gives_new || is_there(&report));
            all = all.zip(is_known).map(|(all, one)| all && one);
        }
        self.beyond.keep(&parsed.key, &places);
        all
    }

    /// Does another update send requests to the frontends of old? None if that is not known.
    fn sends_to(
        &self,
        update: &Object,
        parsed: &ParsedUpdate,
        old: &OldPods,
        to_old: &ServicesToOld,
    ) -> Option<bool> {
        let key = parsed::key(update);
        let by_name = |source: Option<&str>| {
            // Without frontends there is nobody who would send anything.
            let pods = self.frontend_pods(&key, source.unwrap_or_default());
            pods.ok().map(|pods| !pods.is_empty())
        };
        let Ok(other) = ParsedUpdate::read(update, &self.settings) else {
            // The last plan that could be used stays in force, whatever it was.
            let source = update.data["spec"]["sourceDeployment"].as_str();
            return match by_name(source)? {
                true => None,
                false => Some(false),
            };
        };
        let is_meant = key.namespace == parsed.key.namespace
            && other.spec.target_deployment == parsed.spec.source_deployment;
        let leads = is_meant || self.leads_to_any(&other, old, to_old).ok()?;
        let gives = other.plan.weights.new_weight() > 0;
        Some(leads && gives && by_name(other.spec.source_deployment.as_deref())?)
    }

    /// Is a pod of `old` behind a target of this update?
    fn leads_to_any(
        &self,
        update: &ParsedUpdate,
        old: &OldPods,
        to_old: &ServicesToOld,
    ) -> Result<bool, NotSynced> {
        for target in &update.plan.new {
            let leads = match &target.host {
                Host::Ip(address) => {
                    old.listen_at(*address, target.port) || to_old.addresses.contains(address)
                }
                Host::Name(name) => {
                    let own = &update.key.namespace;
                    let service = service_of_host(name, own, &self.settings.domain);
                    service.is_some_and(|service| to_old.names.contains(&service))
                }
            };
            let mut behind = self.behind(target)?.into_iter().flatten();
            if leads || behind.any(|endpoint| old.has(endpoint.pod.as_deref(), endpoint.ip)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
