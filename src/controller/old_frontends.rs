//! Finds the pods of frontends and the addresses of their ports. Makes no requests.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::DynamicObject;
use serde_json::Value as Json;

use super::ProxyPods;
use crate::k8s::kinds::{api_resource, deployments, stateful_sets};
use crate::k8s::workloads::{
    COMPONENT, GRAPH, controller, includes, labels, labels_at, pod_is_ready,
};
use crate::k8s::{Cache, NotSynced, Object, container_port, named_ports};

/// The running frontend pods of `source`, with or without a proxy: clients reach them either way. A pod whose labels were edited
/// still counts while a Deployment or StatefulSet of these frontends owns it, because it is deleted with its owner.
///
/// # Errors
/// When pods, Deployments or StatefulSets are not listed.
pub(super) fn frontends(
    cache: &Cache,
    namespace: &str,
    source: &str,
    proxies: &ProxyPods,
) -> Result<Vec<Object>, NotSynced> {
    let mut pods = cache.of(&api_resource("", "v1", "Pod", "pods"), namespace)?;
    let selectors = selectors(cache, namespace, source, proxies)?;
    let is_distinguished = proxies.selector.is_empty();
    let are_meant = |labels: &BTreeMap<String, String>| {
        let component = labels.get(COMPONENT);
        let is_other = component.is_some_and(|component| component != "frontend");
        let mut filled = selectors.iter().filter(|selector| !selector.is_empty());
        let is_selected = filled.any(|selector| includes(labels, selector));
        is_selected && !(is_distinguished && is_other)
    };
    let (deployments, stateful_sets) = (
        cache.of(&deployments(), namespace),
        cache.of(&stateful_sets(), namespace),
    );
    let names = |owners: &[Object]| -> BTreeSet<String> {
        let owners = owners.iter().filter(|owner| {
            let template = labels_at(owner, "/spec/template/metadata/labels");
            template.is_some_and(|template| are_meant(&template))
        });
        owners
            .filter_map(|owner| owner.metadata.name.clone())
            .collect()
    };
    let (deployments, stateful_sets) = (names(&deployments?), names(&stateful_sets?));
    let is_owned = |pod: &DynamicObject| match controller(pod) {
        // Its name ends with a hash.
        Some(("ReplicaSet", name)) => name
            .rsplit_once('-')
            .is_some_and(|(deployment, _)| deployments.contains(deployment)),
        Some(("StatefulSet", name)) => stateful_sets.contains(name),
        _ => false,
    };
    pods.retain(|pod| (labels(pod).is_some_and(are_meant) || is_owned(pod)) && is_alive(pod));
    Ok(pods)
}

/// The frontend pods of the deployment `name`, by the labels of a graph or the selector of a Deployment.
///
/// # Errors
/// When pods or Deployments are not listed.
pub(super) fn frontends_by_name(
    cache: &Cache,
    namespace: &str,
    name: &str,
) -> Result<Vec<Object>, NotSynced> {
    let by_name = ProxyPods {
        selector: BTreeMap::new(),
        port: String::new(),
    };
    frontends(cache, namespace, name, &by_name)
}

fn selectors(
    cache: &Cache,
    namespace: &str,
    source: &str,
    proxies: &ProxyPods,
) -> Result<Vec<BTreeMap<String, String>>, NotSynced> {
    if !proxies.selector.is_empty() {
        let filled = proxies.selector.iter();
        let filled = filled.map(|(name, value)| (name.clone(), value.replace("{source}", source)));
        return Ok(vec![filled.collect()]);
    }
    let of_graph = [(GRAPH, source), (COMPONENT, "frontend")];
    let of_graph = of_graph.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let deployment = cache.one(&deployments(), namespace, source)?;
    // This selector may match workers, too; the component label distinguishes them from frontends.
    let of_deployment =
        deployment.and_then(|deployment| labels_at(&deployment, "/spec/selector/matchLabels"));
    Ok([Some(of_graph.into()), of_deployment]
        .into_iter()
        .flatten()
        .collect())
}

