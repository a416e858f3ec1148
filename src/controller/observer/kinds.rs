//! The kinds of objects that may route clients to old's frontends.

use kube::api::ApiResource;

use super::super::old_frontends::kind;

const GATEWAY: &str = "gateway.networking.k8s.io";
const ISTIO: &str = "networking.istio.io";

/// A kind with its plural and the versions that a cluster may serve.
type Kind = (&'static str, &'static str, &'static [&'static str]);

/// The kinds of routes that refer to Services, each with its group.
const ROUTES: [(&str, Kind); 5] = [
    (
        GATEWAY,
        ("HTTPRoute", "httproutes", &["v1", "v1beta1", "v1alpha2"]),
    ),
    (GATEWAY, ("GRPCRoute", "grpcroutes", &["v1", "v1alpha2"])),
    (
        GATEWAY,
        ("TLSRoute", "tlsroutes", &["v1", "v1alpha3", "v1alpha2"]),
    ),
    (GATEWAY, ("TCPRoute", "tcproutes", &["v1", "v1alpha2"])),
    ("route.openshift.io", ("Route", "routes", &["v1"])),
];

/// The kinds of a mesh that refer to hosts and addresses.
const OF_ISTIO: [Kind; 3] = [
    (
        "VirtualService",
        "virtualservices",
        &["v1", "v1beta1", "v1alpha3"],
    ),
    (
        "ServiceEntry",
        "serviceentries",
        &["v1", "v1beta1", "v1alpha3"],
    ),
    (
        "WorkloadEntry",
        "workloadentries",
        &["v1", "v1beta1", "v1alpha3"],
    ),
];

/// The kinds of routes that refer to Services, by name and with their versions.
pub(super) fn routes() -> impl Iterator<Item = (&'static str, Vec<ApiResource>)> {
    let all = ROUTES.into_iter();
    all.map(|(group, kind)| (kind.0, versions(group, kind)))
}

/// The kinds of a mesh that refer to hosts and addresses, by name and with their versions.
pub(super) fn of_istio() -> impl Iterator<Item = (&'static str, Vec<ApiResource>)> {
    let all = OF_ISTIO.into_iter();
    all.map(|kind| (kind.0, versions(ISTIO, kind)))
}

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
