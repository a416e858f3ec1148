//! Observes the frontends of both generations: how many are ready, and which models they serve.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::ServerName;

use super::super::endpoints::{self, Endpoint};
use super::super::http::FrontendAddress;
use super::super::models::{self, FrontendReport, QueryFailure};
use super::super::old_frontends;
use super::super::parsed::ParsedUpdate;
use super::super::poller::Pace;
use super::{Error, Observed, Observer};
use crate::error_chain::error_chain;
use crate::k8s::workloads::pod_is_ready;
use crate::k8s::{NotSynced, Object};
use crate::resource::TargetAddress;
use crate::resource::status::UpdatePhase;
use crate::rollout::{Frontend, Frontends, PerGeneration, QueryResult};
use crate::tls::{ClientFiles, Reloading};

/// Maximum number of frontends polled per generation and update. The frontends of a rollout are alike, so the others are
/// assumed to serve.
const MAX_POLLED: usize = 128;

impl Observer {
    /// Observes the frontends of both generations.
    pub(super) fn frontends(
        &self,
        parsed: &ParsedUpdate,
        pods: &[Object],
        early_until: &mut Option<Instant>,
    ) -> Result<PerGeneration<Frontends>, Error> {
        let mut polled = BTreeSet::new();
        let mut old = Frontends::default();
        let port = &self.settings.options.frontend_port;
        for pod in pods.iter().filter(|pod| pod_is_ready(pod)) {
            old.endpoints += 1;
            if polled.len() >= MAX_POLLED {
                continue;
            }
            let target =
                old_frontends::address_of(pod, port).and_then(|address| address.parse().ok());
            let Some(target) = target else {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                old.error = Some(format!("{name} has no port {port}"));
                continue;
            };
            let frontend = self.address(target, None);
            old.queried
                .push(self.frontend(parsed, frontend, &mut polled, early_until));
        }
        let mut new = Frontends {
            endpoints: self.endpoints(parsed)?,
            ..Frontends::default()
        };
        if new.endpoints > 0 {
            let frontends_of_new = match self.new_frontends(parsed) {
                Ok(found) => found,
                Err(Error::NotSynced(not_synced)) => return Err(not_synced.into()),
                // An error on the controller's side says nothing about the frontends.
                Err(error) => {
                    new.error = Some(error_chain(&error));
                    Vec::new()
                }
            };
            new.left_out = frontends_of_new.len().saturating_sub(MAX_POLLED);
            let queried = frontends_of_new
                .into_iter()
                .take(MAX_POLLED)
                .map(|frontend| self.frontend(parsed, frontend, &mut polled, early_until));
            new.queried = queried.collect();
        }
        self.models.keep(&parsed.key, &polled);
        Ok(PerGeneration { old, new })
    }

    fn frontend(
        &self,
        parsed: &ParsedUpdate,
        address: FrontendAddress,
        polled: &mut BTreeSet<String>,
        early_until: &mut Option<Instant>,
    ) -> Frontend {
        match self.served(parsed, address, polled, early_until) {
            Some(served) => frontend(served),
            None => Frontend {
                answer: QueryResult::NotYet,
                ..Frontend::default()
            },
        }
    }

    fn served(
        &self,
        parsed: &ParsedUpdate,
        frontend: FrontendAddress,
        polled: &mut BTreeSet<String>,
        early_until: &mut Option<Instant>,
    ) -> Option<FrontendReport> {
        // Each namespace polls for itself, within its own limits.
        let namespace = &parsed.key.namespace;
        let name = self.polled_as(&frontend, namespace);
        let pace = match parsed.status.phase {
            Some(UpdatePhase::Complete) => Pace::Slow,
            _ => Pace::Normal,
        };
        let served = self.models.poll(
            &parsed.key,
            &name,
            pace,
            || self.limits.share(namespace),
            |sink, share| models::follow(frontend, share, sink),
        )?;
        polled.insert(name);
        served
            .inspect_err(|since| _ = Observed::misses(early_until, *since))
            .ok()
    }

