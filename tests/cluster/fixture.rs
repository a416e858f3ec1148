//! The environment of the scenarios: two generations of real Dynamo, the old one behind the sidecar, and the resource.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::dynamo::Dynamo;
use crate::rig;

/// The image under test, an image that only has a shell, and an image with the fake model server.
pub const IMAGE: &str = "test.local/crossfade:1";
pub const SHELL: &str = "test.local/shell:1";
pub const STAND_IN: &str = "test.local/dynamo:1";

/// Seconds, shorter than in `deploy/` so that the tests are fast.
pub const SETTLE: u64 = 2;
pub const DRAIN: u64 = 60;
const GRACE: u64 = 70;

/// How long a condition may take to become true in a cluster.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const UPDATE: &str = "my-dgd-update";

/// The namespace and name of the controller's Deployment.
pub const CONTROLLER: [&str; 2] = ["crossfade", "crossfade-controller"];

/// Two generations that serve.
pub struct Fixture {
    pub cluster: Cluster,
    /// Where clients connect: the address of the old Service.
    pub address: SocketAddr,
}

impl Fixture {
    /// Creates what is missing, and deletes what earlier scenarios have left behind, including the controller.
    pub async fn ready() -> Self {
        let cluster = Cluster::around();
        let [namespace, name] = CONTROLLER;
        let gone = ["--ignore-not-found", "--cascade=foreground"];
        let args = ["delete", "deployment", name, "-n", namespace];
        cluster.kubectl(&[&args[..], &gone].concat());
        Self::deploy(cluster, [1, 1]).await
    }

    /// Like [`Self::ready`], with this number of old and new workers, and with the controller.
    pub async fn with_controller(workers: [u32; 2]) -> Self {
        let fixture = Self::deploy(Cluster::around(), workers).await;
        fixture.apply(&controller(&fixture.cluster));
        let [namespace, name] = CONTROLLER;
        let deployment = format!("deployment/{name}");
        let args = ["rollout", "status", &deployment, "-n", namespace];
        fixture
            .cluster
            .kubectl(&[&args[..], &["--timeout=90s"]].concat());
        fixture
    }

    async fn deploy(cluster: Cluster, workers: [u32; 2]) -> Self {
        apply(&cluster, &manifests(&cluster, workers));
        let established = "--for=condition=Established";
        let definition = "crd/dynamoupdateconfigs.nvidia.com";
        cluster.kubectl(&["wait", established, definition, "--timeout=30s"]);
        cluster.kubectl(&["delete", "dynamoupdateconfigs", "--all"]);
        let fixture = Self {
            address: address_of(&cluster, "old"),
            cluster,
        };
        for deployment in ["old-worker", "old-frontend", "new-worker", "new-frontend"] {
            fixture.rolled_out(deployment);
        }
        fixture.settled().await;
        for (service, workers) in ["old", "new"].into_iter().zip(workers) {
            match workers {
                0 => fixture.without_model(service).await,
                _ => fixture.with_model_again(service).await,
            }
        }
        fixture
    }

    /// Applies manifests, and overwrites changes by others.
    pub fn apply(&self, manifests: &str) {
        apply(&self.cluster, manifests);
    }

    /// Waits until the pods of a Deployment are ready. If its pods do not contain crossfade, a pod that does not become ready is a
    /// problem of Dynamo or the cluster: its state is printed and it is replaced, once.
    pub fn rolled_out(&self, deployment: &str) {
        let is_ours = deployment == "old-frontend";
        let name = format!("deployment/{deployment}");
        let args = ["rollout", "status", &name, "--timeout=90s"];
        for may_fail in [!is_ours, false] {
            let output = self.cluster.try_kubectl(&args, "");
            if output.status.success() {
                return;
            }
            let not_ready = self.not_ready(deployment);
            println!("{name} is not ready: {output:?}");
            println!("{}", self.cluster.kubectl(&["describe", &name]));
            for pod in &not_ready {
                self.print_diagnostics(pod);
            }
            assert!(may_fail, "{name} is not ready: {not_ready:?}");
            for pod in &not_ready {
                let delete = ["delete", "pod", pod, "--force", "--ignore-not-found"];
                self.cluster.kubectl(&delete);
            }
        }
    }

