//! The kinds of objects that may route clients to old's frontends.
//!
//! Only OpenShift's Route has its version here, because an aggregated API server serves it. All other kinds are read in any
//! version that the cluster serves.

use kube::api::ApiResource;

use crate::k8s::GroupKind;
use crate::k8s::kinds::api_resource;
pub(super) use crate::k8s::kinds::services;

const GATEWAY: &str = "gateway.networking.k8s.io";
const ISTIO: &str = "networking.istio.io";
const APP_MESH: &str = "appmesh.k8s.aws";
const KUMA: &str = "kuma.io";

/// The kinds of routes that refer to Services in `backendRefs`.
pub(super) const ROUTES: &[GroupKind] = &[
    of(GATEWAY, "HTTPRoute", "httproutes"),
    of(GATEWAY, "GRPCRoute", "grpcroutes"),
    of(GATEWAY, "TLSRoute", "tlsroutes"),
    of(GATEWAY, "TCPRoute", "tcproutes"),
    of(GATEWAY, "UDPRoute", "udproutes"),
    of("policy.linkerd.io", "HTTPRoute", "httproutes"),
];

/// The kinds of a mesh that refer to hosts and addresses.
pub(super) const MESH_CONFIG: &[GroupKind] = &[
    of(ISTIO, "VirtualService", "virtualservices"),
    of(ISTIO, "ServiceEntry", "serviceentries"),
    of(ISTIO, "WorkloadEntry", "workloadentries"),
];

/// The kinds that export the Service with the same name to other clusters or networks.
pub(super) const EXPORTS: &[GroupKind] = &[
    of("multicluster.x-k8s.io", "ServiceExport", "serviceexports"),
    of("net.gke.io", "ServiceExport", "serviceexports"),
    of(
        "application-networking.k8s.aws",
        "ServiceExport",
        "serviceexports",
    ),
    of(
        "networking.karmada.io",
        "MultiClusterService",
        "multiclusterservices",
    ),
];

/// InferencePool, in both groups that it has had.
pub(super) const POOLS: [GroupKind; 2] = [
    of(
        "inference.networking.k8s.io",
        "InferencePool",
        "inferencepools",
    ),
    of(
        "inference.networking.x-k8s.io",
        "InferencePool",
        "inferencepools",
    ),
];