/// Whether a pod may serve clients. Before its container starts, a pod has no address; one that runs without an address may still
/// be reached.
pub(super) fn is_alive(pod: &DynamicObject) -> bool {
    let phase = pod.data.pointer("/status/phase").and_then(Json::as_str);
    match phase {
        Some("Succeeded" | "Failed") => false,
        Some("Running") => true,
        _ => address(pod).is_some() || pod_is_ready(pod),
    }
}

/// Whether a live pod may have clients now. Until all of its containers have started, it has never been ready.
pub(super) fn may_have_clients(pod: &DynamicObject) -> bool {
    let phase = pod.data.pointer("/status/phase").and_then(Json::as_str);
    is_alive(pod) && (phase != Some("Pending") || pod_is_ready(pod))
}

fn address(pod: &DynamicObject) -> Option<&str> {
    pod.data.pointer("/status/podIP")?.as_str()
}

/// The numbers of the ports with this name.
pub(super) fn ports(pod: &DynamicObject, name: &str) -> BTreeSet<u16> {
    { named_ports(&pod.data["spec"], name) }
        .filter_map(container_port)
        .collect()
}

/// The number of the port with this name, if there is only one: of several, it is unknown which one is meant.
fn port(pod: &DynamicObject, name: &str) -> Option<u16> {
    let mut ports = ports(pod, name).into_iter();
    let port = ports.next();
    port.filter(|_| ports.next().is_none())
}

/// The addresses of the ports with this name that several live pods report: it is unknown which of them answers there.
pub(super) fn shared_addresses(pods: &[Object], name: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let alive = pods.iter().filter(|pod| is_alive(pod));
    let addresses = alive.flat_map(|pod| {
        let ports = ports(pod, name).into_iter();
        ports.filter_map(|port| Some(socket_address(address(pod)?, port)))
    });
    addresses
        .filter(|address| !found.insert(address.clone()))
        .collect()
}

/// The address of the port with this name.
pub(super) fn address_of(pod: &DynamicObject, name: &str) -> Option<String> {
    Some(socket_address(address(pod)?, port(pod, name)?))
}

fn socket_address(address: &str, port: u16) -> String {
    match address.contains(':') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::object;

    #[test]
    fn each_port_of_a_pod_may_be_the_one_that_another_pod_reports() {
        let pod = |ports: &[u16]| {
            let ports: Vec<_> = { ports.iter() }
                .map(|port| json!({"name": "crossfade", "containerPort": port}))
                .collect();
            let spec = json!({"containers": [{"ports": ports}]});
            object(
                json!({"metadata": {"name": "a"}, "spec": spec, "status": {"podIP": "10.0.0.1"}}),
            )
        };
        let shared = shared_addresses(&[pod(&[1, 2]), pod(&[2]), pod(&[3])], "crossfade");
        assert_eq!(shared, ["10.0.0.1:2".to_owned()].into());
    }

    #[test]
    fn a_pod_that_runs_without_an_address_is_alive_and_one_that_has_run_may_have_clients() {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let not_ready = json!([{"type": "Ready", "status": "False"}]);
        let pending = json!({"phase": "Pending", "podIP": "10.0.0.1", "conditions": not_ready});
        let running = json!({"phase": "Running", "podIP": "10.0.0.1", "conditions": not_ready});
        for (status, alive, may_have) in [
            (json!({"phase": "Pending"}), false, false),
            (pending, true, false),
            (json!({"phase": "Running"}), true, true),
            (running, true, true),
            (json!({"phase": "Unknown", "conditions": ready}), true, true),
            (
                json!({"phase": "Failed", "podIP": "10.0.0.1"}),
                false,
                false,
            ),
            (
                json!({"phase": "Succeeded", "conditions": ready}),
                false,
                false,
            ),
            (json!({"podIP": "10.0.0.1"}), true, true),
            (json!({}), false, false),
        ] {
            let pod = object(json!({"metadata": {"name": "old-0"}, "status": status}));
            assert_eq!(is_alive(&pod), alive, "{status}");
            assert_eq!(may_have_clients(&pod), may_have, "{status}");
        }
    }
}
