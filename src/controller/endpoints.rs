//! The endpoints of a Service, from its EndpointSlices. Makes no requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::k8s::kinds::api_resource;
use crate::k8s::workloads::labels;
use crate::k8s::{Cache, NotSynced, SERVICE_LABEL, port_of, slice_endpoints};

/// The endpoints of a Service, each with its pod and its address at the port `wanted`; `None` if the Service has no
/// EndpointSlice.
///
/// # Errors
/// When EndpointSlices are not listed.
pub(super) fn endpoints(
    cache: &Cache,
    namespace: &str,
    service: &str,
    wanted: u16,
) -> Result<Option<Vec<Endpoint>>, NotSynced> {
    let mut found = all_endpoints(cache, namespace, service, wanted)?;
    if let Some(endpoints) = &mut found {
        let mut pods = BTreeSet::new();
        // With dual stack there is one slice for each address family, with the same pods.
        endpoints.retain(|endpoint| {
            let pod = endpoint.pod.as_ref();
            pod.is_none_or(|pod| pods.insert(pod.clone()))
        });
    }
    Ok(found)
}

/// The same, with each endpoint of a pod.
///
/// # Errors
/// Same as [`endpoints`].
pub(super) fn all_endpoints(
    cache: &Cache,
    namespace: &str,
    service: &str,
    wanted: u16,
) -> Result<Option<Vec<Endpoint>>, NotSynced> {
    let slices = api_resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
    let mut slices = cache.of(&slices, namespace)?;
    slices.retain(|slice| {
        let named = labels(slice).and_then(|labels| labels.get(SERVICE_LABEL));
        named.map(String::as_str) == Some(service)
    });
    if slices.is_empty() {
        return Ok(None);
    }
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for slice in &slices {
        let Ok(all_ports) = serde_json::from_value(slice.data["ports"].clone()) else {
            continue;
        };
        let without_endpoints = EndpointSlice {
            ports: all_ports,
            ..EndpointSlice::default()
        };
        let port = port_of(&without_endpoints, wanted);
        let ports = without_endpoints.ports.iter().flatten();
        let ports: BTreeMap<String, Option<u16>> = ports
            .map(|port| {
                let number = port.port.and_then(|number| u16::try_from(number).ok());
                (port.name.clone().unwrap_or_default(), number)
            })
            .collect();
        for endpoint in slice_endpoints(slice) {
            let pod = endpoint.target.map(str::to_owned);
            // Kubernetes itself uses the first address only, but proxies use all of them.
            endpoints.extend(endpoint.addresses().map(|address| {
                let ip = address.parse::<IpAddr>().ok();
                Endpoint {
                    ready: endpoint.ready,
                    ports: ports.clone(),
                    address: ip.zip(port).map(SocketAddr::from),
                    ip,
                    pod: pod.clone(),
                }
            }));
        }
    }
    Ok(Some(endpoints))
}

/// An endpoint of a Service.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub ready: bool,
    pub pod: Option<String>,
    pub address: Option<SocketAddr>,
    pub ip: Option<IpAddr>,
    /// The ports of its slice by name. A port is missing if the pod does not have the Service's `targetPort`.
    pub ports: BTreeMap<String, Option<u16>>,
}
