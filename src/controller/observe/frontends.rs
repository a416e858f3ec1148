//! The frontends of both sides: how many are ready, what they serve, and whether clients still reach old.
//!
//! Must not know how a question is asked.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::pki_types::ServerName;

use super::super::ask::Place;
use super::super::held::Held;
use super::super::models::{self, Served};
use super::super::old;
use super::{Error, Eyes};
use crate::k8s::Object;
use crate::k8s::workloads::pod_is_ready;
use crate::resource::{Host, Target};
use crate::rollout::{Frontends, Sides};
use crate::tls::{ClientFiles, Reloading};

impl Eyes {
    /// What the frontends of both sides can do.
    pub(super) fn frontends(
        &self,
        held: &Held,
        pods: &[Object],
    ) -> Result<Sides<Frontends>, Error> {
        let mut places = BTreeSet::new();
        let mut old = Frontends::default();
        let mut unheard = false;
        for pod in pods.iter().filter(|pod| pod_is_ready(pod)) {
            old.endpoints += 1;
            let Some(address) = old::address_of(pod, &self.settings.frontend_port) else {
                continue;
            };
            let Ok(target) = address.parse::<Target>() else {
                continue;
            };
            let heard = self.served(held, vec![self.place(target, None)], &mut places);
            unheard |= heard.is_none();
            old.models.extend(heard.unwrap_or_default().models);
        }
        let mut new = Frontends {
            endpoints: self.endpoints(held)?,
            ..Frontends::default()
        };
        if new.endpoints > 0 {
            let new_places = self.new_places(held)?;
            let heard = self.served(held, new_places, &mut places);
            unheard |= heard.is_none();
            Served {
                models: new.models,
                trouble: new.trouble,
            } = heard.unwrap_or_default();
        }
        self.models.keep(&held.key, &places);
        match unheard {
            true => Err(Error::Unheard("a frontend")),
            false => Ok(Sides { old, new }),
        }
    }

    fn served(
        &self,
        held: &Held,
        asked: Vec<Place>,
        places: &mut BTreeSet<String>,
    ) -> Option<Served> {
        let name: Vec<String> = asked.iter().map(Place::to_string).collect();
        let name = name.join(", ");
        let heard = self
            .models
            .hear(&held.key, &name, |teller| models::follow(asked, teller));
        places.insert(name);
        heard
    }

    fn new_places(&self, held: &Held) -> Result<Vec<Place>, Error> {
        let tls = held.plan.tls.as_ref();
        let mut places = Vec::new();
        for target in &held.plan.new {
            let mut secured = None;
            if target.tls {
                let files = ClientFiles {
                    ca: tls.and_then(|tls| tls.ca_file.as_ref()).map(Into::into),
                    identity: tls
                        .and_then(|tls| tls.client.as_ref())
                        .map(|(chain, key)| (chain.into(), key.into())),
                };
                let config = self.trust.of(files)?;
                let called = tls
                    .and_then(|tls| tls.server_name.as_ref())
                    .unwrap_or(target.called());
                let name = match called {
                    Host::Ip(ip) => ServerName::from(*ip),
                    Host::Name(name) => ServerName::try_from(name.trim_end_matches('.').to_owned())
                        .map_err(|_| Error::ServerName(name.clone()))?,
                };
                secured = Some((config, name));
            }
            places.push(self.place(target.clone(), secured));
        }
        Ok(places)
    }

    fn place(
        &self,
        target: Target,
        tls: Option<(Arc<Reloading<ClientFiles>>, ServerName<'static>)>,
    ) -> Place {
        let name = format!("{}:{}", target.host, target.port);
        Place {
            address: self.settings.resolve.get(&name).copied(),
            target,
            tls,
        }
    }

    /// Ready endpoints of new; a target that is no Service counts as one, as its models show whether it answers.
    fn endpoints(&self, held: &Held) -> Result<u32, Error> {
        let mut count = 0;
        for target in &held.plan.new {
            let Some((service, namespace)) = service(target, &self.settings.domain) else {
                count += 1;
                continue;
            };
            let found = old::endpoints(&self.shelves, &namespace, &service)?;
            let ready = found.iter().flatten().filter(|endpoint| endpoint.ready);
            count += u32::try_from(ready.count()).unwrap_or(u32::MAX);
        }
        Ok(count)
    }

    /// Does the Service that clients use still lead to old frontends? None if that is not known.
    pub(super) fn clients_reach_old(
        &self,
        held: &Held,
        pods: &[Object],
    ) -> Result<Option<bool>, Error> {
        let Some(service) = &held.spec.client_service else {
            return Ok(None);
        };
        let found = old::endpoints(&self.shelves, &held.key.namespace, service)?;
        Ok(found.map(|endpoints| {
            endpoints.iter().any(|endpoint| {
                let is_old = |pod: &Object| pod.metadata.name == endpoint.pod;
                // One that names no pod could be any.
                endpoint.pod.is_none() || pods.iter().any(is_old)
            })
        }))
    }
}

/// Name and namespace of the Service that a target is.
fn service(target: &Target, domain: &str) -> Option<(String, String)> {
    let Host::Name(name) = &target.host else {
        return None;
    };
    let name = name.trim_end_matches('.');
    let name = name.strip_suffix(domain)?.strip_suffix(".svc.")?;
    let (service, namespace) = name.split_once('.')?;
    Some((service.to_owned(), namespace.to_owned()))
}
