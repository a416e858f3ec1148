//! The endpoints of a cached EndpointSlice. A large cluster has hundreds of thousands, so each is kept as a short list instead of
//! the nested objects of the API.

use kube::api::DynamicObject;
use serde_json::{Value as Json, json};

use crate::k8s::slices::{SERVICE_LABEL, is_ready};

/// The fields of an endpoint that are used.
#[derive(Clone, Copy, Debug)]
pub struct SliceEndpoint<'a> {
    /// Whether it is ready.
    pub ready: bool,
    /// The name of its `targetRef`.
    pub target: Option<&'a str>,
    addresses: &'a [Json],
}

impl<'a> SliceEndpoint<'a> {
    /// Its addresses, or host names in a slice of the type `FQDN`.
    pub fn addresses(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.addresses.iter().filter_map(Json::as_str)
    }

    fn of(endpoint: &'a Json) -> Self {
        match endpoint.as_array().map(Vec::as_slice) {
            Some([ready, target, addresses @ ..]) => Self {
                ready: *ready != false,
                target: target.as_str(),
                addresses,
            },
            _ => Self {
                ready: is_ready(endpoint["conditions"]["ready"].as_bool()),
                target: endpoint["targetRef"]["name"].as_str(),
                addresses: endpoint["addresses"].as_array().map_or(&[], Vec::as_slice),
            },
        }
    }
}

/// The endpoints of an EndpointSlice. Reads JSON, so that an invalid field does not hide an endpoint.
pub fn endpoints(slice: &DynamicObject) -> impl Iterator<Item = SliceEndpoint<'_>> {
    let endpoints = slice.data["endpoints"].as_array().into_iter().flatten();
    endpoints.map(SliceEndpoint::of)
}

/// Drops the unused fields of an EndpointSlice.
pub(super) fn trim(slice: &mut DynamicObject) {
    let short = endpoints(slice).map(|endpoint| {
        let mut parts = vec![json!(endpoint.ready), json!(endpoint.target)];
        parts.extend(endpoint.addresses.iter().cloned());
        // Without the spare capacity of a growing list.
        parts.shrink_to_fit();
        Json::from(parts)
    });
    let short: Json = short.collect();
    slice.data = json!({
        "addressType": slice.data["addressType"], "endpoints": short, "ports": slice.data["ports"],
    });
    slice.metadata.annotations = None;
    // Kubernetes makes the Service the owner of nearly every slice.
    let labels = slice.metadata.labels.as_ref();
    let service = labels.and_then(|labels| labels.get(SERVICE_LABEL)).cloned();
    let owners = slice.metadata.owner_references.take();
    let owners = owners.into_iter().flatten();
    let others =
        owners.filter(|owner| owner.kind != "Service" || Some(&owner.name) != service.as_ref());
    slice.metadata.owner_references =
        Some(others.collect()).filter(|others: &Vec<_>| !others.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimming_a_slice_does_not_change_its_meaning() {
        let endpoints_json = json!([
            {
                "addresses": ["10.0.0.1", "10.0.0.2"], "nodeName": "n",
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "name": "a", "namespace": "n", "uid": "u"},
            },
            {"addresses": ["host.example"], "conditions": {"ready": false, "serving": true}},
            {"addresses": [], "conditions": {"serving": true}, "targetRef": {"name": "b"}},
            {"addresses": "no list", "targetRef": 7},
        ]);
        let slice: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "s", "labels": {SERVICE_LABEL: "x"}, "annotations": {"a": "b"}},
            "addressType": "IPv4", "endpoints": endpoints_json, "ports": [{"name": "http", "port": 8000}],
        }))
        .unwrap();
        let read = |slice: &DynamicObject| -> Vec<(bool, Option<String>, Vec<String>)> {
            endpoints(slice)
                .map(|one| {
                    let addresses = one.addresses().map(str::to_owned).collect();
                    (one.ready, one.target.map(str::to_owned), addresses)
                })
                .collect()
        };
        let before = read(&slice);
        let some = |text: &str| Some(text.to_owned());
        let both = vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()];
        assert_eq!(
            before,
            [
                (true, some("a"), both),
                (false, None, vec!["host.example".to_owned()]),
                (true, some("b"), Vec::new()),
                (true, None, Vec::new()),
            ]
        );
        let mut trimmed = slice.clone();
        trim(&mut trimmed);
        assert_eq!(read(&trimmed), before);
        assert_eq!(trimmed.data["ports"], slice.data["ports"]);
        assert_eq!(trimmed.metadata.labels, slice.metadata.labels);
        // What the API server sends again is the same.
        let once = trimmed.data.clone();
        trim(&mut trimmed);
        assert_eq!(trimmed.data, once);
    }
}
