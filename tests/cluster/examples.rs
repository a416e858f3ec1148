//! Applies the examples in `deploy/` unchanged, from an empty namespace until old is deleted. Only the images are replaced with
//! kustomize, as users do: the tests use a fake of Dynamo's image.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::fixture::{
    CONTROLLER, IMAGE, PATIENCE, STAND_IN, copied, eventually, long_tests_enabled,
};
use crate::load::{Load, assert_none_failed, share};
use crate::operator::Operator;
use crate::rollout::{SHAPE, assert_share, phase};

const UPDATE: &str = "my-update";
const STREAMS: usize = 60;
/// The images of the examples, and their replacements.
const IMAGES: [(&str, &str); 3] = [
    ("registry.example/crossfade", IMAGE),
    ("nvcr.io/nvidia/ai-dynamo/dynamo-frontend", STAND_IN),
    ("nvcr.io/nvidia/ai-dynamo/vllm-runtime", STAND_IN),
];

/// A user with a copy of `deploy/` and a namespace.
struct User {
    cluster: Cluster,
    namespace: &'static str,
    files: TempDir,
}

impl User {
    /// `None` in an existing cluster, which does not have the images.
    fn of(namespace: &'static str) -> Option<Self> {
        let cluster = Cluster::around();
        if !cluster.is_own() {
            println!(
                "skipped: the examples: this cluster has no image that stands in for Dynamo's"
            );
            return None;
        }
        let user = Self {
            cluster,
            namespace,
            files: copied(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")]),
        };
        user.cluster.kubectl(&["create", "namespace", namespace]);
        Some(user)
    }

    /// `kubectl` in the namespace.
    fn types(&self, args: &[&str]) -> String {
        self.cluster
            .kubectl(&[&["-n", self.namespace], args].concat())
    }

    fn get(&self, args: &[&str]) -> Value {
        self.cluster.get(&[&["-n", self.namespace], args].concat())
    }

    fn example(&self, path: &str) -> String {
        let path = self.files.path().join("deploy/examples").join(path);
        path.to_string_lossy().into_owned()
    }

    /// The output of kustomize for these paths of `deploy/`, with the images replaced.
    fn made(&self, resources: &[&str], components: &[&str]) -> String {
        let listed = |paths: &[&str]| {
            let paths = paths.iter().map(|path| format!("../deploy/{path}"));
            paths.collect::<Vec<_>>()
        };
        let images = IMAGES.map(|(name, other)| {
            let (new_name, tag) = other.rsplit_once(':').expect("an image with a tag");
            json!({"name": name, "newName": new_name, "newTag": tag})
        });
        let kustomization = json!({
            "resources": listed(resources), "components": listed(components), "images": images,
        });
        let own = self.files.path().join("own");
        fs::create_dir_all(&own).expect("the temporary directory is writable");
        fs::write(own.join("kustomization.yaml"), kustomization.to_string())
            .expect("the temporary directory is writable");
        self.cluster.kubectl(&[
            "kustomize",
            "--load-restrictor=LoadRestrictionsNone",
            &own.to_string_lossy(),
        ])
    }

    fn applies(&self, resources: &[&str], components: &[&str]) {
        let made = self.made(resources, components);
        // Kustomize does not know the container of a graph of v1alpha1.
        let made: String = made
            .lines()
            .map(|line| format!("{}\n", with_image(line)))
            .collect();
        let args = ["-n", self.namespace, "apply", "-f", "-"];
        self.cluster.kubectl_with(&args, &made);
    }

    fn rolled_out(&self, namespace: &str, deployment: &str) {
        let name = format!("deployment/{deployment}");
        let args = [
            "-n",
            namespace,
            "rollout",
            "status",
            &name,
            "--timeout=120s",
        ];
        let output = self.cluster.try_kubectl(&args, "");
        if !output.status.success() {
            for what in ["pods", "events"] {
                println!(
                    "{}",
                    self.cluster.kubectl(&["-n", namespace, "describe", what])
                );
            }
            panic!("{name} is not ready: {output:?}");
        }
    }

    fn controls(&self) {
        self.cluster.apply(&self.made(&["crd"], &[]));
        let established = "--for=condition=Established";
        let definition = "crd/dynamoupdateconfigs.nvidia.com";
        self.types(&["wait", established, definition, "--timeout=30s"]);
        // The controller has its own namespace.
        let made = self.made(&["examples/plain/controller"], &[]);
        self.cluster.apply(&made);
        let [namespace, name] = CONTROLLER;
        self.rolled_out(namespace, name);
    }

    fn scales(&self, deployment: &str, replicas: u32) {
        let (name, replicas) = (
            format!("deployment/{deployment}"),
            format!("--replicas={replicas}"),
        );
        self.types(&["scale", &name, &replicas]);
    }

    /// Edits the number of workers of a graph, in either version of its API.
    fn scales_graph(&self, name: &str, replicas: u32) {
        let graph = self.get(&["dgd", name]);
        let patch = match graph["spec"]["components"].as_array() {
            Some(components) => {
                let is_worker = |component: &Value| component["type"] == "worker";
                let index = components.iter().position(is_worker).expect("workers");
                let path = format!("/spec/components/{index}/replicas");
                json!([{"op": "replace", "path": path, "value": replicas}])
            }
            None => {
                let path = "/spec/services/Worker/replicas";
                json!([{"op": "replace", "path": path, "value": replicas}])
            }
        };
        let patch = patch.to_string();
        self.types(&["patch", "dgd", name, "--type=json", "-p", &patch]);
    }

    /// Waits until the operator has created a Deployment.
    async fn appears(&self, deployment: &str) {
        eventually(&format!("{deployment} exists"), async || {
            let args = ["-n", self.namespace, "get", "deployment", deployment];
            self.cluster.try_kubectl(&args, "").status.success()
        })
        .await;
    }

    /// Where clients connect.
    fn address(&self) -> SocketAddr {
        let service = self.get(&["service", "frontend"]);
        let ip = service["spec"]["clusterIP"].as_str().expect("an address");
        format!("{ip}:8000").parse().expect("an address")
    }

    async fn until(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            let update = self.get(&["duc", UPDATE]);
            if condition(&update) {
                return update;
            }
            assert!(
                Instant::now() < deadline,
                "never {what}: {} {}",
                update["spec"],
                update["status"]
            );
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    /// Waits until the resource and every proxy of old have this split.
    async fn wait_for_split(&self, old: u32, new: u32) -> Value {
        let weights = json!({"old": old, "new": new});
        self.until(&format!("{old} : {new}"), |update| {
            let status = &update["status"];
            update["spec"]["weights"] == weights
                && status["wanted"]["weights"] == weights
                && status["frontends"] == json!({"total": 2, "applied": 2})
        })
        .await
    }

    fn leaves(self) {
        let args = ["delete", "namespace", self.namespace, "--wait=false"];
        self.cluster.kubectl(&args);
    }
}

/// A line of a manifest with the image replaced, if it has one of [`IMAGES`].
fn with_image(line: &str) -> String {
    let image = line.trim_start().strip_prefix("image: ");
    let image = image.and_then(|image| image.rsplit_once(':'));
    let other = image.and_then(|(name, _)| IMAGES.iter().find(|(known, _)| *known == name));
    match other {
        Some((_, other)) => {
            let indent = &line[..line.len() - line.trim_start().len()];
            format!("{indent}image: {other}")
        }
        None => line.to_owned(),
    }
}

fn promises(flag: &'static str) -> impl Fn(&Value) -> bool {
    move |update| update["status"][flag] == true && update["status"]["phase"] == "Complete"
}

/// Runs an update from the first worker of new to the deletion of old. No stream of the load may fail.
async fn update(user: &User, [old_workers, new_workers]: [&str; 2], selector: Value, old: &[&str]) {
    let load = Load::start_outside_phases(user.address(), STREAMS, SHAPE);
    user.wait_for_split(4, 1).await;
    phase(&load, 0, 2 * STREAMS).await;
    user.scales(new_workers, 4);
    user.wait_for_split(1, 1).await;
    phase(&load, 1, 2 * STREAMS).await;
    user.scales(old_workers, 2);
    user.wait_for_split(1, 2).await;
    user.scales(old_workers, 0);
    ends(user, load, &[[4, 1], [1, 1]], selector, old).await;
}

/// Ends an update whose old workers have just been scaled to zero, after one phase of the load with each of these splits.
async fn ends(user: &User, load: Load, splits: &[[u32; 2]], selector: Value, old: &[&str]) {
    user.wait_for_split(0, 1).await;
    let update = user
        .until(
            "the last worker may go",
            promises("lastOldWorkerDispensable"),
        )
        .await;
    // All streams of new still pass through the pods of old.
    assert_eq!(update["status"]["safeToDeleteOld"], false, "{update}");
    let last = splits.len();
    phase(&load, last, 2 * STREAMS).await;
    let patch = json!({"spec": {"selector": selector}}).to_string();
    user.types(&["patch", "service", "frontend", "-p", &patch]);
    user.until("old may be deleted", promises("safeToDeleteOld"))
        .await;
    user.types(&[&["delete", "--wait=false"], old].concat());
    phase(&load, last + 1, 2 * STREAMS).await;
    eventually("old is gone", async || {
        let label = "nvidia.com/dynamo-graph-deployment-name=dgd-old";
        let pods = user.get(&["pods", "-l", label]);
        pods["items"].as_array().is_some_and(Vec::is_empty)
    })
    .await;
    user.types(&["delete", "duc", UPDATE]);
    let ended = load.finish();
    assert_none_failed(&ended);
    println!("{} streams, none failed or cut", ended.len());
    for (phase, weights) in splits.iter().chain([&[0, 1]]).enumerate() {
        assert_share(&ended, phase, *weights, 2.0);
    }
    let (all, new) = share(&ended, last + 1);
    assert_eq!(all, new, "clients only reach new");
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_plain_example_goes_from_an_empty_namespace_to_its_end() {
    let Some(user) = User::of("plain-example") else {
        return;
    };
    user.controls();
    user.applies(&["examples/plain"], &["network-policy"]);
    assert!(user.get(&["networkpolicy", "crossfade-admin"])["spec"].is_object());
    for deployment in ["frontend", "worker"] {
        user.rolled_out(user.namespace, deployment);
    }
    user.applies(&["examples/plain/new"], &[]);
    for deployment in ["frontend-new", "worker-new"] {
        user.rolled_out(user.namespace, deployment);
    }
    user.types(&["apply", "-f", &user.example("plain/update.yaml")]);
    let selector = json!({"app": "frontend-new"});
    let old = ["deployment", "frontend", "worker"];
    update(&user, ["worker", "worker-new"], selector, &old).await;
    user.leaves();
}

/// Runs the update of `update.yaml` from the graph in `old`, below `examples/`, to `dgd-new.yaml`.
async fn update_of_graphs(namespace: &'static str, old: &str) {
    let Some(user) = User::of(namespace) else {
        return;
    };
    user.controls();
    let operator = Operator::of(namespace);
    user.applies(&["base", "examples/clients.yaml", old], &["network-policy"]);
    for part in ["frontend", "worker"] {
        user.appears(&format!("dgd-old-{part}")).await;
        user.rolled_out(namespace, &format!("dgd-old-{part}"));
    }
    user.types(&["apply", "-f", &user.example("update.yaml")]);
    let load = Load::start_outside_phases(user.address(), STREAMS, SHAPE);
    user.until("both proxies follow", |update| {
        update["status"]["frontends"] == json!({"total": 2, "applied": 2})
    })
    .await;
    phase(&load, 0, 2 * STREAMS).await;
    user.applies(&["examples/dgd-new.yaml"], &[]);
    user.wait_for_split(1, 1).await;
    phase(&load, 1, 2 * STREAMS).await;
    user.scales_graph("dgd-old", 2);
    user.wait_for_split(1, 2).await;
    user.scales_graph("dgd-old", 0);
    let selector = json!({"nvidia.com/dynamo-graph-deployment-name": "dgd-new"});
    ends(
        &user,
        load,
        &[[1, 0], [1, 1]],
        selector,
        &["dgd", "dgd-old"],
    )
    .await;
    drop(operator);
    user.leaves();
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_example_of_a_graph_goes_from_an_empty_namespace_to_its_end() {
    update_of_graphs("graph-example", "examples/dgd-v1beta1.yaml").await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_example_of_a_graph_with_a_plain_container_goes_to_its_end() {
    if !long_tests_enabled() {
        return;
    }
    update_of_graphs("container-example", "examples/dgd-container.yaml").await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_example_of_a_graph_of_v1alpha1_goes_to_its_end() {
    if !long_tests_enabled() {
        return;
    }
    update_of_graphs("alpha-example", "examples/dgd-v1alpha1.yaml").await;
}