/// All other kinds by which gateways and meshes route. They are not parsed: they count as routing to anything that their text
/// names.
pub(super) const BY_TEXT: &[GroupKind] = &[
    of(ISTIO, "DestinationRule", "destinationrules"),
    of(ISTIO, "EnvoyFilter", "envoyfilters"),
    of(ISTIO, "Sidecar", "sidecars"),
    of("traefik.io", "IngressRoute", "ingressroutes"),
    of("traefik.io", "IngressRouteTCP", "ingressroutetcps"),
    of("traefik.io", "IngressRouteUDP", "ingressrouteudps"),
    of("traefik.io", "Middleware", "middlewares"),
    of("traefik.io", "TraefikService", "traefikservices"),
    of("traefik.containo.us", "IngressRoute", "ingressroutes"),
    of("traefik.containo.us", "IngressRouteTCP", "ingressroutetcps"),
    of("traefik.containo.us", "IngressRouteUDP", "ingressrouteudps"),
    of("traefik.containo.us", "Middleware", "middlewares"),
    of("traefik.containo.us", "TraefikService", "traefikservices"),
    of("projectcontour.io", "HTTPProxy", "httpproxies"),
    of("gateway.envoyproxy.io", "Backend", "backends"),
    of(
        "gateway.envoyproxy.io",
        "EnvoyPatchPolicy",
        "envoypatchpolicies",
    ),
    of(
        "aigateway.envoyproxy.io",
        "AIGatewayRoute",
        "aigatewayroutes",
    ),
    of(
        "aigateway.envoyproxy.io",
        "AIServiceBackend",
        "aiservicebackends",
    ),
    of(
        "agentgateway.dev",
        "AgentgatewayBackend",
        "agentgatewaybackends",
    ),
    of("gateway.kgateway.dev", "Backend", "backends"),
    of("gateway.networking.x-k8s.io", "XBackend", "xbackends"),
    of("gateway.solo.io", "RouteTable", "routetables"),
    of("gateway.solo.io", "VirtualService", "virtualservices"),
    of("gloo.solo.io", "Upstream", "upstreams"),
    of("gloo.solo.io", "UpstreamGroup", "upstreamgroups"),
    of("configuration.konghq.com", "KongService", "kongservices"),
    of("configuration.konghq.com", "KongTarget", "kongtargets"),
    of("configuration.konghq.com", "TCPIngress", "tcpingresses"),
    of("configuration.konghq.com", "UDPIngress", "udpingresses"),
    of(
        "incubator.ingress-controller.konghq.com",
        "KongServiceFacade",
        "kongservicefacades",
    ),
    of("gateway.nginx.org", "SnippetsFilter", "snippetsfilters"),
    of("k8s.nginx.org", "TransportServer", "transportservers"),
    of("k8s.nginx.org", "VirtualServer", "virtualservers"),
    of("k8s.nginx.org", "VirtualServerRoute", "virtualserverroutes"),
    of("ingress.v1.haproxy.org", "TCP", "tcps"),
    of("ingress.v3.haproxy.org", "TCP", "tcps"),
    of("getambassador.io", "Mapping", "mappings"),
    of("getambassador.io", "TCPMapping", "tcpmappings"),
    of("apisix.apache.org", "ApisixRoute", "apisixroutes"),
    of("apisix.apache.org", "ApisixUpstream", "apisixupstreams"),
    of("zalando.org", "RouteGroup", "routegroups"),
    of("cis.f5.com", "TransportServer", "transportservers"),
    of("cis.f5.com", "VirtualServer", "virtualservers"),
    of("networking.higress.io", "McpBridge", "mcpbridges"),
    of("elbv2.k8s.aws", "TargetGroupBinding", "targetgroupbindings"),
    of(
        "networking.gke.io",
        "ServiceAttachment",
        "serviceattachments",
    ),
    of("split.smi-spec.io", "TrafficSplit", "trafficsplits"),
    of("linkerd.io", "ServiceProfile", "serviceprofiles"),
    of(APP_MESH, "GatewayRoute", "gatewayroutes"),
    of(APP_MESH, "VirtualNode", "virtualnodes"),
    of(APP_MESH, "VirtualRouter", "virtualrouters"),
    of(APP_MESH, "VirtualService", "virtualservices"),
    of(KUMA, "ExternalService", "externalservices"),
    of(KUMA, "MeshExternalService", "meshexternalservices"),
    of(KUMA, "MeshGatewayRoute", "meshgatewayroutes"),
    of(KUMA, "MeshHTTPRoute", "meshhttproutes"),
    of(KUMA, "MeshTCPRoute", "meshtcproutes"),
    of(KUMA, "TrafficRoute", "trafficroutes"),
    of(CONSUL, "ServiceResolver", "serviceresolvers"),
    of(CONSUL, "ServiceRouter", "servicerouters"),
    of(CONSUL, "ServiceSplitter", "servicesplitters"),
    of("cilium.io", "CiliumEnvoyConfig", "ciliumenvoyconfigs"),
    of(
        "cilium.io",
        "CiliumClusterwideEnvoyConfig",
        "ciliumclusterwideenvoyconfigs",
    ),
    of(
        "cilium.io",
        "CiliumLocalRedirectPolicy",
        "ciliumlocalredirectpolicies",
    ),
    of("serving.knative.dev", "DomainMapping", "domainmappings"),
    of("networking.internal.knative.dev", "Ingress", "ingresses"),
    of("serving.kserve.io", "InferenceGraph", "inferencegraphs"),
    of("http.keda.sh", "HTTPScaledObject", "httpscaledobjects"),
    of("http.keda.sh", "InterceptorRoute", "interceptorroutes"),
    of("externaldns.k8s.io", "DNSEndpoint", "dnsendpoints"),
    of(
        "networking.cfargotunnel.com",
        "TunnelBinding",
        "tunnelbindings",
    ),
    of("ngrok.k8s.ngrok.com", "AgentEndpoint", "agentendpoints"),
    of("ngrok.k8s.ngrok.com", "CloudEndpoint", "cloudendpoints"),
    of("skupper.io", "Connector", "connectors"),
    of(
        "networking.karmada.io",
        "MultiClusterIngress",
        "multiclusteringresses",
    ),
];