    /// The name under which a frontend is polled for a namespace.
    pub(super) fn polled_as(&self, frontend: &FrontendAddress, namespace: &str) -> String {
        format!("{frontend} for {namespace}")
    }

    pub(super) fn new_frontends(
        &self,
        parsed: &ParsedUpdate,
    ) -> Result<Vec<FrontendAddress>, Error> {
        let tls = parsed.plan.tls.as_ref();
        let mut frontends = Vec::new();
        for target in &parsed.plan.new {
            let mut secured = None;
            if target.tls {
                let files = ClientFiles {
                    ca: tls.and_then(|tls| tls.ca_file.as_ref()).map(Into::into),
                    identity: tls
                        .and_then(|tls| tls.client.as_ref())
                        .map(|(chain, key)| (chain.into(), key.into())),
                };
                let config = self.tls_cache.of(files)?;
                let called = tls
                    .and_then(|tls| tls.server_name.as_ref())
                    .unwrap_or(target.called());
                let name = called
                    .server_name()
                    .ok_or_else(|| Error::ServerName(called.to_string()))?;
                secured = Some((config, name));
            }
            // Poll each endpoint at its own address: through the Service, any of them could respond.
            let found = self.endpoints_of(target)?.unwrap_or_default();
            let addresses = found.iter().filter(|endpoint| endpoint.ready);
            let before = frontends.len();
            let frontend = self.address(target.clone(), secured);
            if frontend.address.is_none() {
                let addresses = addresses.filter_map(|endpoint| endpoint.address);
                frontends.extend(addresses.map(|address| FrontendAddress {
                    address: Some(address),
                    ..frontend.clone()
                }));
            }
            if frontends.len() == before {
                frontends.push(frontend);
            }
        }
        Ok(frontends)
    }

    pub(super) fn address(
        &self,
        target: TargetAddress,
        tls: Option<(Arc<Reloading<ClientFiles>>, ServerName<'static>)>,
    ) -> FrontendAddress {
        let name = format!("{}:{}", target.host, target.port);
        FrontendAddress {
            address: self.settings.options.resolve.get(&name).copied(),
            target,
            tls,
        }
    }

    /// Number of ready endpoints of new. A target that is not a Service counts as one: polling it shows whether it answers.
    fn endpoints(&self, parsed: &ParsedUpdate) -> Result<u32, Error> {
        let mut count = 0;
        for target in &parsed.plan.new {
            if target.service(&self.settings.options.domain).is_none() {
                count += 1;
                continue;
            }
            let found = self.endpoints_of(target)?;
            let ready = found.iter().flatten();
            // Proxies send no request to an address that they cannot read.
            let ready = ready.filter(|endpoint| endpoint.ready && endpoint.ip.is_some());
            count += u32::try_from(ready.count()).unwrap_or(u32::MAX);
        }
        Ok(count)
    }

    /// The endpoints of the Service that a target refers to; `None` if the target is not a Service or has no EndpointSlice.
    pub(super) fn endpoints_of(
        &self,
        target: &TargetAddress,
    ) -> Result<Option<Vec<Endpoint>>, NotSynced> {
        let Some((service, namespace)) = target.service(&self.settings.options.domain) else {
            return Ok(None);
        };
        endpoints::endpoints(&self.cache, namespace, service, target.port)
    }
}

fn frontend(served: FrontendReport) -> Frontend {
    let answer = match served.error {
        Some(missing) => match missing.how {
            QueryFailure::NotSent => QueryResult::NotQueried(missing.why),
            QueryFailure::NoResponse => QueryResult::NoResponse(missing.why),
            QueryFailure::Bad => QueryResult::Bad(missing.why),
        },
        None if served.is_trying => QueryResult::NotYet,
        None => QueryResult::Responded,
    };
    Frontend {
        models: served.models,
        left_out: served.left_out,
        registered: served.registered,
        namespaces: served.namespaces,
        has_more_namespaces: served.has_more_namespaces,
        answer,
    }
}
