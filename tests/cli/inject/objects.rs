//! Objects that contain pods: how they were created, and how the controller finds their pods.

use serde_json::json;

use super::*;

const VLLM: &str = "        image: vllm/vllm-openai\n";

/// What an API server adds to a container or probe.
fn add_defaults(json: &mut Value) {
    match json {
        Value::Array(items) => items.iter_mut().for_each(add_defaults),
        Value::Object(map) => {
            map.values_mut().for_each(add_defaults);
            if map.contains_key("httpGet") || map.contains_key("image") {
                map.insert("successThreshold".into(), 1.into());
            }
        }
        _ => {}
    }
}

#[test]
fn a_manifest_that_an_api_server_has_rewritten_is_not_changed_again() {
    for (path, text) in corpus() {
        let report = injected(&text).unwrap();
        for manifest in manifests(&report.text).unwrap() {
            for mut object in manifest.objects {
                add_defaults(&mut object);
                let annotations = &mut object["metadata"]["annotations"];
                *annotations = serde_json::json!({"note": "was not applied"});
                object["metadata"]["uid"] = "u-1".into();
                for written in [yaml(&object), format!("{object:#}"), object.to_string()] {
                    let again = match injected(&written) {
                        Err(Error::NoFrontend { .. }) => continue,
                        again => again.unwrap_or_else(|error| panic!("{path:?}: {error}")),
                    };
                    assert_eq!(again.text, written, "{path:?}");
                    for note in again.notes {
                        let expected = "left as it is: it already has crossfade 0.1.0";
                        assert_eq!(note.summary, expected, "{path:?}");
                        assert!(note.details.is_empty(), "{note}");
                        assert!(!note.to_string().contains("kubectl replace"), "{note}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_sidecar_that_someone_has_changed_is_replaced_and_what_is_lost_is_reported() {
    let text = injected(&deployment(VLLM)).unwrap().text;
    let variable = "- name: CROSSFADE_DRAIN\n";
    for (from, to, lost) in [
        ("\"128Mi\"", "\"64Mi\"", "resources/requests/memory '64Mi'"),
        (
            "- name: CROSSFADE_KUBE\n",
            "- name: CROSSFADE_CUBE\n",
            "env CROSSFADE_CUBE=true",
        ),
        (
            "        - proxy\n",
            "        - proxy\n        - --log-format\n        - json\n",
            "args '--log-format' 'json'",
        ),
        (
            variable,
            &format!("- name: CROSSFADE_LOG\n          value: debug\n        {variable}"),
            "env CROSSFADE_LOG=debug",
        ),
        ("\"870\"", "\"60\"", "env/[CROSSFADE_DRAIN]/value '60'"),
        (
            "mountPath: /var/lib/crossfade\n",
            "mountPath: /var/lib/crossfade\n        - {name: tls, mountPath: /tls}\n",
            "volumeMounts {\"name\":\"tls\",\"mountPath\":\"/tls\"}",
        ),
        (
            "sizeLimit: \"16Mi\"",
            "sizeLimit: \"64Mi\"",
            "volume/emptyDir/sizeLimit '64Mi'",
        ),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{text}");
        let again = injected(&changed).unwrap();
        assert_eq!(again.text, text);
        let note = &again.notes[0];
        let updated = "its sidecar is updated: crossfade 0.1.0 as a native sidecar";
        assert!(note.summary.starts_with(updated), "{note}");
        let warning = format!(
            "its container 'crossfade' is replaced, so these changes to the earlier one are lost: {lost}"
        );
        assert_eq!(note.warnings, [warning]);
    }
}

/// What the options or defaults explain is no loss.
#[test]
fn an_update_of_the_sidecar_alone_loses_nothing() {
    let text = injected(&deployment(VLLM)).unwrap().text;
    let mut value: Value = serde_saphyr::from_str(&text).unwrap();
    add_defaults(&mut value);
    for text in [text, value.to_string()] {
        for options in [
            Options {
                image: Some("registry.example/crossfade:2".into()),
                drain: Some(600),
                deployment: Some("other".into()),
                ..Options::default()
            },
            Options {
                plain_container: true,
                ..Options::default()
            },
        ] {
            let report = injected_with(&text, &options).unwrap();
            let note = &report.notes[0];
            assert!(
                note.summary.starts_with("its sidecar is updated: "),
                "{note}"
            );
            assert!(!note.to_string().contains("are lost"), "{note}");
        }
    }
}

#[test]
fn the_objects_of_a_typed_list_have_its_kind() {
    for kind in ["Deployment", "StatefulSet"] {
        let item = json!({
            "metadata": {"name": "a"},
            "spec": {"template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "server", "image": "vllm/vllm-openai"}]},
            }},
        });
        let list = json!({"apiVersion": "apps/v1", "kind": format!("{kind}List"), "items": [item]});
        let text = yaml(&list);
        let report = injected(&text).unwrap();
        assert_eq!(report.notes[0].object, format!("{kind}/a"));
        assert_eq!(uninject(&report.text).unwrap().text, text);
        let objects = &manifests(&text).unwrap()[0].objects;
        assert_eq!(objects[0]["kind"], kind);
        assert_eq!(objects[0]["apiVersion"], "apps/v1");
        let service = json!({"metadata": {"name": "s"}, "spec": {"selector": {"app": "a"}, "ports": [{"port": 8000}]}});
        let services = json!({"apiVersion": "v1", "kind": "ServiceList", "items": [service]});
        let report = injected(&format!("{text}---\n{}", yaml(&services))).unwrap();
        assert_eq!(report.notes[1].object, "Service/s");
    }
}

#[test]
fn an_object_in_a_cluster_that_was_not_applied_is_written_back_with_replace() {
    let of_cluster = |annotations: &str| {
        let metadata =
            format!("metadata: {{name: server, uid: u-1, annotations: {{{annotations}}}}}");
        deployment(VLLM).replace("metadata: {name: server}", &metadata)
    };
    let last = "kubectl.kubernetes.io/last-applied-configuration";
    let warned = |report: &crossfade::inject::Report| {
        let warnings = report.notes.iter().flat_map(|note| &note.warnings);
        warnings
            .filter(|warning| warning.contains("`kubectl replace -f -`"))
            .count()
    };
    for (text, by_inject, by_uninject) in [
        (deployment(VLLM), 0, 0),
        (of_cluster(""), 1, 1),
        (of_cluster(&format!("{last}: '{{}}'")), 0, 1),
        (of_cluster(&format!("{last}: 'crossfade/injected'")), 0, 0),
    ] {
        let report = injected(&text).unwrap();
        assert_eq!(warned(&report), by_inject, "{text}");
        let back = uninject(&report.text).unwrap();
        assert_eq!((warned(&back), &back.text), (by_uninject, &text), "{text}");
    }
}

#[test]
fn pods_that_the_controller_would_not_find_get_its_labels() {
    let graph = "nvidia.com/dynamo-graph-deployment-name";
    let component = "nvidia.com/dynamo-component-type: frontend";
    let plain = deployment(VLLM);
    let named = Options {
        deployment: Some("other".into()),
        ..Options::default()
    };
    let labelled = plain.replace(
        "metadata: {labels: {app: a}}",
        &format!("metadata: {{labels: {{app: a, {graph}: old}}}}"),
    );
    let expressions = plain.replace(
        "matchLabels: {app: a}",
        "matchExpressions: [{key: app, operator: Exists}]",
    );
    for (text, options, name) in [
        (plain.clone(), Options::default(), None),
        (
            plain.replace("kind: Deployment", "kind: StatefulSet"),
            Options::default(),
            Some("server"),
        ),
        (plain, named, Some("other")),
        (labelled, Options::default(), Some("old")),
        (expressions, Options::default(), Some("server")),
    ] {
        let report = injected_with(&text, &options).unwrap();
        let read = report.text.replace('"', "");
        assert_eq!(read.contains(component), name.is_some(), "{}", report.text);
        if let Some(name) = name {
            assert!(
                read.contains(&format!("{graph}: {name}")),
                "{}",
                report.text
            );
        }
        let details = report.notes[0].details.join("\n");
        let expected = format!(
            "updates refer to it by this name: {} (sourceDeployment, or targetDeployment if",
            name.unwrap_or("server")
        );
        assert!(details.contains(&expected), "{details}");
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
}

#[test]
fn names_that_are_invalid_as_labels_and_invalid_images_are_rejected() {
    let long = "a".repeat(64);
    let dynamo = deployment("        image: x/dynamo-frontend\n");
    for name in ["a b", &long, "", "-a", "a."] {
        for text in [&dynamo, &deployment(VLLM)] {
            let options = Options {
                deployment: Some(name.to_owned()),
                ..Options::default()
            };
            let error = injected_with(text, &options).unwrap_err().to_string();
            assert!(
                error.contains("--deployment") && error.contains("is not a valid value of a label"),
                "{error}"
            );
        }
    }
    let named = |text: &str| {
        text.replace(
            "metadata: {name: server}",
            &format!("metadata: {{name: {long}}}"),
        )
    };
    let error = injected(&named(&dynamo)).unwrap_err().to_string();
    assert!(
        error.contains("set another name with --deployment"),
        "{error}"
    );
    // These pods need no label.
    injected(&named(&deployment(VLLM))).unwrap();
    let graph = include_str!("../../corpus/inject/graph-v1alpha1.yaml");
    let options = Options {
        deployment: Some("other".into()),
        ..Options::default()
    };
    let error = injected_with(graph, &options).unwrap_err().to_string();
    assert!(
        error.contains("labels its pods with the name of the graph, vllm-disagg"),
        "{error}"
    );
    for image in [
        "",
        " ",
        "a b",
        "-x",
        "a\tb",
        "https://a/b",
        "a:b:c",
        "UPPER/x",
    ] {
        let options = Options {
            image: Some(image.to_owned()),
            ..Options::default()
        };
        let error = injected_with(&dynamo, &options).unwrap_err().to_string();
        assert!(error.contains("is not a valid image name"), "{error}");
    }
}

#[test]
fn a_service_account_without_a_mounted_token_is_mentioned_in_any_boolean_style() {
    let account = "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: own}\nautomountServiceAccountToken: no\n";
    let own = "      serviceAccountName: own\n";
    for (pod, warned) in [
        (own.to_owned(), true),
        (String::new(), false),
        (
            format!("{own}      automountServiceAccountToken: true\n"),
            false,
        ),
    ] {
        let text = format!("{}{account}", deployment(&format!("{VLLM}{pod}")));
        let report = injected(&text).unwrap();
        let note_of_account = report
            .notes
            .iter()
            .find(|note| note.object == "ServiceAccount/own");
        assert_eq!(note_of_account.is_some(), warned, "{pod}");
        assert!(
            note_of_account.is_none_or(|note| note.to_string().contains("cannot read updates"))
        );
    }
    let text = deployment(&format!(
        "{VLLM}        ports: [{{containerPort: 8000, hostPort: 8000}}]\n      hostNetwork: yes\n      automountServiceAccountToken: Off\n"
    ));
    let report = injected(&text).unwrap();
    let warnings = report.notes[0].warnings.join("\n");
    assert!(
        warnings.contains("hostNetwork")
            && warnings.contains("automountServiceAccountToken is false"),
        "{warnings}"
    );
    // In the host network, each container port is a port of the node.
    assert!(
        report.text.contains("containerPort: 8080, hostPort: 8080"),
        "{}",
        report.text
    );
}

#[test]
fn null_fields_are_set_and_restored() {
    for null in ["", " null", " ~ # none"] {
        let text = deployment(&format!(
            "{VLLM}        lifecycle:\n          preStop:{null}\n      terminationGracePeriodSeconds:{null}\n"
        ));
        let report = injected(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
        assert!(
            report.text.contains("terminationGracePeriodSeconds: 900"),
            "{}",
            report.text
        );
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
}

#[test]
fn the_objects_of_a_json_stream_are_edited_one_by_one() {
    let object = |name: &str| {
        let object = serde_json::json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [{"name": "server", "image": "vllm/vllm-openai"}]},
                },
            },
        });
        object.to_string()
    };
    let text = format!("{}\n{}\n", object("a"), object("b"));
    let report = injected(&text).unwrap();
    let lines: Vec<_> = report
        .notes
        .iter()
        .map(|note| (&*note.object, note.line))
        .collect();
    assert_eq!(lines, [("Deployment/a", 1), ("Deployment/b", 2)]);
    for line in report.text.lines() {
        serde_json::from_str::<Value>(line).unwrap();
        assert!(line.contains("CROSSFADE_OLD"), "{line}");
    }
    assert_eq!(uninject(&report.text).unwrap().text, text);
}

#[test]
fn the_output_of_another_version_is_left_as_it_is_unless_the_pods_would_change() {
    let image = |tag: &str| Options {
        image: Some(format!("registry.example/crossfade:{tag}")),
        ..Options::default()
    };
    let text = deployment("        image: vllm/vllm-openai\n");
    let this = injected_with(&text, &image("1")).unwrap().text;
    let version = format!("\\\"version\\\":\\\"{}\\\"", env!("CARGO_PKG_VERSION"));
    let other = [version.clone(), version.replace("\\\"", "\"")]
        .into_iter()
        .find(|version| this.contains(version.as_str()))
        .map(|version| {
            this.replace(
                &version,
                &version.replace(env!("CARGO_PKG_VERSION"), "0.0.9"),
            )
        });
    let other = other.expect("the record has a version");
    assert_eq!(injected(&other).unwrap().text, other);
    let updated = injected_with(&other, &image("2")).unwrap().text;
    assert_eq!(updated, injected_with(&this, &image("2")).unwrap().text);
    assert!(updated.contains(":2") && updated != this);
}

#[test]
fn an_object_that_a_controller_manages_is_reported() {
    let owned = deployment(VLLM).replace(
        "metadata: {name: server}",
        "metadata: {name: server, ownerReferences: [{apiVersion: nvidia.com/v1beta1, kind: DynamoGraphDeployment, name: agg, uid: u, controller: true}]}",
    );
    let expected = "it is controlled by DynamoGraphDeployment/agg, which may revert changes";
    let report = injected(&owned).unwrap();
    let note = report.notes[0].to_string();
    assert!(note.contains(expected), "{note}");
    let note = uninject(&report.text).unwrap().notes[0].to_string();
    assert!(note.contains(expected), "{note}");
    let free = owned.replace(", controller: true", "");
    let note = injected(&free).unwrap().notes[0].to_string();
    assert!(!note.contains("is controlled by"), "{note}");
}

#[test]
fn the_pods_of_a_plain_deployment_get_the_label_by_which_the_network_policy_selects_them() {
    let policy = include_str!("../../../deploy/network-policy/admin.yaml");
    assert!(policy.contains("{key: crossfade/proxy, operator: Exists}"));
    let text = deployment(VLLM);
    let report = injected(&text).unwrap();
    let read = &manifests(&report.text).unwrap()[0].objects[0];
    let labels = &read["spec"]["template"]["metadata"]["labels"];
    assert_eq!(
        *labels,
        serde_json::json!({"app": "a", "crossfade/proxy": "true"})
    );
    // The label alone does not restart pods that got crossfade from an earlier version.
    let path = ",\\\"spec/template/metadata/labels/crossfade~1proxy\\\"";
    let earlier = report.text.replace(path, "");
    let earlier = earlier.replace(", \"crossfade/proxy\": \"true\"", "");
    assert!(!earlier.contains("crossfade/proxy"), "{earlier}");
    let again = injected(&earlier).unwrap();
    assert_eq!(again.text, earlier);
    let [warning] = again.notes[0].warnings.as_slice() else {
        panic!("{}", again.notes[0]);
    };
    assert!(
        warning.starts_with("its pods lack the label crossfade/proxy"),
        "{warning}"
    );
    let removed = uninject(&earlier).unwrap().text;
    assert_eq!(injected(&removed).unwrap().text, report.text);
    assert!(injected(&report.text).unwrap().notes[0].warnings.is_empty());
}

#[test]
fn a_network_policy_that_closes_the_admin_port_is_reported() {
    let policy = |spec: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: closed}}\nspec: {{{spec}}}\n"
        )
    };
    let only = |port: &str| {
        format!(
            "podSelector: {{matchLabels: {{app: a}}}}, ingress: [{{ports: [{{port: {port}}}]}}]"
        )
    };
    let by = |expression: &str| {
        format!("podSelector: {{matchExpressions: [{{{expression}}}]}}, policyTypes: [Ingress]")
    };
    for (policies, is_closed) in [
        (policy(&only("8000")), true),
        (policy("podSelector: {}"), true),
        (policy(&by("key: crossfade/proxy, operator: Exists")), true),
        (policy(&by("key: app, operator: NotIn, values: [b]")), true),
        (policy(&by("key: app, operator: In, values: [b]")), false),
        (policy(&by("key: app, operator: DoesNotExist")), false),
        (policy(&only("9464, protocol: UDP")), true),
        (policy(&only("9464")), false),
        (policy(&only("crossfade")), false),
        (policy(&only("9000, endPort: 9999")), false),
        (policy(&only("1, endPort: 9463")), true),
        (
            policy(&(only("8000") + ", policyTypes: [Egress], egress: [{}]")),
            false,
        ),
        (policy("podSelector: {}, ingress: [{}]"), false),
        (policy("podSelector: {matchLabels: {app: b}}"), false),
        (policy(&only("8000")) + &policy(&only("9464")), false),
        (
            policy(&only("8000")).replace("name: closed", "name: closed, namespace: other"),
            false,
        ),
    ] {
        let text = deployment(VLLM) + &policies;
        let report = injected(&text).unwrap();
        assert!(report.text.ends_with(&policies), "{}", report.text);
        let notes = report.notes.iter();
        let notes: Vec<_> = notes
            .filter(|note| note.object == "NetworkPolicy/closed")
            .map(ToString::to_string)
            .collect();
        let says = "do not allow port 9464 of Deployment/server";
        assert_eq!(notes.len(), usize::from(is_closed), "{policies}: {notes:?}");
        assert!(notes.iter().all(|note| note.contains(says)), "{notes:?}");
    }
}

