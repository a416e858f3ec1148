//! A real API server accepts injected manifests, and its output can be uninjected.

use crossfade::inject::uninject;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::manifests::{corpus, deployment, injected};

/// The output of kubectl after an apply: sorted keys, defaults, no comments.
fn as_the_cluster_writes(cluster: &Cluster, manifests: &str, form: &str) -> String {
    cluster.kubectl_with(
        &[
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "-o",
            form,
            "-f",
            "-",
        ],
        manifests,
    )
}

fn items(text: &str) -> Vec<Value> {
    let value: Value = serde_json::from_str(text).unwrap();
    value["items"]
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![value])
}

fn is_workload(item: &Value) -> bool {
    ["Deployment", "StatefulSet", "DynamoGraphDeployment"].contains(&item["kind"].as_str().unwrap())
}

/// The workloads of the manifests. Services are excluded, because a dry run of one allocates an address.
fn workloads(cluster: &Cluster, manifests: &str) -> String {
    let args = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
    let mut items = documents(&cluster.kubectl_with(&args, manifests));
    items.retain(is_workload);
    assert!(!items.is_empty());
    items.iter().map(|item| format!("---\n{item}\n")).collect()
}

/// Parses the objects that `create` writes one after the other.
fn documents(text: &str) -> Vec<Value> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    values
        .flat_map(|value| items(&value.unwrap().to_string()))
        .collect()
}

/// The name and spec of each workload in a manifest.
fn wanted(text: &str) -> Vec<[Value; 2]> {
    let mut items = items(text);
    items.retain(is_workload);
    let parts = |item: Value| [item["metadata"]["name"].clone(), item["spec"].clone()];
    items.into_iter().map(parts).collect()
}

#[test]
fn a_real_api_server_accepts_every_injected_manifest_and_its_output_can_be_uninjected() {
    let cluster = Cluster::api_server();
    cluster.apply(include_str!("../kubernetes/operators.yaml"));
    cluster.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=30s",
    ]);
    cluster.kubectl(&["create", "namespace", "inference"]);
    for (path, text) in corpus() {
        let before = as_the_cluster_writes(&cluster, &text, "json");
        let report = injected(&text).unwrap();
        let json = as_the_cluster_writes(&cluster, &report.text, "json");
        for item in items(&json)
            .iter()
            .filter(|item| item["kind"] == "Deployment")
        {
            let pod = &item["spec"]["template"]["spec"];
            let sidecar = pod["initContainers"].as_array().unwrap().last().unwrap();
            assert_eq!(
                (&sidecar["name"], &sidecar["restartPolicy"]),
                (&"crossfade".into(), &"Always".into()),
                "{path:?}"
            );
        }
        for form in ["json", "yaml"] {
            let written = as_the_cluster_writes(&cluster, &report.text, form);
            let back = uninject(&written).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let after = as_the_cluster_writes(&cluster, &workloads(&cluster, &back.text), "json");
            assert_eq!(wanted(&after), wanted(&before), "{path:?} by way of {form}");
        }
    }
}

/// The template of the pods of each workload.
fn templates(text: &str) -> Vec<Value> {
    let mut items = items(text);
    items.retain(is_workload);
    let template = |item: Value| match item["kind"].as_str() {
        Some("DynamoGraphDeployment") => item["spec"].clone(),
        _ => item["spec"]["template"].clone(),
    };
    items.into_iter().map(template).collect()
}

#[test]
fn the_output_of_a_real_api_server_is_not_injected_again() {
    let cluster = Cluster::api_server();
    cluster.apply(include_str!("../kubernetes/operators.yaml"));
    cluster.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=30s",
    ]);
    cluster.kubectl(&["create", "namespace", "inference"]);
    for (path, text) in corpus() {
        // The definition here has no conversion between versions, so that it only stores the newer one.
        if text.contains("nvidia.com/v1alpha1") {
            continue;
        }
        let once = workloads(&cluster, &injected(&text).unwrap().text);
        cluster.kubectl_with(&["create", "-f", "-"], &once);
        let read = |form: &str| cluster.kubectl_with(&["get", "-o", form, "-f", "-"], &once);
        let (json, yaml) = (read("json"), read("yaml"));
        for written in [&json, &yaml] {
            let again = injected(written).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert_eq!(again.text, *written, "{path:?}");
        }
        // A sidecar that has been changed is written anew, and then the pods are the same as before.
        let changed = yaml.replace("name: CROSSFADE_SETTLE", "name: CROSSFADE_SETTLES");
        assert_ne!(changed, yaml, "{path:?}");
        let again = injected(&changed).unwrap();
        assert_ne!(again.text, yaml, "{path:?}");
        cluster.kubectl_with(&["replace", "-f", "-"], &again.text);
        // Labels with an alias did not get this one, but the API server has resolved the alias.
        let label = "crossfade/proxy";
        if again.text.contains(label) == yaml.contains(label) {
            assert_eq!(templates(&read("json")), templates(&json), "{path:?}");
        }
        cluster.kubectl_with(&["delete", "--wait=false", "-f", "-"], &once);
    }
}

#[test]
fn a_real_api_server_accepts_the_role_that_rbac_prints() {
    let cluster = Cluster::api_server();
    cluster.apply(&crossfade::resource::crd_yaml());
    let established = "--for=condition=Established";
    cluster.kubectl(&["wait", established, "crd", "--all", "--timeout=30s"]);
    for account in [None, Some("default")] {
        cluster.apply(&crossfade::inject::rbac(account, None));
        let who = format!(
            "--as=system:serviceaccount:default:{}",
            account.unwrap_or("crossfade-sidecar")
        );
        let args = [
            "auth",
            "can-i",
            "watch",
            "dynamoupdateconfigs.nvidia.com",
            &who,
            "-n",
            "default",
        ];
        let output = cluster.try_kubectl(&args, "");
        assert_eq!(
            String::from_utf8(output.stdout).unwrap().trim(),
            "yes",
            "{account:?}"
        );
    }
}

#[test]
fn an_object_that_was_not_applied_is_injected_and_uninjected_with_replace() {
    let cluster = Cluster::api_server();
    let text = deployment(
        "        image: vllm/vllm-openai\n        args: [--port, \"8000\"]\n        readinessProbe: {exec: {command: [\"true\"]}}\n",
    );
    cluster.kubectl_with(&["create", "-f", "-"], &text);
    let live = |form: &str| cluster.kubectl(&["get", "deployment", "server", "-o", form]);
    let before = wanted(&live("json"));
    for form in ["yaml", "json"] {
        let report = injected(&live(form)).unwrap();
        cluster.kubectl_with(&["replace", "-f", "-"], &report.text);
        let pod: Value = serde_json::from_str(&live("json")).unwrap();
        let pod = &pod["spec"]["template"]["spec"];
        assert_eq!(pod["initContainers"][0]["name"], "crossfade");
        let report = uninject(&live(form)).unwrap();
        let warnings = report.notes[0].warnings.join("\n");
        assert!(warnings.contains("`kubectl replace -f -`"), "{warnings}");
        cluster.kubectl_with(&["replace", "-f", "-"], &report.text);
        assert_eq!(wanted(&live("json")), before);
    }
}

#[test]
fn an_applied_manifest_can_later_be_applied_on_the_server() {
    let cluster = Cluster::api_server();
    let text = include_str!("../corpus/inject/vllm-args.yaml");
    let report = injected(text).unwrap();
    cluster.kubectl_with(&["apply", "-f", "-"], &report.text);
    cluster.kubectl_with(&["apply", "--server-side", "-f", "-"], &report.text);
}
