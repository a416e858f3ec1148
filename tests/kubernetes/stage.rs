//! What the scenarios play on: two generations of real Dynamo, the old one behind the sidecar, and the resource.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::dynamo::Dynamo;
use crate::rig;

/// The image under test, and one with nothing but a shell.
pub const IMAGE: &str = "test.local/crossfade:1";
pub const SHELL: &str = "test.local/shell:1";

/// Seconds, in the pods of the tests; those of `deploy/` are for real life.
pub const SETTLE: u64 = 2;
const DRAIN: u64 = 60;
const GRACE: u64 = 70;

/// How long a cluster may take for something.
const PATIENCE: Duration = Duration::from_secs(60);

pub const UPDATE: &str = "my-dgd-update";

/// Both generations, serving.
pub struct Stage {
    pub cluster: Cluster,
    /// Where clients connect: the old Service's own address.
    pub address: SocketAddr,
}

impl Stage {
    /// Sets up what is not there yet, and takes away what a scenario has left.
    pub async fn ready() -> Self {
        let cluster = Cluster::around();
        let manifests = manifests(&cluster);
        cluster.kubectl_with(
            &["apply", "--server-side", "--force-conflicts", "-f", "-"],
            &manifests,
        );
        let established = "--for=condition=Established";
        let definition = "crd/dynamoupdateconfigs.nvidia.com";
        cluster.kubectl(&["wait", established, definition, "--timeout=30s"]);
        cluster.kubectl(&["delete", "dynamoupdateconfigs", "--all"]);
        let stage = Self {
            address: address_of(&cluster, "old"),
            cluster,
        };
        for deployment in ["old-worker", "old-frontend", "new-worker", "new-frontend"] {
            stage.rolled_out(deployment);
        }
        stage.settled().await;
        for service in ["old", "new"] {
            let address = address_of(&stage.cluster, service);
            within_patience("the model is served", async || lists_model(address).await).await;
        }
        stage
    }

    pub fn rolled_out(&self, deployment: &str) {
        let deployment = format!("deployment/{deployment}");
        let args = ["rollout", "status", &deployment, "--timeout=90s"];
        let output = self.cluster.try_kubectl(&args, "");
        if !output.status.success() {
            let pods = self.cluster.kubectl(&["describe", "pods"]);
            panic!("{deployment} is not there: {output:?}\n{pods}");
        }
    }

    /// Waits until no pod is on its way out.
    pub async fn settled(&self) {
        within_patience("no pod is ending", async || {
            let list = self.cluster.get(&["pods"]);
            let pods = list["items"].as_array().expect("a list");
            let stays = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null();
            pods.iter().all(stays)
        })
        .await;
    }

    pub fn scale(&self, deployment: &str, replicas: u32) {
        let replicas = format!("--replicas={replicas}");
        self.cluster
            .kubectl(&["scale", &format!("deployment/{deployment}"), &replicas]);
        self.rolled_out(deployment);
    }

    /// Waits until the frontends behind a Service list no model.
    pub async fn without_model(&self, service: &str) {
        let address = address_of(&self.cluster, service);
        within_patience("no model", async || !lists_model(address).await).await;
    }

    /// Makes the resource, and waits until it is in force.
    pub async fn update(&self, percent: u8) {
        self.cluster.apply(&format!(
            "apiVersion: nvidia.com/v1alpha1
kind: DynamoUpdateConfig
metadata: {{name: {UPDATE}}}
spec:
  newFrontendService: new.default.svc.cluster.local:8000
  trafficSplitPercent: {percent}
  newDynamoNamespace: dynamo-v2
  sourceDeployment: dgd-old
  targetDeployment: dgd-new
"
        ));
        self.in_force(percent).await;
    }

