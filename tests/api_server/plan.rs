//! A real API server accepts every object of the next generation that `crossfade plan` generates, next to the current generation and
//! repeatedly.

use crossfade::inject::manifests;
use crossfade::next_generation::{Request, plan};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::manifests::{IMAGE, injected};

#[test]
fn a_real_api_server_accepts_the_next_generation_next_to_the_current_one() {
    let cluster = Cluster::api_server();
    cluster.apply(include_str!("../kubernetes/operators.yaml"));
    cluster.apply(include_str!("../../deploy/crd/crd.yaml"));
    cluster.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=30s",
    ]);
    cluster.kubectl(&["create", "namespace", "inference"]);
    for today in [
        include_str!("../../src/next_generation/tests/deployments.yaml"),
        include_str!("../../src/next_generation/tests/graph.yaml"),
    ] {
        let today = injected(today).unwrap().text;
        cluster.apply(&today);
        let edited = today.replace("vllm-runtime:1.6.1", "vllm-runtime:1.7.0");
        let planned = plan(&Request {
            from: &today,
            to: &edited,
            image: Some(IMAGE),
            ..Request::default()
        })
        .unwrap();
        let apply = |more: &[&str]| {
            let apply = ["apply", "--server-side", "--validate=strict", "-f", "-"];
            cluster.kubectl_with(&[&apply[..], more].concat(), &planned.text)
        };
        let tried = apply(&["--dry-run=server", "-o", "json"]);
        let tried: Value = serde_json::from_str(&tried).unwrap();
        let made = manifests(&planned.text).unwrap();
        let count: usize = made.iter().map(|manifest| manifest.objects.len()).sum();
        assert_eq!(tried["items"].as_array().unwrap().len(), count);
        apply(&[]);
        // Applying the same plan again changes nothing.
        let versions = |text: &str| -> Vec<Value> {
            let json: Value = serde_json::from_str(text).unwrap();
            let items = json["items"].as_array().unwrap().iter();
            items
                .map(|item| item["metadata"]["resourceVersion"].clone())
                .collect()
        };
        let first = apply(&["-o", "json"]);
        assert_eq!(versions(&apply(&["-o", "json"])), versions(&first));
        // The sizes that a rollout sets stay with client-side and server-side apply.
        let target = sized(&planned.text);
        let (kind, name, patch) = &target;
        let patch_args = [
            "patch",
            kind,
            name,
            "-n",
            "inference",
            "--type=json",
            "--field-manager=crossfade-rollout-1",
            "-p",
            patch,
        ];
        cluster.kubectl(&patch_args);
        let sizes = || {
            cluster.kubectl(&[
                "get",
                kind,
                name,
                "-n",
                "inference",
                "-o",
                "jsonpath={.spec}",
            ])
        };
        let scaled = sizes();
        apply(&[]);
        assert_eq!(sizes(), scaled);
        if kind == "deployment" {
            cluster.kubectl_with(&["apply", "-f", "-"], &planned.text);
            cluster.kubectl_with(&["apply", "-f", "-"], &planned.text);
            assert_eq!(sizes(), scaled);
            apply(&["--force-conflicts"]);
            assert_eq!(sizes(), scaled);
        }
        // The current generation is unchanged.
        cluster.kubectl_with(&["diff", "-f", "-"], &today);
    }
}

/// A worker object of the next generation, and the patch that sets its replicas to three.
fn sized(planned: &str) -> (String, String, String) {
    let objects = manifests(planned).unwrap();
    let mut objects = objects.iter().flat_map(|manifest| &manifest.objects);
    let (kind, path) = match planned.contains("kind: DynamoGraphDeployment") {
        true => ("DynamoGraphDeployment", "/spec/components/1/replicas"),
        false => ("Deployment", "/spec/replicas"),
    };
    let object = objects.find(|object| {
        let is_frontend = object["metadata"]["name"].to_string().contains("frontend");
        object["kind"] == kind && !is_frontend
    });
    let name = object.unwrap()["metadata"]["name"].as_str().unwrap();
    let patch = format!(r#"[{{"op": "add", "path": "{path}", "value": 3}}]"#);
    (kind.to_lowercase(), name.to_owned(), patch)
}
