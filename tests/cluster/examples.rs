//! Applies the examples in `deploy/` unchanged, from an empty namespace until old is deleted. Only the images are replaced with
//! kustomize, as users do: the tests use a fake of Dynamo's image.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::fixture::{CONTROLLER, IMAGE, PATIENCE, STAND_IN, copied, eventually};
use crate::load::{Load, assert_none_failed, share};
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
    user.wait_for_split(0, 1).await;
    let update = user
        .until(
            "the last worker may go",
            promises("lastOldWorkerDispensable"),
        )
        .await;
    // All streams of new still pass through the pods of old.
    assert_eq!(update["status"]["safeToDeleteOld"], false, "{update}");
    phase(&load, 2, 2 * STREAMS).await;
    let patch = json!({"spec": {"selector": selector}}).to_string();
    user.types(&["patch", "service", "frontend", "-p", &patch]);
    user.until("old may be deleted", promises("safeToDeleteOld"))
        .await;
    user.types(&[&["delete", "--wait=false"], old].concat());
    phase(&load, 3, 2 * STREAMS).await;
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
    for (phase, weights) in [[4, 1], [1, 1], [0, 1]].into_iter().enumerate() {
        assert_share(&ended, phase, weights, 2.0);
    }
    let (all, new) = share(&ended, 3);
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
