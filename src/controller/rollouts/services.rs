//! The Services that lead clients to the frontends of a generation.

use std::collections::BTreeMap;

use super::super::old_frontends::frontends_by_name;
use crate::k8s::kinds::services;
use crate::k8s::workloads::{is_selected, labels_at};
use crate::k8s::{Cache, NotSynced, Object};
use crate::resource::rollout_status::AcceptedStatus;
use crate::rollout::PerGeneration;
use crate::split::Generation;

/// The name of the Service of the new frontends.
pub(super) fn service_name(accepted: &AcceptedStatus) -> &str {
    accepted.service.split(':').next().unwrap_or_default()
}

/// The selectors that lead clients to the frontends of each generation, if known: that of the clients' Service, if it leads to
/// old, and that of the Service of the new frontends.
///
/// # Errors
/// When Services, pods or Deployments are not listed.
pub(super) fn selectors(
    cache: &Cache,
    namespace: &str,
    accepted: &AcceptedStatus,
    client_service: &str,
) -> Result<PerGeneration<BTreeMap<String, String>>, NotSynced> {
    let frontends = PerGeneration {
        old: frontends_by_name(cache, namespace, &accepted.source.frontends)?,
        new: frontends_by_name(cache, namespace, &accepted.target.frontends)?,
    };
    let of_clients = cache.one(&services(), namespace, client_service)?;
    let is_at_old = |service: &Object| leads_to(service, &frontends) == Some(Generation::Old);
    let of_clients = of_clients.filter(is_at_old);
    let of_new = cache.one(&services(), namespace, service_name(accepted))?;
    let selected = |service: Option<Object>| service.as_ref().and_then(selector);
    Ok(PerGeneration {
        old: selected(of_clients).unwrap_or_default(),
        new: selected(of_new).unwrap_or_default(),
    })
}

/// The selector of a Service.
pub(super) fn selector(service: &Object) -> Option<BTreeMap<String, String>> {
    labels_at(service, "/spec/selector")
}

/// The generation whose frontends a Service selects, if it selects those of one generation only.
pub(super) fn leads_to(
    service: &Object,
    frontends: &PerGeneration<Vec<Object>>,
) -> Option<Generation> {
    let selector = selector(service)?;
    let selects = |generation| {
        let mut pods = frontends.of(generation).iter();
        pods.any(|pod| is_selected(pod, &selector))
    };
    match (selects(Generation::Old), selects(Generation::New)) {
        (true, false) => Some(Generation::Old),
        (false, true) => Some(Generation::New),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::k8s::object;

    #[test]
    fn a_service_leads_to_the_generation_whose_frontends_alone_it_selects() {
        let pod = |version: &str| {
            object(json!({"metadata": {"name": "p", "labels": {"app": "f", "v": version}}}))
        };
        let frontends = PerGeneration {
            old: vec![pod("1")],
            new: vec![pod("2")],
        };
        let leads = |selector: Json| {
            let service =
                object(json!({"metadata": {"name": "s"}, "spec": {"selector": selector}}));
            leads_to(&service, &frontends)
        };
        assert_eq!(leads(json!({"v": "1"})), Some(Generation::Old));
        assert_eq!(leads(json!({"v": "2"})), Some(Generation::New));
        for neither in [
            json!({"app": "f"}),
            json!({"v": "3"}),
            json!({}),
            Json::Null,
        ] {
            assert_eq!(leads(neither.clone()), None, "{neither}");
        }
    }
}
