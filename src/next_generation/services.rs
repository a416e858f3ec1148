//! The Services of the next generation.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::{
    GENERATION, labels,
    names::Names,
    parts::{Parts, cleaned, name},
};

/// The current Service that leads to the frontends, if there is one. If there are several, the user must specify the one that
/// clients connect to. It is never the Service of a generation's own frontends, which an earlier `plan` created.
pub(super) fn the_one(
    from: &Parts,
    leads_there: impl Fn(&Json) -> bool,
) -> Result<Option<&Json>, String> {
    let services = from.services.iter();
    let found: Vec<_> = services.filter(|service| leads_there(service)).collect();
    if found.len() > 1 {
        let names: Vec<_> = found.into_iter().map(name).collect();
        return Err(format!(
            "several Services select the current frontends: {}; name the one that clients connect to with --client-service",
            names.join(", ")
        ));
    }
    let only = found.first().copied();
    match only.filter(|service| !service["metadata"]["labels"][GENERATION].is_null()) {
        Some(own) => Err(format!(
            "Service/{} was created by `plan` for the old frontends: add the Service that clients connect to, or name it with \
             --client-service",
            name(own)
        )),
        None => Ok(only),
    }
}

/// The next generation's counterpart of `service`. It is only reachable within the cluster.
pub(super) fn next(
    service: &Json,
    selecting: &BTreeSet<String>,
    names: &Names,
    graph: &str,
) -> Json {
    let mut next = cleaned(service);
    next["metadata"]["name"] = names.next_in(&service["metadata"]["name"]);
    if let Some(metadata) = next["metadata"].as_object_mut() {
        // These fields define how the Service is reached from outside.
        metadata.shift_remove("annotations");
    }
    labels::move_labels(
        &mut next["metadata"]["labels"],
        selecting,
        names,
        Some(graph),
    );
    labels::put(&mut next["metadata"]["labels"], GENERATION, &names.hash);
    labels::move_labels(&mut next["spec"]["selector"], selecting, names, Some(graph));
    let Some(spec) = next["spec"].as_object_mut() else {
        return next;
    };
    let is_headless = spec.get("clusterIP").is_some_and(|ip| ip == "None");
    for field in [
        "clusterIP",
        "clusterIPs",
        "externalIPs",
        "externalName",
        "externalTrafficPolicy",
        "healthCheckNodePort",
        "loadBalancerClass",
        "loadBalancerIP",
        "loadBalancerSourceRanges",
        "allocateLoadBalancerNodePorts",
        "ipFamilies",
        "type",
    ] {
        spec.shift_remove(field);
    }
    if is_headless {
        spec.insert("clusterIP".to_owned(), "None".into());
    }
    let ports = spec.get_mut("ports").and_then(Json::as_array_mut);
    for port in ports.into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            port.shift_remove("nodePort");
        }
    }
    next
}

/// The port of a Service that receives requests: the one named `http`, or else the first.
pub(super) fn port(service: &Json) -> u64 {
    let ports = service["spec"]["ports"].as_array();
    let mut ports = ports.into_iter().flatten();
    let first = ports.clone().next();
    let http = ports.find(|port| port["name"] == "http");
    let port = http.or(first).and_then(|port| port["port"].as_u64());
    port.unwrap_or(8000)
}
