//! Evaluates `deploy/network-policy` according to the Kubernetes API: which pods may connect to the admin port of a proxy.

use std::fs;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::deploy::{deploy, dry_run, kustomize, of_kind, plain_with};

const ADMIN: i64 = 9464;

/// The pod that connects: its namespace and labels.
struct Peer<'a> {
    namespace: &'a str,
    labels: Value,
}

/// Whether a selector (`metav1.LabelSelector`) matches these labels. An empty one matches all.
fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object();
    let by_labels = wanted.is_none_or(|wanted| {
        let mut wanted = wanted.iter();
        wanted.all(|(name, value)| labels[name] == *value)
    });
    let expressions = selector["matchExpressions"].as_array();
    let by_expressions = expressions.is_none_or(|all| {
        all.iter().all(|expression| {
            let is_there = !labels[expression["key"].as_str().unwrap()].is_null();
            match expression["operator"].as_str() {
                Some("Exists") => is_there,
                Some("DoesNotExist") => !is_there,
                other => panic!("{other:?} is not evaluated here"),
            }
        })
    });
    by_labels && by_expressions
}

/// Whether `from` (a `NetworkPolicyPeer`) matches this pod. `own` is the namespace of the policy.
fn is_meant(from: &Value, own: &str, peer: &Peer<'_>) -> bool {
    assert!(from["ipBlock"].is_null(), "not evaluated here");
    let namespace = &from["namespaceSelector"];
    let of_namespace = match namespace.is_null() {
        true => peer.namespace == own,
        // The label that the API server puts on every namespace.
        false => selects(
            namespace,
            &json!({"kubernetes.io/metadata.name": peer.namespace}),
        ),
    };
    of_namespace && selects(&from["podSelector"], &peer.labels)
}

/// Whether a policy in namespace `own` admits this peer.
fn admits(policy: &Value, own: &str, peer: &Peer<'_>, protocol: &str, port: i64) -> bool {
    let rules = policy["spec"]["ingress"].as_array().unwrap();
    rules.iter().any(|rule| {
        let ports = rule["ports"].as_array();
        let by_port = ports.is_none_or(|ports| {
            ports.iter().any(|range| {
                let first = range["port"].as_i64().unwrap();
                let last = range["endPort"].as_i64().unwrap_or(first);
                range["protocol"] == protocol && (first..=last).contains(&port)
            })
        });
        let from = rule["from"].as_array();
        let by_peer = from.is_none_or(|from| from.iter().any(|from| is_meant(from, own, peer)));
        by_port && by_peer
    })
}

#[test]
fn the_network_policy_opens_the_admin_port_to_the_controller_and_prometheus_and_to_no_one_else() {
    let cluster = Cluster::api_server();
    let policy = fs::read_to_string(deploy().join("network-policy/admin.yaml")).unwrap();
    let policy = dry_run(&cluster, &policy).remove(0);
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));

    // The controller in `deploy/controller`.
    let controller = kustomize(&cluster, &deploy().join("controller"));
    let documents: Vec<Value> = controller
        .split("\n---\n")
        .map(|text| {
            let args = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
            serde_json::from_str(&cluster.kubectl_with(&args, text)).unwrap()
        })
        .collect();
    let deployment = of_kind(&documents, "Deployment");
    let namespace = deployment["metadata"]["namespace"].as_str().unwrap();
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];

    let peer = |namespace, labels: &Value| Peer {
        namespace,
        labels: labels.clone(),
    };
    let prometheus = json!({"app.kubernetes.io/name": "prometheus"});
    let other = json!({"app": "other"});
    // The pods with a sidecar, to which the policy applies.
    let items = dry_run(&cluster, &plain_with(&cluster, "sidecar"));
    let template = &of_kind(&items, "Deployment")["spec"]["template"];
    let proxy = &template["metadata"]["labels"];
    assert!(selects(&policy["spec"]["podSelector"], proxy));
    assert!(!selects(&policy["spec"]["podSelector"], labels));

    let own = "team-a";
    for (who, is_admitted) in [
        (peer(namespace, labels), true),
        (peer("monitoring", &prometheus), true),
        (peer(namespace, &other), false),
        (peer("team-b", labels), false),
        (peer(own, labels), false),
        (peer(own, proxy), false),
        (peer(own, &json!({})), false),
        (peer("team-b", &prometheus), false),
        (peer("default", &other), false),
    ] {
        let what = format!("{} in {}", who.labels, who.namespace);
        assert_eq!(
            admits(&policy, own, &who, "TCP", ADMIN),
            is_admitted,
            "{what}"
        );
        // Other ports stay open.
        for (protocol, port) in [("TCP", 8000), ("TCP", 1), ("TCP", 65_535), ("UDP", 5353)] {
            assert!(admits(&policy, own, &who, protocol, port), "{what}: {port}");
        }
        for port in [ADMIN - 1, ADMIN + 1] {
            assert!(admits(&policy, own, &who, "TCP", port), "{what}: {port}");
        }
    }
}
