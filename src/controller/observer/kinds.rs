//! The kinds of objects that may route clients to old's frontends.

use kube::api::ApiResource;

use super::super::old_frontends::kind;

pub(super) const GATEWAY: &str = "gateway.networking.k8s.io";

/// The kinds of routes that refer to Services in `backendRefs`, each with the versions that a cluster may serve.
pub(super) const ROUTES: [(&str, &str, &[&str]); 4] = [
    ("HTTPRoute", "httproutes", &["v1", "v1beta1", "v1alpha2"]),
    ("GRPCRoute", "grpcroutes", &["v1", "v1alpha2"]),
    ("TLSRoute", "tlsroutes", &["v1", "v1alpha3", "v1alpha2"]),
    ("TCPRoute", "tcproutes", &["v1", "v1alpha2"]),
];

pub(super) fn pods() -> ApiResource {
    kind("", "v1", "Pod", "pods")
}

pub(super) fn slices() -> ApiResource {
    kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
}

pub(super) fn graphs() -> ApiResource {
    kind(
        "nvidia.com",
        "v1alpha1",
        "DynamoGraphDeployment",
        "dynamographdeployments",
    )
}

pub(super) fn ingresses() -> ApiResource {
    kind("networking.k8s.io", "v1", "Ingress", "ingresses")
}

pub(super) fn services() -> ApiResource {
    kind("", "v1", "Service", "services")
}

pub(super) fn virtual_services() -> Vec<ApiResource> {
    let all = &["v1", "v1beta1", "v1alpha3"];
    versions(
        "networking.istio.io",
        ("VirtualService", "virtualservices", all),
    )
}

/// What offers a Service to other clusters.
pub(super) fn exports() -> Vec<ApiResource> {
    let all = &["v1", "v1beta1", "v1alpha1"];
    versions(
        "multicluster.x-k8s.io",
        ("ServiceExport", "serviceexports", all),
    )
}

/// A kind in each of its versions.
pub(super) fn versions(
    group: &str,
    (name, plural, all): (&str, &str, &[&str]),
) -> Vec<ApiResource> {
    let all = all.iter();
    all.map(|version| kind(group, version, name, plural))
        .collect()
}