#[test]
fn egress_that_crossfade_needs_is_reported_as_far_as_it_can_be_checked() {
    let policy = |name: &str, spec: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\nspec: {{podSelector: {{}}, {spec}}}\n"
        )
    };
    let unclear = "not checked, because only some destinations or ports are allowed";
    let no = "not allowed";
    let dns = "ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]";
    let api = "ports: [{port: 443}, {port: 6000, endPort: 7000}]";
    let to = "to: [{podSelector: {}}]";
    for (spec, expected) in [
        ("policyTypes: [Egress]".to_owned(), Some([no, no, no])),
        (
            "policyTypes: [Ingress, Egress], ingress: [{}]".to_owned(),
            Some([no, no, no]),
        ),
        (
            "ingress: [{}], policyTypes: [Ingress], egress: [{to: []}]".to_owned(),
            None,
        ),
        ("ingress: [{}], egress: []".to_owned(), None),
        ("ingress: [{}], egress: [{}]".to_owned(), None),
        (
            format!("ingress: [{{}}], egress: [{{{to}}}]"),
            Some([unclear; 3]),
        ),
        (
            format!("policyTypes: [Egress], egress: [{{{dns}}}]"),
            Some(["allowed", no, unclear]),
        ),
        (
            format!("policyTypes: [Egress], egress: [{{{dns}, {to}}}, {{{api}}}]"),
            Some([unclear, "allowed", unclear]),
        ),
        (
            "policyTypes: [Egress], egress: [{ports: [{protocol: UDP}]}]".to_owned(),
            Some([unclear, no, no]),
        ),
        (
            "policyTypes: [Egress], egress: [{ports: [{port: 443}]}]".to_owned(),
            Some([no, unclear, unclear]),
        ),
        (
            "policyTypes: [Egress], egress: [{ports: [{protocol: UDP}, {protocol: TCP}]}]"
                .to_owned(),
            None,
        ),
    ] {
        let report = injected(&(deployment(VLLM) + &policy("out", &spec))).unwrap();
        let notes = report
            .notes
            .iter()
            .filter(|note| note.object == "NetworkPolicy/out");
        let warnings: Vec<_> = notes.flat_map(|note| note.warnings.clone()).collect();
        let expected = expected.map(|[dns, api, new]| {
            format!(
                "its egress rules must allow crossfade in Deployment/server to reach: DNS (UDP and TCP port 53): {dns}; the API \
                 server (TCP, usually port 443 or 6443): {api}; the new frontend's Service and pods (TCP): {new}"
            )
        });
        assert_eq!(warnings, Vec::from_iter(expected), "{spec}");
    }
    // Policies add up.
    let all = policy("first", "policyTypes: [Egress]")
        + &policy(
            "second",
            &format!("policyTypes: [Egress], egress: [{{{dns}}}]"),
        );
    let report = injected(&(deployment(VLLM) + &all)).unwrap().notes[1].to_string();
    let expected = "its egress rules, with those of NetworkPolicy/second, must allow crossfade in Deployment/server to reach: DNS \
        (UDP and TCP port 53): allowed; the API server";
    assert!(
        report.starts_with("NetworkPolicy/first") && report.contains(expected),
        "{report}"
    );
    let open = all + &policy("third", "policyTypes: [Egress], egress: [{}]");
    assert_eq!(
        injected(&(deployment(VLLM) + &open)).unwrap().notes.len(),
        1
    );
}

#[test]
fn policies_of_other_kinds_are_reported_as_not_checked() {
    let policy = |namespace: &str| {
        format!(
            "---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {{name: c{namespace}}}\nspec: {{endpointSelector: {{}}}}\n"
        )
    };
    let report = injected(&(deployment(VLLM) + &policy(""))).unwrap();
    let note = report.notes[1].to_string();
    assert!(
        note.contains("inject does not check policies of this kind"),
        "{note}"
    );
    let report = injected(&(deployment(VLLM) + &policy(", namespace: other"))).unwrap();
    assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
}