    /// As a person does it.
    pub async fn patch(&self, percent: u8) {
        let patch = format!(r#"{{"spec":{{"trafficSplitPercent":{percent}}}}}"#);
        let args = ["patch", "duc", UPDATE, "--type=merge", "-p", &patch];
        self.cluster.kubectl(&args);
        self.in_force(percent).await;
    }

    /// Waits until every sidecar serves this share.
    pub async fn in_force(&self, percent: u8) {
        within_patience(&format!("{percent} % in force"), async || {
            let mut all = true;
            for address in self.sidecars() {
                let plan = self.plan(address).await;
                all &= plan["trafficSplitPercent"] == percent;
            }
            all
        })
        .await;
    }

    /// The admin ports of the sidecars whose pods are not being deleted.
    pub fn sidecars(&self) -> Vec<SocketAddr> {
        let pods = self.old_pods();
        let ips = pods
            .iter()
            .filter_map(|pod| pod["status"]["podIP"].as_str());
        ips.map(|ip| format!("{ip}:9464").parse().expect("an address"))
            .collect()
    }

    /// The old frontends' pods that are not being deleted.
    pub fn old_pods(&self) -> Vec<Value> {
        let list = self.cluster.get(&["pods", "-l", "app=old-frontend"]);
        let pods = list["items"].as_array().expect("a list").iter();
        pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .cloned()
            .collect()
    }

    pub async fn plan(&self, admin: SocketAddr) -> Value {
        rig::client::get(admin, "/plan").await.json()
    }

    /// The only sidecar's plan.
    pub async fn only_plan(&self) -> Value {
        self.plan(self.sidecars()[0]).await
    }
}

/// Waits until it is so.
///
/// # Panics
/// If it never is.
pub async fn within_patience(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

fn address_of(cluster: &Cluster, service: &str) -> SocketAddr {
    let service = cluster.get(&["service", service]);
    let ip = service["spec"]["clusterIP"].as_str().expect("an address");
    format!("{ip}:8000").parse().expect("an address")
}

async fn lists_model(address: SocketAddr) -> bool {
    let Ok(Ok(connection)) = tokio::time::timeout(
        Duration::from_secs(1),
        tokio::net::TcpStream::connect(address),
    )
    .await
    else {
        return false;
    };
    let mut client = rig::Client::over(connection);
    client.get(rig::MODELS, &[]).await;
    match client.try_head().await {
        Ok(head) if head.status == 200 => {
            let body = client.rest(head).await.text();
            body.contains(r#""id":"tiny""#)
        }
        _ => false,
    }
}

/// All of it, as kustomize makes it out of `deploy/` and what the tests add.
fn manifests(cluster: &Cluster) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([
            root.join("deploy"),
            root.join("tests/kubernetes/discovery.yaml"),
        ])
        .arg(root.join("tests/dynamo/worker.py"))
        .arg(Dynamo::install().model)
        .arg(here)
        .status();
    assert!(copied.expect("cp starts").success());
    let write = |name: &str, text: &str| fs::write(here.join(name), text).expect("it is ours");
    write("old.yaml", &generation(cluster, "old", "dynamo-v1", true));
    write("new.yaml", &generation(cluster, "new", "dynamo-v2", false));
    let image = env::var("CROSSFADE_TEST_IMAGE").unwrap_or_else(|_| IMAGE.to_owned());
    let (name, tag) = image.rsplit_once(':').expect("an image with a tag");
    let model: Vec<_> = fs::read_dir(here.join("model"))
        .expect("the model's files")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| format!("model/{}", name.display()))
        .collect();
    let model = model.join(", ");
    write(
        "kustomization.yaml",
        &format!(
            r#"resources: [deploy/base, discovery.yaml, old.yaml, new.yaml]
components: [deploy/sidecar]
images: [{{name: crossfade, newName: {name}, newTag: "{tag}"}}]
generatorOptions: {{disableNameSuffixHash: true}}
configMapGenerator:
- {{name: dynamo-worker, files: [worker.py]}}
- {{name: dynamo-model, files: [{model}]}}
patches:
- target: {{kind: RoleBinding, name: crossfade-sidecar}}
  patch: |
    - {{op: add, path: /subjects/-, value: {{kind: ServiceAccount, name: dynamo}}}}
- target: {{kind: Deployment, labelSelector: crossfade/sidecar=true}}
  patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {{name: any}}
    spec:
      template:
        spec:
          terminationGracePeriodSeconds: {GRACE}
          initContainers:
          - name: crossfade
            env:
            - {{name: CROSSFADE_SETTLE, value: "{SETTLE}"}}
            - {{name: CROSSFADE_DRAIN, value: "{DRAIN}"}}
            - {{name: CROSSFADE_LOG_FORMAT, value: json}}
            readinessProbe: {{periodSeconds: 1}}
"#
        ),
    );
    cluster.kubectl(&["kustomize", &here.to_string_lossy()])
}

fn generation(cluster: &Cluster, name: &str, namespace: &str, sidecar: bool) -> String {
    const TEMPLATE: &str = include_str!("generation.yaml");
    let given = env::var("CROSSFADE_TEST_DYNAMO_IMAGE").ok();
    // In the tests' own cluster Python and Dynamo are those of the machine: the image need not have them.
    let (python, mounts, volumes) = match (&given, cluster.is_own()) {
        (None, true) => host_files(),
        (Some(_), _) => ("python3".to_owned(), String::new(), String::new()),
        (None, false) => panic!("set CROSSFADE_TEST_DYNAMO_IMAGE for this cluster"),
    };
    TEMPLATE
        .replace("__NAME__", name)
        .replace("__DYNAMO-IMAGE__", given.as_deref().unwrap_or(SHELL))
        .replace("__DYNAMO__", namespace)
        .replace("__WORKERS__", "1")
        .replace("__SIDECAR__", &sidecar.to_string())
        .replace("__PYTHON__", &python)
        .replace("          # HOST-MOUNTS\n", &mounts)
        .replace("        # HOST-VOLUMES\n", &volumes)
}

/// The machine's Python with Dynamo in it: its path, and the mounts and volumes that make it reachable in a pod.
fn host_files() -> (String, String, String) {
    let python = Dynamo::install().python;
    let real = fs::canonicalize(&python).expect("a Python");
    let above = |path: &Path, levels| {
        let path = path.ancestors().nth(levels).expect("a long path");
        path.to_str().expect("a path of text").to_owned()
    };
    // venv/bin/python, and prefix/bin/python3 of the Python that the venv was made from.
    let paths = [
        "/usr".to_owned(),
        "/lib".to_owned(),
        "/lib64".to_owned(),
        above(&python, 2),
        above(&real, 2),
    ];
    let (mut mounts, mut volumes) = (String::new(), String::new());
    for (index, path) in paths.iter().enumerate() {
        if !Path::new(path).exists() || paths[..index].contains(path) {
            continue;
        }
        mounts +=
            &format!("          - {{name: host-{index}, mountPath: {path}, readOnly: true}}\n");
        volumes += &format!("        - {{name: host-{index}, hostPath: {{path: {path}}}}}\n");
    }
    (python.to_string_lossy().into_owned(), mounts, volumes)
}
