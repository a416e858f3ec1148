//! The InferencePools that route to old's frontends.
//!
//! A pool selects pods of its own namespace, as a Service does, and gateways send requests to the addresses of these pods.
//! These may be workers: an endpoint picker then does what a frontend does.

use std::collections::BTreeSet;

use kube::api::DynamicObject;
use serde_json::Value as Json;

use super::old_pods::OldPods;
use super::route_match::{ServiceName, belongs_to, is_selected_by};
use super::services::OldScope;
use crate::k8s::Object;

/// What leads to old, as text for users.
#[derive(Default)]
pub(super) struct PoolsToOld {
    /// Those that are not deleted together with old.
    pub ways: Vec<String>,
    /// All of them.
    pub names: BTreeSet<ServiceName>,
    /// Those that lead to the frontends' own port, or to workers.
    pub around_proxies: Vec<String>,
    /// Those that lead to workers and are deleted together with old. They matter only while a route leads to them.
    pub of_workers: BTreeSet<ServiceName>,
}

impl PoolsToOld {
    /// Finds those among `pools`. `workers` are also pods of old.
    pub fn of(pools: &[Object], old: &OldPods, workers: &[Object], scope: &OldScope) -> Self {
        let own_ports = old.own_ports(scope.frontend_port);
        let mut found = Self::default();
        let own = |pool: &&Object| pool.metadata.namespace.as_deref() == Some(scope.namespace);
        for pool in pools.iter().filter(own) {
            let (to_frontends, to_workers) = (selects(pool, old.pods()), selects(pool, workers));
            if !to_frontends && !to_workers {
                continue;
            }
            let name = pool.metadata.name.as_deref().unwrap_or_default();
            let full_name = (scope.namespace.to_owned(), name.to_owned());
            found.names.insert(full_name.clone());
            let text = format!("InferencePool {name}");
            let is_of_old = belongs_to(pool, name, scope.source, scope.is_graph);
            let is_around = to_frontends && !ports(pool).is_disjoint(&own_ports);
            if is_around || (to_workers && !is_of_old) {
                found.around_proxies.push(text.clone());
            } else if to_workers {
                found.of_workers.insert(full_name);
            }
            if !is_of_old {
                found.ways.push(text);
            }
        }
        found
    }
}

fn selects(pool: &DynamicObject, pods: &[Object]) -> bool {
    let selector = &pool.data["spec"]["selector"];
    let selector = match &selector["matchLabels"] {
        Json::Object(_) => &selector["matchLabels"],
        _ => selector,
    };
    is_selected_by(selector, pods)
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
    use crate::k8s::workloads::GRAPH;

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
        let scope = OldScope::example();
        let found = PoolsToOld::of(&pools, &OldPods::of(&pods, &pods), &[], &scope);
        assert_eq!(found.ways, ["InferencePool stable", "InferencePool alpha"]);
        assert_eq!(found.around_proxies, ["InferencePool alpha"]);
    }

    #[test]
    fn a_pool_of_workers_bypasses_the_proxies_unless_it_goes_with_old() {
        let workers = [object(json!({
            "metadata": {"name": "old-w", "namespace": "n", "labels": {"role": "worker"}},
        }))];
        let pool = |name: &str, metadata: Json, selected: &str| {
            let mut pool = json!({"metadata": metadata, "spec": {"selector": {"matchLabels": {"role": selected}}}});
            pool["metadata"]["name"] = name.into();
            pool["metadata"]["namespace"] = "n".into();
            object(pool)
        };
        let owner = json!({"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoComponentDeployment", "name": "old", "uid": "u", "controller": true});
        let made = json!({"labels": {GRAPH: "old"}, "ownerReferences": [owner]});
        let pools = [
            pool("shared", json!({}), "worker"),
            pool("made", made, "worker"),
            pool("other", json!({}), "none"),
        ];
        let scope = OldScope {
            is_graph: true,
            ..OldScope::example()
        };
        let found = PoolsToOld::of(&pools, &OldPods::of(&[], &[]), &workers, &scope);
        assert_eq!(found.ways, ["InferencePool shared"]);
        assert_eq!(found.around_proxies, ["InferencePool shared"]);
        let made = ("n".to_owned(), "made".to_owned());
        assert_eq!(found.of_workers, [made].into());
        assert_eq!(found.names.len(), 2);
    }
}
