//! What surrounds a frontend: tools that manage its object, other objects of a list, other containers of the pod, and quotas.

use super::*;

const VLLM: &str = "        image: vllm/vllm-openai\n";

fn warnings(report: &crossfade::inject::Report) -> String {
    let warnings = report.notes.iter().flat_map(|note| &note.warnings);
    warnings.cloned().collect::<Vec<_>>().join("\n")
}

#[test]
fn an_object_that_a_tool_manages_is_not_written_back_but_changed_where_the_tool_reads_it() {
    for (marks, by) in [
        (
            "labels: {app.kubernetes.io/managed-by: Helm}, annotations: {meta.helm.sh/release-name: r}",
            "Helm (release r)",
        ),
        (
            "annotations: {argocd.argoproj.io/tracking-id: 'shop:apps/Deployment:a/server'}",
            "Argo CD (Application shop)",
        ),
        (
            "labels: {argocd.argoproj.io/instance: shop}",
            "Argo CD (Application shop)",
        ),
        (
            "labels: {kustomize.toolkit.fluxcd.io/name: apps}",
            "Flux (Kustomization apps)",
        ),
        (
            "labels: {app.kubernetes.io/managed-by: Helm, helm.toolkit.fluxcd.io/name: web}, annotations: {meta.helm.sh/release-name: r}",
            "Flux (HelmRelease web)",
        ),
    ] {
        let metadata = format!("metadata: {{name: server, uid: u, {marks}}}");
        let text = deployment(VLLM).replace("metadata: {name: server}", &metadata);
        let report = injected(&text).unwrap();
        let expected = format!("it is managed by {by}, which merges its own version");
        for report in [&report, &uninject(&report.text).unwrap()] {
            let warnings = warnings(report);
            assert!(warnings.contains(&expected), "{warnings}");
            assert!(!warnings.contains("kubectl replace"), "{warnings}");
        }
        // Nothing is written back.
        assert_eq!(warnings(&injected(&report.text).unwrap()), "");
    }
    // A chart's own label is in every file that it renders.
    let rendered = deployment(VLLM).replace(
        "metadata: {name: server}",
        "metadata: {name: server, labels: {app.kubernetes.io/managed-by: Helm}}",
    );
    assert_eq!(warnings(&injected(&rendered).unwrap()), "");
}

#[test]
fn uninject_says_why_kubectl_apply_would_not_remove_crossfade() {
    let last = "kubectl.kubernetes.io/last-applied-configuration";
    for (annotations, why) in [
        (String::new(), format!("(it has no annotation {last})")),
        (
            format!(", annotations: {{{last}: '{{}}'}}"),
            format!("(its annotation {last} does not list it)"),
        ),
    ] {
        let metadata = format!("metadata: {{name: server, uid: u{annotations}}}");
        let text = deployment(VLLM).replace("metadata: {name: server}", &metadata);
        let once = injected(&text).unwrap().text;
        let warnings = warnings(&uninject(&once).unwrap());
        assert!(warnings.contains(&why), "{warnings}");
    }
}

/// A list of Deployments as `kubectl get -o json` prints it, one item for each text.
fn list(texts: &[&str]) -> String {
    let items = texts.iter().map(|text| {
        let manifests = manifests(text).unwrap();
        manifests[0].objects[0].clone()
    });
    let items: Vec<_> = items.collect();
    format!(
        "{:#}",
        serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items})
    )
}

#[test]
fn an_object_of_a_list_that_stays_the_same_is_left_as_it_is_beside_others_that_change() {
    let plain = deployment(VLLM);
    let other = plain.replace("name: server}", "name: other}");
    let with = injected(&plain).unwrap().text;
    let outdated = injected_with(
        &other,
        &Options {
            image: Some("registry.example/crossfade:0.0.9".into()),
            ..Options::default()
        },
    )
    .unwrap()
    .text;
    let same = "left as it is: it already has crossfade 0.1.0";
    let newer = Options {
        image: Some(crate::manifests::IMAGE.into()),
        ..Options::default()
    };
    for (texts, changed) in [
        ([&*with, &*other], [false, true]),
        ([&*other, &*with], [true, false]),
        ([&*with, &*outdated], [false, true]),
        ([&*with, &*with], [false, false]),
        ([&*outdated, &*other], [true, true]),
    ] {
        let text = list(&texts);
        let report = injected_with(&text, &newer).unwrap();
        let before: Value = serde_json::from_str(&text).unwrap();
        let after: Value = serde_json::from_str(&report.text).unwrap();
        for (index, changed) in changed.into_iter().enumerate() {
            let (before, after) = (&before["items"][index], &after["items"][index]);
            assert_eq!(before != after, changed, "{after}");
            let summary = &report.notes[index].summary;
            assert_eq!(summary != same, changed, "{summary}");
            let line = report.notes[index].line;
            assert!(text.lines().nth(line - 1).unwrap().contains('{'), "{line}");
        }
        assert_eq!(report.text == text, changed == [false, false]);
        // What is left is also written as before.
        if changed == [false, true] {
            let item = format!("{:#}", before["items"][0]).replace('\n', "\n    ");
            assert!(report.text.contains(&item), "{}", report.text);
        }
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        let back: Value = serde_json::from_str(&uninject(&report.text).unwrap().text).unwrap();
        let names = |index: usize| back["items"][index]["metadata"]["name"].clone();
        for (index, text) in texts.iter().enumerate() {
            assert_eq!(names(index) == "server", text.contains("name: server}"));
            let pod = &back["items"][index]["spec"]["template"]["spec"];
            assert!(pod["initContainers"].is_null(), "{back}");
        }
    }
}