/// The kinds that are read only because they may own what clients or new need.
pub(super) const OWNERS: &[GroupKind] = &[
    of(
        "nvidia.com",
        "DynamoComponentDeployment",
        "dynamocomponentdeployments",
    ),
    of(
        "nvidia.com",
        "DynamoGraphDeploymentRequest",
        "dynamographdeploymentrequests",
    ),
    of("grove.io", "PodClique", "podcliques"),
    of(
        "grove.io",
        "PodCliqueScalingGroup",
        "podcliquescalinggroups",
    ),
    of("grove.io", "PodCliqueSet", "podcliquesets"),
    of(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        "leaderworkersets",
    ),
    of(
        "workload.serving.volcano.sh",
        "ModelServing",
        "modelservings",
    ),
    of("argoproj.io", "Rollout", "rollouts"),
    of("serving.kserve.io", "InferenceService", "inferenceservices"),
    of(
        "serving.kserve.io",
        "LLMInferenceService",
        "llminferenceservices",
    ),
];

/// The group whose objects name Services without a namespace, which may be any.
pub(super) const CONSUL: &str = "consul.hashicorp.com";

const fn of(group: &'static str, kind: &'static str, plural: &'static str) -> GroupKind {
    GroupKind {
        group,
        kind,
        plural,
    }
}

pub(super) fn claims() -> ApiResource {
    api_resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
}

pub(super) fn pods() -> ApiResource {
    api_resource("", "v1", "Pod", "pods")
}

pub(super) fn replica_sets() -> ApiResource {
    api_resource("apps", "v1", "ReplicaSet", "replicasets")
}

pub(super) fn slices() -> ApiResource {
    api_resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
}

pub(super) fn graphs() -> ApiResource {
    api_resource(
        "nvidia.com",
        "v1alpha1",
        "DynamoGraphDeployment",
        "dynamographdeployments",
    )
}

pub(super) fn ingresses() -> ApiResource {
    api_resource("networking.k8s.io", "v1", "Ingress", "ingresses")
}

pub(super) fn routes_of_openshift() -> ApiResource {
    api_resource("route.openshift.io", "v1", "Route", "routes")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_controller_may_read_every_kind_that_may_route_to_old() {
        let rules = include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/deploy/controller/rbac.yaml"
        ));
        let mut granted = BTreeSet::new();
        let (mut groups, mut plurals) = (Vec::new(), Vec::new());
        let list = |line: &str| -> Vec<String> {
            let (_, list) = line.split_once('[').unwrap();
            let list = list.trim_end_matches(']').split(',');
            list.map(|one| one.trim().trim_matches('"').to_owned())
                .collect()
        };
        for line in rules.lines() {
            if line.starts_with("- apiGroups:") {
                groups = list(line);
            } else if line.starts_with("  resources:") {
                plurals = list(line);
            } else if line.starts_with("  verbs: [get, list, watch") {
                for group in &groups {
                    granted.extend(plurals.iter().map(|plural| format!("{plural}.{group}")));
                }
            }
        }
        let kinds = ROUTES.iter().chain(MESH_CONFIG).chain(EXPORTS);
        for kind in kinds.chain(&POOLS).chain(BY_TEXT).chain(OWNERS) {
            let name = format!("{}.{}", kind.plural, kind.group);
            assert!(granted.contains(&name), "{name}");
        }
        for kind in [claims(), pods(), replica_sets(), services(), slices()] {
            let name = format!("{}.{}", kind.plural, kind.group);
            assert!(granted.contains(&name), "{name}");
        }
    }
}
