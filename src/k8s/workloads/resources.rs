//! What a pod consumes from a `ResourceQuota`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::k8s::thousandths;

/// The resources whose requests a quota also counts under the plain name.
const PLAIN: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// What a pod with this `spec` consumes from each entry of a quota, in thousandths, computed like the scheduler from its
/// containers, init containers, and overhead (kubernetes/component-helpers, `PodRequests`).
pub(super) fn of_pod(spec: &Json) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for resource in resources(spec) {
        let requests = of(spec, &resource, &|container| {
            // The API server sets a missing request to the limit.
            let given = |kind: &str| thousandths(&container[kind][&resource]);
            given("requests").or_else(|| given("limits"))
        });
        let limits = of(spec, &resource, &|container| {
            thousandths(&container["limits"][&resource])
        });
        if PLAIN.contains(&&*resource) {
            all.insert(resource.clone(), requests);
        }
        all.insert(format!("requests.{resource}"), requests);
        all.insert(format!("limits.{resource}"), limits);
    }
    all.retain(|_, amount| *amount > 0);
    all
}

/// The names of all resources that a pod uses.
fn resources(spec: &Json) -> BTreeSet<String> {
    let all = containers(spec).chain(init_containers(spec));
    let all = all
        .map(|container| &container["resources"])
        .chain([&spec["resources"]]);
    let all = all.flat_map(|resources| [&resources["requests"], &resources["limits"]]);
    let names = all.filter_map(Json::as_object).flatten();
    names.map(|(name, _)| name.clone()).collect()
}

/// The amount of one resource, where `given` returns its amount in the `resources` of a container or of the whole pod.
fn of(spec: &Json, resource: &str, given: &dyn Fn(&Json) -> Option<u64>) -> u64 {
    let of_one = |container: &Json| given(&container["resources"]).unwrap_or(0);
    let mut running = containers(spec).map(of_one).fold(0, u64::saturating_add);
    let (mut beside, mut at_start) = (0_u64, 0);
    for container in init_containers(spec) {
        let own = of_one(container).saturating_add(beside);
        at_start = at_start.max(own);
        // A sidecar keeps running.
        if container["restartPolicy"] == "Always" {
            beside = own;
        }
    }
    running = running.saturating_add(beside).max(at_start);
    let whole = given(&spec["resources"]).unwrap_or(running);
    let overhead = thousandths(&spec["overhead"][resource]).unwrap_or(0);
    match whole {
        0 => 0,
        whole => whole.saturating_add(overhead),
    }
}

fn containers(spec: &Json) -> impl Iterator<Item = &Json> {
    spec["containers"].as_array().into_iter().flatten()
}

fn init_containers(spec: &Json) -> impl Iterator<Item = &Json> {
    spec["initContainers"].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_takes_what_its_containers_request_or_are_limited_to() {
        let spec = json!({"containers": [
            {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": 2}}},
            {"resources": {"limits": {"cpu": "1", "rdma/ib": 1}}},
            {},
        ]});
        let found = of_pod(&spec);
        let found: Vec<_> = found
            .iter()
            .map(|(name, amount)| (&**name, *amount))
            .collect();
        let gi = 1_073_741_824_000;
        assert_eq!(
            found,
            [
                ("cpu", 1500),
                ("limits.cpu", 3000),
                ("limits.rdma/ib", 1000),
                ("memory", gi),
                ("requests.cpu", 1500),
                ("requests.memory", gi),
                ("requests.rdma/ib", 1000),
            ]
        );
        assert!(of_pod(&json!({"containers": [{}]})).is_empty());
        assert!(of_pod(&Json::Null).is_empty());
    }

    #[test]
    fn init_containers_sidecars_overhead_and_the_whole_pod_count() {
        let cpu = |number: u64| json!({"requests": {"cpu": number}});
        let cpus = |spec: Json| of_pod(&spec).get("requests.cpu").copied();
        let init = json!({
            "containers": [{"resources": cpu(2)}],
            "initContainers": [
                {"resources": cpu(1), "restartPolicy": "Always"}, {"resources": cpu(4)},
            ],
        });
        assert_eq!(cpus(init.clone()), Some(5000));
        let mut small = init.clone();
        small["initContainers"][1] = json!({});
        assert_eq!(cpus(small), Some(3000));
        let mut with_overhead = init.clone();
        with_overhead["overhead"] = json!({"cpu": "250m"});
        assert_eq!(cpus(with_overhead), Some(5250));
        let mut whole = init;
        whole["resources"] = cpu(8);
        assert_eq!(cpus(whole), Some(8000));
    }
}