#[test]
fn a_reference_without_a_version_from_an_earlier_build_does_not_change_the_pods() {
    for (path, text) in corpus() {
        let now = injected(&text).unwrap().text;
        assert!(now.contains("apiVersion"), "{path:?}");
        let mut count = 0;
        for manifest in manifests(&now).unwrap() {
            for object in manifest.objects {
                let now = object.to_string();
                let earlier = now.replace(
                    r#""fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"}"#,
                    r#""fieldRef":{"fieldPath":"metadata.namespace"}"#,
                );
                if earlier == now {
                    continue;
                }
                count += 1;
                let again = injected(&earlier).unwrap();
                assert_eq!(again.text, earlier, "{path:?}");
                for note in again.notes {
                    assert!(!note.summary.contains("updated"), "{note}");
                }
            }
        }
        assert!(count > 0, "{path:?}");
    }
}

#[test]
fn the_resources_of_the_sidecar_are_those_that_were_set_and_are_remembered() {
    let sidecar = |text: &str| {
        let object = manifests(text).unwrap()[0].objects[0].clone();
        object["spec"]["template"]["spec"]["initContainers"][0]["resources"].clone()
    };
    let with = |request: Option<&str>, limit: Option<&str>, memory: Option<&str>| Options {
        cpu_request: request.map(str::to_owned),
        cpu_limit: limit.map(str::to_owned),
        memory_request: memory.map(str::to_owned),
        ..Options::default()
    };
    let plain = deployment(VLLM);
    let once = injected_with(&plain, &with(None, Some("2000m"), None)).unwrap();
    let limited = serde_json::json!({
        "requests": {"cpu": "500m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "1Gi"},
    });
    assert_eq!(sidecar(&once.text), limited);
    assert_eq!(injected(&once.text).unwrap().text, once.text);
    // A later injection keeps it, and another value replaces it without a loss.
    let again = injected_with(&once.text, &with(Some("1"), None, Some("256Mi"))).unwrap();
    let resources = sidecar(&again.text);
    assert_eq!(
        resources["requests"],
        serde_json::json!({"cpu": "1", "memory": "256Mi"})
    );
    assert_eq!(resources["limits"], limited["limits"]);
    assert_eq!(warnings(&again), "");
    assert_eq!(uninject(&again.text).unwrap().text, plain);
    for (options, expected) in [
        (
            with(None, Some("x"), None),
            "--cpu-limit: must be a number of CPUs",
        ),
        (
            with(Some("2"), Some("1"), None),
            "--cpu-request 2 is more than --cpu-limit 1",
        ),
        (
            with(None, None, Some("2Gi")),
            "--memory-request: must be at most 1Gi",
        ),
    ] {
        let error = injected_with(&plain, &options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // The remembered limit counts as well.
    let error = injected_with(&once.text, &with(Some("3"), None, None)).unwrap_err();
    assert!(
        error.to_string().contains("is more than --cpu-limit 2"),
        "{error}"
    );
}

#[test]
fn a_pod_stays_guaranteed_if_the_sidecar_has_equal_requests_and_limits() {
    let text = deployment(&format!(
        "{VLLM}        resources: {{limits: {{cpu: 8, memory: 32Gi}}}}\n"
    ));
    let lost = "lose the QoS class Guaranteed";
    assert!(warnings(&injected(&text).unwrap()).contains(lost));
    let equal = Options {
        cpu_request: Some("1".into()),
        cpu_limit: Some("1000m".into()),
        memory_request: Some("1024Mi".into()),
        ..Options::default()
    };
    assert_eq!(warnings(&injected_with(&text, &equal).unwrap()), "");
}

#[test]
fn other_objects_that_create_model_servers_are_mentioned() {
    for (kind, group) in [
        ("NIMService", "apps.nvidia.com/v1alpha1"),
        ("NIMPipeline", "apps.nvidia.com/v1alpha1"),
        ("RayClusterFleet", "orchestration.aibrix.ai/v1alpha1"),
        ("StormService", "orchestration.aibrix.ai/v1alpha1"),
        ("Model", "kubeai.org/v1"),
        ("JobSet", "jobset.x-k8s.io/v1alpha2"),
    ] {
        let other =
            format!("apiVersion: {group}\nkind: {kind}\nmetadata: {{name: m}}\nspec: {{}}\n");
        let error = injected(&other).unwrap_err().to_string();
        assert!(
            error.contains("run crossfade proxy in pods of its own") && !error.contains("--port"),
            "{error}"
        );
        let report = injected(&format!("{}---\n{other}", deployment(VLLM))).unwrap();
        let of_it = |note: &&crossfade::inject::Note| note.object == format!("{kind}/m");
        let note = report.notes.iter().find(of_it).unwrap();
        assert!(note.summary.contains("left as it is"), "{note}");
    }
    let other = "---\napiVersion: example.com/v1\nkind: Model\nmetadata: {name: m}\n";
    let report = injected(&format!("{}{other}", deployment(VLLM))).unwrap();
    assert_eq!(report.notes.len(), 1);
}

#[test]
fn one_half_of_a_server_that_separates_prefill_from_decode_is_reported() {
    for (args, half) in [
        (
            "python3, -m, sglang.launch_server, --disaggregation-mode, prefill",
            "--disaggregation-mode prefill",
        ),
        (
            "sh, -c, 'python3 -m sglang.launch_server --disaggregation-mode=\"decode\"'",
            "--disaggregation-mode decode",
        ),
        (
            "vllm, serve, m, --kv-transfer-config, '{\"kv_connector\":\"P2p\",\"kv_role\":\"kv_producer\"}'",
            "--kv-transfer-config with kv_producer",
        ),
        (
            "vllm, serve, m, '--kv-transfer-config.kv_role=kv_consumer'",
            "--kv-transfer-config with kv_consumer",
        ),
        (
            "vllm, serve, m, --kv-transfer-config, '{\"kv_role\":\"kv_both\"}'",
            "",
        ),
        (
            "python3, -m, sglang.launch_server, --disaggregation-mode, 'null'",
            "",
        ),
    ] {
        let text = deployment(&format!("        image: x\n        command: [{args}]\n"));
        let warnings = warnings(&injected(&text).unwrap());
        let is_reported = warnings.contains("it is one half of a server")
            && warnings.contains(&format!("({half})"))
            && warnings.contains("add crossfade to the router instead");
        assert_eq!(is_reported, !half.is_empty(), "{args}: {warnings}");
    }
}

#[test]
fn another_container_that_mentions_the_port_is_reported() {
    let vllm = format!(
        "{VLLM}        args: [--port, \"8200\"]\n        ports: [{{containerPort: 8200}}]\n"
    );
    let proxy = "image: p\n        args: [--port=8000, --vllm-port=8200]\n";
    let said = "of 'routing-proxy' mentions 8200, the port on which crossfade listens now";
    for (list, more, is_reported) in [
        ("      - name: routing-proxy\n        ", proxy, true),
        (
            "      - name: routing-proxy\n        ",
            "image: p\n        env: [{name: UPSTREAM, value: 'http://localhost:8200'}]\n",
            true,
        ),
        (
            "      - name: routing-proxy\n        ",
            "image: p\n        args: [--port=8000, --vllm-port=18200]\n",
            false,
        ),
        (
            "      initContainers:\n      - name: routing-proxy\n        restartPolicy: Always\n        ",
            proxy,
            true,
        ),
        (
            "      initContainers:\n      - name: routing-proxy\n        ",
            proxy,
            false,
        ),
    ] {
        let text = deployment(&format!("{vllm}{list}{more}"));
        let report = injected(&text).unwrap();
        let warnings = warnings(&report);
        assert_eq!(warnings.contains(said), is_reported, "{text}\n{warnings}");
        assert_eq!(!warnings.is_empty(), is_reported, "{warnings}");
        let again = injected(&report.text).unwrap();
        assert_eq!(again.text, report.text);
    }
}
