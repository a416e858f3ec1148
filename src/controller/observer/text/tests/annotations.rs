//! Annotations of Ingresses and Services that lead to old.

use serde_json::json;

use super::super::super::routes::examples::{
    ingresses as ingresses_of, read, services as services_of,
};
use super::super::{EMISSARY_ANNOTATION, REPEATS};
use super::object_of;
use crate::k8s::object;

#[test]
fn an_ingress_leads_to_what_an_annotation_of_its_controller_names() {
    let alb = json!({"type": "forward", "forwardConfig": {"targetGroups": [
        {"serviceName": "legacy", "servicePort": "80"},
    ]}});
    let alb = alb.to_string();
    let mirror = "http://legacy.n.svc.cluster.local:80/$request_uri";
    let snippet = "proxy_pass http://10.0.0.1:8000;";
    let ingresses = [
        ("n", "alb.ingress.kubernetes.io/actions.all", &*alb),
        (
            "n",
            "nginx.ingress.kubernetes.io/default-backend",
            "n/legacy",
        ),
        ("n", "nginx.ingress.kubernetes.io/mirror-target", mirror),
        ("m", "nginx.ingress.kubernetes.io/auth-url", mirror),
        ("m", "nginx.org/location-snippets", snippet),
        (
            "n",
            "nginx.ingress.kubernetes.io/upstream-vhost",
            "legacy-2",
        ),
        ("m", "alb.ingress.kubernetes.io/actions.all", &*alb),
        // A name with its namespace.
        (
            "m",
            "nginx.ingress.kubernetes.io/default-backend",
            "n/legacy",
        ),
        // They have no meaning for a controller.
        ("n", "example.com/replaces", "legacy"),
        ("n", REPEATS, mirror),
    ];
    let objects = ingresses.iter().enumerate().map(|(index, ingress)| {
        let (namespace, name, value) = ingress;
        let metadata = json!({
            "name": index.to_string(), "namespace": namespace, "annotations": {*name: value},
        });
        object(json!({"metadata": metadata, "spec": {}}))
    });
    let expected = [
        "Ingress 0 by its annotation alb.ingress.kubernetes.io/actions.all",
        "Ingress 1 by its annotation nginx.ingress.kubernetes.io/default-backend",
        "Ingress 2 by its annotation nginx.ingress.kubernetes.io/mirror-target",
        "Ingress m/3 by its annotation nginx.ingress.kubernetes.io/auth-url",
        "Ingress m/4 by its annotation nginx.org/location-snippets",
        "Ingress m/7 by its annotation nginx.ingress.kubernetes.io/default-backend",
    ];
    assert_eq!(
        read(|to_old| ingresses_of(objects).leading_to(to_old)),
        expected
    );
}

#[test]
fn a_service_leads_to_the_target_of_its_emissary_annotation() {
    let service = |name: &str, annotation: &str, value: &str| {
        object_of(
            name,
            &json!({"metadata": {"annotations": {annotation: value}}, "spec": {}}),
        )
    };
    let mapping = "---\napiVersion: getambassador.io/v3alpha1\nkind: Mapping\nprefix: /\nservice: legacy:80\n";
    let services = vec![
        service("n/own", EMISSARY_ANNOTATION, mapping),
        service(
            "m/there",
            EMISSARY_ANNOTATION,
            &mapping.replace("legacy", "legacy.n"),
        ),
        service("m/other", EMISSARY_ANNOTATION, mapping),
        service("n/example", "example.com/replaces", "legacy.n.svc"),
    ];
    let found = read(|to_old| services_of(services).leading_to(to_old));
    let expected = ["n/own", "m/there"];
    assert_eq!(
        found,
        expected.map(|name| format!("Service {name} by an annotation"))
    );
}
