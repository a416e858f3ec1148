//! The InferencePools that route to old's frontends.
//!
//! A pool selects pods of its own namespace, as a Service does, and gateways send requests to the addresses of these pods.

use std::collections::BTreeSet;

use kube::api::DynamicObject;
use serde_json::Value as Json;

use super::old_pods::OldPods;
use super::services::OldPlace;
use super::ways::{ServiceName, belongs_to, is_selected_by};
use crate::k8s::Object;

/// What leads to old, as text for users.
#[derive(Default)]
pub(super) struct PoolsToOld {
    /// All of them that are not deleted together with old.
    pub ways: Vec<String>,
    /// All of them.
    pub names: BTreeSet<ServiceName>,
    /// Those that lead to the frontends' own port.
    pub around_proxies: Vec<String>,
}

impl PoolsToOld {
    /// Those among `pools`.
    pub fn of(pools: &[Object], old: &OldPods, place: &OldPlace) -> Self {
        let own_ports = old.own_ports(place.frontend_port);
        let mut found = Self::default();
        for pool in pools {
            let is_own = pool.metadata.namespace.as_deref() == Some(place.namespace);
            if !is_own || !selects(pool, old) {
                continue;
            }
            let name = pool.metadata.name.as_deref().unwrap_or_default();
            found
                .names
                .insert((place.namespace.to_owned(), name.to_owned()));
            let text = format!("InferencePool {name}");
            if !ports(pool).is_disjoint(&own_ports) {
                found.around_proxies.push(text.clone());
            }
            if !belongs_to(pool, name, place.source, place.is_graph) {
                found.ways.push(text);
            }
        }
        found
    }
}

fn selects(pool: &DynamicObject, old: &OldPods) -> bool {
    let selector = &pool.data["spec"]["selector"];
    let selector = match &selector["matchLabels"] {
        Json::Object(_) => &selector["matchLabels"],
        _ => selector,
    };
    is_selected_by(selector, old.pods())
}

fn ports(pool: &DynamicObject) -> BTreeSet<u16> {
    let spec = &pool.data["spec"];
    let all = spec["targetPorts"].as_array().into_iter().flatten();
    let all = all.map(|port| &port["number"]);
    all.chain([&spec["targetPortNumber"]])
        .filter_map(|number| u16::try_from(number.as_u64()?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::object;

    #[test]
    fn a_pool_leads_to_old_in_either_form_of_its_selector() {
        let pods = [object(json!({
            "metadata": {"name": "old-0", "namespace": "n", "labels": {"app": "old"}},
            "spec": {"containers": [{"ports": [{"containerPort": 8000}, {"name": "frontend", "containerPort": 8080}]}]},
            "status": {"podIP": "10.0.0.1"},
        }))];
        let pool = |namespace: &str, name: &str, spec: Json| {
            object(json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec}))
        };
        let selector = json!({"matchLabels": {"app": "old"}});
        let pools = [
            pool(
                "n",
                "stable",
                json!({"selector": selector, "targetPorts": [{"number": 8000}]}),
            ),
            pool(
                "n",
                "alpha",
                json!({"selector": {"app": "old"}, "targetPortNumber": 8080}),
            ),
            pool(
                "n",
                "other",
                json!({"selector": {"app": "new"}, "targetPortNumber": 8080}),
            ),
            pool("n", "nobody", json!({"selector": {"matchLabels": {}}})),
            pool(
                "m",
                "there",
                json!({"selector": {"app": "old"}, "targetPortNumber": 8080}),
            ),
        ];
        let place = OldPlace::example();
        let found = PoolsToOld::of(&pools, &OldPods::of(&pods, &pods), &place);
        assert_eq!(found.ways, ["InferencePool stable", "InferencePool alpha"]);
        assert_eq!(found.around_proxies, ["InferencePool alpha"]);
    }
}