    /// The names of the pods of a Deployment that are not ready.
    fn not_ready(&self, deployment: &str) -> Vec<String> {
        let label = format!("app={deployment}");
        let list = self.cluster.get(&["pods", "-l", &label]);
        let is_ready = |pod: &&Value| {
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|is| is["type"] == "Ready" && is["status"] == "True")
        };
        let pods = list["items"].as_array().expect("a list").iter();
        pods.filter(|pod| !is_ready(pod))
            .filter_map(|pod| Some(pod["metadata"]["name"].as_str()?.to_owned()))
            .collect()
    }

    /// Prints the description and the logs of a pod.
    fn print_diagnostics(&self, pod: &str) {
        let logs = ["logs", pod, "--all-containers", "--tail=40"];
        for args in [&logs[..], &["describe", "pod", pod]] {
            let output = self.cluster.try_kubectl(args, "");
            let text = [output.stdout, output.stderr].concat();
            println!("{}", String::from_utf8_lossy(&text));
        }
    }

    /// Waits until no pod is terminating.
    pub async fn settled(&self) {
        eventually("no pod is ending", async || {
            let list = self.cluster.get(&["pods"]);
            let pods = list["items"].as_array().expect("a list");
            let stays = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null();
            pods.iter().all(stays)
        })
        .await;
    }

    pub fn scale(&self, deployment: &str, replicas: u32) {
        self.set_replicas(deployment, replicas);
        self.rolled_out(deployment);
    }

    /// Like [`Self::scale`], but does not wait.
    pub fn set_replicas(&self, deployment: &str, replicas: u32) {
        let replicas = format!("--replicas={replicas}");
        self.cluster
            .kubectl(&["scale", &format!("deployment/{deployment}"), &replicas]);
    }

    /// Waits until the frontends behind a Service list the model.
    pub async fn with_model(&self, service: &str) {
        let address = address_of(&self.cluster, service);
        eventually("the model is served", async || lists_model(address).await).await;
    }

    /// Like [`Self::with_model`]. A Dynamo frontend that has lost all its workers may not discover several workers that start at the
    /// same time. In this case, the frontends are replaced, once.
    pub async fn with_model_again(&self, service: &str) {
        let address = address_of(&self.cluster, service);
        let deadline = Instant::now() + PATIENCE / 3;
        while !lists_model(address).await {
            if Instant::now() >= deadline {
                let frontends = format!("{service}-frontend");
                println!("{frontends} does not list the model: its pods are replaced");
                let label = format!("app={frontends}");
                self.cluster
                    .kubectl(&["delete", "pods", "-l", &label, "--force"]);
                self.rolled_out(&frontends);
                self.settled().await;
                return self.with_model(service).await;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the frontends behind a Service list no model.
    pub async fn without_model(&self, service: &str) {
        let address = address_of(&self.cluster, service);
        eventually("no model", async || !lists_model(address).await).await;
    }

    /// Creates the resource, and waits until all sidecars apply it.
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

    /// Edits the split as a user does, and waits until all sidecars apply it.
    pub async fn patch(&self, percent: u8) {
        let patch = format!(r#"{{"spec":{{"trafficSplitPercent":{percent}}}}}"#);
        let args = ["patch", "duc", UPDATE, "--type=merge", "-p", &patch];
        self.cluster.kubectl(&args);
        self.in_force(percent).await;
    }

    /// Waits until every sidecar applies this split.
    pub async fn in_force(&self, percent: u8) {
        let condition = |plan: &Value| plan["trafficSplitPercent"] == percent;
        self.until_all(&format!("{percent}%"), condition).await;
    }

    /// Waits until `condition` holds for the plan of every sidecar.
    pub async fn until_all(&self, what: &str, condition: impl Fn(&Value) -> bool) {
        let sidecars = self.sidecars();
        eventually(&format!("{what} in force"), async || {
            let mut all = true;
            for address in &sidecars {
                all &= condition(&self.plan(*address).await);
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

/// Waits until `condition` returns true.
///
/// # Panics
/// If it does not in time.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
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
    let list = page(address, rig::MODELS).await;
    list.is_some_and(|list| list.contains(r#""id":"tiny""#))
}

/// Whether a GET of this path returns 200.
pub async fn answers(address: SocketAddr, path: &str) -> bool {
    page(address, path).await.is_some()
}

/// The body of a GET; `None` if the status is not 200 or the connection fails.
pub async fn page(address: SocketAddr, path: &str) -> Option<String> {
    let connecting = tokio::net::TcpStream::connect(address);
    let connection = tokio::time::timeout(Duration::from_secs(1), connecting).await;
    let mut client = rig::Client::over(connection.ok()?.ok()?);
    client.get(path, &[]).await;
    match client.try_head().await {
        Ok(head) if head.status == 200 => Some(client.rest(head).await.text()),
        _ => None,
    }
}

fn apply(cluster: &Cluster, manifests: &str) {
    let args = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    cluster.kubectl_with(&args, manifests);
}

/// The image that replaces `crossfade:latest`, as a field of a kustomization.
fn images() -> String {
    let image = env::var("CROSSFADE_TEST_IMAGE").unwrap_or_else(|_| IMAGE.to_owned());
    let (name, tag) = image.rsplit_once(':').expect("an image with a tag");
    format!(r#"images: [{{name: crossfade, newName: {name}, newTag: "{tag}"}}]"#)
}

/// A temporary directory with copies of these files and directories.
pub fn copied(sources: &[PathBuf]) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = std::process::Command::new("cp");
    let command = command.arg("-r").args(sources).arg(directory.path());
    assert!(command.status().expect("cp starts").success());
    directory
}

/// `deploy/controller`, with the image under test.
fn controller(cluster: &Cluster) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = copied(&[root.join("deploy/controller")]);
    let text = format!("resources: [controller]\n{}\n", images());
    fs::write(directory.path().join("kustomization.yaml"), text)
        .expect("the temporary directory is writable");
    cluster.kubectl(&["kustomize", &directory.path().to_string_lossy()])
}

/// Everything else: what kustomize builds from `deploy/` and the additions of the tests.
fn manifests(cluster: &Cluster, workers: [u32; 2]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = copied(&[
        root.join("deploy"),
        root.join("tests/kubernetes/discovery.yaml"),
        root.join("tests/dynamo/worker.py"),
        Dynamo::install().model,
    ]);
    let here = directory.path();
    let write = |name: &str, text: &str| {
        fs::write(here.join(name), text).expect("the temporary directory is writable")
    };
    let [old, new] = workers;
    write(
        "old.yaml",
        &generation(cluster, "old", "dynamo-v1", old, true),
    );
    write(
        "new.yaml",
        &generation(cluster, "new", "dynamo-v2", new, false),
    );
    let images = images();
    let model: Vec<_> = fs::read_dir(here.join("model"))
        .expect("the model's files")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| format!("model/{}", name.display()))
        .collect();
    let model = model.join(", ");
    write(
        "kustomization.yaml",
        &format!(
            r#"resources: [deploy/crd, deploy/base, discovery.yaml, old.yaml, new.yaml]
components: [deploy/sidecar]
{images}
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
            readinessProbe: {{periodSeconds: 1, failureThreshold: 6}}
          containers:
          - name: main
            livenessProbe: {{timeoutSeconds: 10}} # on a busy machine
"#
        ),
    );
    cluster.kubectl(&["kustomize", &here.to_string_lossy()])
}

/// A generation with this name: a frontend, this number of workers, and, if `sidecar`, the sidecar.
pub fn generation(
    cluster: &Cluster,
    name: &str,
    namespace: &str,
    workers: u32,
    sidecar: bool,
) -> String {
    const TEMPLATE: &str = include_str!("../kubernetes/generation.yaml");
    let given = env::var("CROSSFADE_TEST_DYNAMO_IMAGE").ok();
    // The tests' own cluster mounts Python and Dynamo from the machine, so the image does not need them.
    let (python, mounts, volumes) = match (&given, cluster.is_own()) {
        (None, true) => host_files(),
        (Some(_), _) => ("python3".to_owned(), String::new(), String::new()),
        (None, false) => panic!("set CROSSFADE_TEST_DYNAMO_IMAGE for this cluster"),
    };
    TEMPLATE
        .replace("__NAME__", name)
        .replace("__DYNAMO-IMAGE__", given.as_deref().unwrap_or(SHELL))
        .replace("__DYNAMO__", namespace)
        .replace("__WORKERS__", &workers.to_string())
        .replace("__SIDECAR__", &sidecar.to_string())
        .replace("__PYTHON__", &python)
        .replace("          # HOST-MOUNTS\n", &mounts)
        .replace("        # HOST-VOLUMES\n", &volumes)
}

/// The path of the machine's Python that has Dynamo, and the mounts and volumes that make it available in a pod.
fn host_files() -> (String, String, String) {
    let python = Dynamo::install().python;
    let real = fs::canonicalize(&python).expect("a Python");
    let above = |path: &Path, levels| {
        let path = path.ancestors().nth(levels).expect("a long path");
        path.to_str().expect("a UTF-8 path").to_owned()
    };
    // The parents of venv/bin/python, and of prefix/bin/python3, from which the venv was created.
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

/// Whether the long scenarios are enabled.
pub fn long_tests_enabled() -> bool {
    let is = env::var_os("CROSSFADE_TEST_LONG").is_some();
    if !is {
        println!("skipped: runs with make rollouts");
    }
    is
}
