//! A namespace with two generations, a proxy that follows its update, and a controller.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::rig::proxy::{Metrics, program};
use crate::rig::*;

/// How long a condition may take to become true on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// One API server for all tests of this binary. It stops with the process.
pub fn server() -> &'static Cluster {
    static SERVER: OnceLock<Cluster> = OnceLock::new();
    SERVER.get_or_init(new_server)
}

/// An API server with the definitions of all kinds.
pub fn new_server() -> Cluster {
    let server = Cluster::api_server();
    let base = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd/crd.yaml");
    let kinds = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/kinds.yaml");
    server.kubectl(&["apply", "-f", base, "-f", kinds]);
    let established = [
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=60s",
    ];
    server.kubectl(&established);
    server
}

/// Grants the controller's service account the permissions in `deploy/`, and writes its kubeconfig to `place`.
pub fn as_service_account(admin: &str, place: &Path) {
    as_service_account_of(server(), admin, place);
}

/// Like [`as_service_account`], on the test's own server.
pub fn as_service_account_of(server: &Cluster, admin: &str, place: &Path) {
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/controller");
    server.kubectl(&["apply", "-k", deploy]);
    let token = ["create", "token", "crossfade-controller", "-n", "crossfade"];
    let token = server.kubectl(&token).trim().to_owned();
    let mut config = Kubeconfig::read_from(admin).unwrap();
    for user in &mut config.auth_infos {
        user.auth_info = Some(AuthInfo {
            token: Some(token.clone().into()),
            ..AuthInfo::default()
        });
    }
    std::fs::write(place, serde_json::to_string(&config).unwrap()).unwrap();
}

/// A running controller. Killed when dropped.
pub struct Controller {
    child: Child,
    pub lines: Arc<Mutex<Vec<String>>>,
    pub admin: SocketAddr,
}

impl Controller {
    pub async fn start(kubeconfig: &str, args: &[&str]) -> Self {
        let mut command = program();
        if !args.contains(&"--admin") {
            command.env("CROSSFADE_ADMIN", "127.0.0.1:0");
        }
        command
            .args(["controller", "--log-format", "json", "--lease-seconds", "6"])
            .args(args)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        // So that it also dies when the test process is killed.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn({
            let lines = Arc::clone(&lines);
            move || {
                for line in output.map_while(Result::ok) {
                    lines.lock().unwrap().push(line);
                }
            }
        });
        let admin = until("the controller says `controls`", async || {
            let lines = lines.lock().unwrap();
            lines.iter().find_map(|line| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["message"] == "controls").then(|| line["admin"].as_str()?.parse().ok())?
            })
        })
        .await;
        Self {
            child,
            lines,
            admin,
        }
    }

    pub async fn metrics(&self) -> Metrics {
        let answer = client::get(self.admin, "/metrics").await;
        Metrics::parse(&String::from_utf8(answer.body.clone()).unwrap())
    }

    pub async fn page(&self, path: &str) -> u16 {
        client::get(self.admin, path).await.status
    }

    pub async fn leads(&self) -> bool {
        self.metrics().await.sum("crossfade_controller_leader", &[]) == 1.0
    }

    pub fn log(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// The number of its open file descriptors.
    pub fn descriptors(&self) -> usize {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        open.unwrap().count()
    }

    /// Limits its file descriptors to numbers below this one, and returns the previous limit.
    pub fn limit_descriptors(&self, below: u64) -> u64 {
        let pid = i32::try_from(self.child.id()).unwrap();
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the pointers to the limits are valid, and the child has not been waited for.
        let done = unsafe {
            libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut limit) == 0 && {
                let wanted = libc::rlimit {
                    rlim_cur: below,
                    ..limit
                };
                libc::prlimit(
                    pid,
                    libc::RLIMIT_NOFILE,
                    &raw const wanted,
                    std::ptr::null_mut(),
                ) == 0
            }
        };
        assert!(done, "{}", std::io::Error::last_os_error());
        limit.rlim_cur
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: the child has not been waited for.
        unsafe { libc::kill(pid, signal) };
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the controller:\n{}", self.log());
        }
    }
}

/// A namespace of the API server.
pub struct Fixture {
    pub client: Client,
    pub namespace: String,
    pub kubeconfig: String,
    pub old: Upstream,
    pub new: Upstream,
    /// Whether new serves its model.
    pub new_serves: Arc<AtomicBool>,
    pub proxies: Vec<Proxy>,
}

pub fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

pub fn updates() -> ApiResource {
    resource(
        "nvidia.com",
        "v1alpha1",
        "DynamoUpdateConfig",
        "dynamoupdateconfigs",
    )
}

pub fn pods() -> ApiResource {
    resource("", "v1", "Pod", "pods")
}

/// A frontend that has one model while `serves` is set. Requests can ask it to be slow, and new to break off a stream.
async fn frontend(name: &'static str, serves: Arc<AtomicBool>) -> Upstream {
    // The update remains after the test, so no other test may get the port that it names.
    Upstream::at(Port::for_good(), move |received| {
        match received.target.as_str() {
            "/v1/models" => models(&["tiny"]),
            _ if !serves.load(Ordering::Relaxed) => status(503),
            "/v1/models/tiny/ready" => Script::new().json(200, "{}"),
            CHAT => match (received.header("x-ends"), name) {
                (Some("cut"), "new") => begun(name).reset(),
                (Some("refused"), "new") => status(503),
                (Some("late"), _) => late(name),
                (Some("late, refused by new"), "new") => status(503),
                (Some("late, refused by new"), _) => late(name),
                (Some(millis), _) if millis.bytes().all(|byte| byte.is_ascii_digit()) => {
                    let begun = Script::new().sse().chunk(content(name, 0));
                    begun.pause(millis.parse().unwrap()).chunk(DONE)
                }
                _ => chat_stream(name),
            },
            _ => status(503),
        }
    })
    .await
}

/// A stream that takes more than a second.
fn late(name: &str) -> Script {
    let slow = (1..40).fold(begun(name), |script, i| {
        let script = script.pause(20 + i % 7 * 5);
        script.events(&content(name, i as usize))
    });
    slow.events(&Family::Chat.terminal(name)).end()
}

fn begun(name: &str) -> Script {
    let script = Script::new().sse().events(&role(name)).pause(50);
    script.events(&content(name, 0))
}

impl Fixture {
    /// Only the frontends of both generations.
    pub async fn start() -> Self {
        Self::start_on(tokio::task::spawn_blocking(server).await.unwrap()).await
    }

    /// Like [`Self::start`], on the test's own server.
    pub async fn start_on(server: &Cluster) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = server.kubeconfig().unwrap();
        let config = Kubeconfig::read_from(&path).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(config, &options);
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::try_from(config.await.unwrap()).unwrap();
        let namespace = format!("fixture-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let new_serves = Arc::new(AtomicBool::new(true));
        let fixture = Self {
            old: frontend("old", Arc::new(AtomicBool::new(true))).await,
            new: frontend("new", Arc::clone(&new_serves)).await,
            new_serves,
            namespace: namespace.clone(),
            kubeconfig: path.to_string_lossy().into_owned(),
            client,
            proxies: Vec::new(),
        };
        let namespaces: Api<DynamicObject> = Api::all_with(
            fixture.client.clone(),
            &resource("", "v1", "Namespace", "namespaces"),
        );
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let params = PostParams::default();
        let object = serde_json::from_value(object).unwrap();
        namespaces.create(&params, &object).await.unwrap();
        let accounts = resource("", "v1", "ServiceAccount", "serviceaccounts");
        fixture.create(&accounts, "default", json!({})).await;
        fixture
    }

    /// Also has four workers of old, a proxy, and an update that sends everything to old.
    pub async fn with_update(spec: Value) -> Self {
        let mut fixture = Self::start().await;
        fixture.begin(spec).await;
        fixture
    }

    /// Like [`Self::with_update`], on a server of its own, for controllers for which objects of other namespaces count.
    pub async fn alone_with_update(spec: Value) -> (Cluster, Self) {
        let server = tokio::task::spawn_blocking(new_server).await.unwrap();
        let mut fixture = Self::start_on(&server).await;
        fixture.begin(spec).await;
        (server, fixture)
    }

    pub async fn begin(&mut self, spec: Value) {
        for i in 0..4 {
            self.worker("old", i, "worker").await;
        }
        self.update("up", spec).await;
        self.proxy("up").await;
    }

    pub fn api(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, kind)
    }

    /// Creates an object with these fields: the labels in `metadata`, `spec` and so on. Returns its UID.
    pub async fn create(&self, kind: &ApiResource, name: &str, mut object: Value) -> String {
        object["apiVersion"] = kind.api_version.clone().into();
        object["kind"] = kind.kind.clone().into();
        object["metadata"]["name"] = name.into();
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let created = self.api(kind).create(&PostParams::default(), &object).await;
        let created = created.unwrap_or_else(|error| panic!("{} {name}: {error}", kind.kind));
        created.metadata.uid.expect("the API server sets it")
    }

    pub async fn status(&self, kind: &ApiResource, name: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let params = PatchParams::default();
        let patched = self.api(kind).patch_status(name, &params, &patch).await;
        patched.unwrap_or_else(|error| panic!("{} {name}: {error}", kind.kind));
    }

    /// Returns whether the API server accepted it.
    pub async fn status_unless_refused(
        &self,
        kind: &ApiResource,
        name: &str,
        status: Value,
    ) -> bool {
        let patch = Patch::Merge(json!({"status": status}));
        let params = PatchParams::default();
        let patched = self.api(kind).patch_status(name, &params, &patch).await;
        patched.is_ok()
    }

    pub async fn pod(&self, name: &str, labels: Value, ports: Value) {
        let spec = json!({
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "any", "ports": ports}],
        });
        self.create(
            &pods(),
            name,
            json!({"metadata": {"labels": labels}, "spec": spec}),
        )
        .await;
    }

    pub async fn pod_ready(&self, name: &str, ready: bool) {
        let ready = if ready { "True" } else { "False" };
        let status = json!({
            "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": [{"type": "Ready", "status": ready}],
        });
        self.status(&pods(), name, status).await;
    }

    /// A ready worker of a graph.
    pub async fn worker(&self, graph: &str, i: u32, kind: &str) {
        let name = format!("{graph}-{kind}-{i}");
        let labels = json!({
            "nvidia.com/dynamo-graph-deployment-name": graph, "nvidia.com/dynamo-component-type": kind,
        });
        self.pod(&name, labels, json!([])).await;
        self.pod_ready(&name, true).await;
    }

    /// A ready frontend of new.
    pub async fn frontend_of_new(&self, name: &str) {
        let labels = json!({
            "nvidia.com/dynamo-graph-deployment-name": "new", "nvidia.com/dynamo-component-type": "frontend",
        });
        self.pod(name, labels, json!([])).await;
        let status = json!({
            "phase": "Running", "podIP": "10.9.0.1", "podIPs": [{"ip": "10.9.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        });
        self.status(&pods(), name, status).await;
    }

    /// Deletes an object and creates it again with these fields.
    pub async fn replace(&self, kind: &ApiResource, name: &str, object: Value) {
        self.delete(kind, name).await;
        self.create(kind, name, object).await;
    }

    pub async fn delete(&self, kind: &ApiResource, name: &str) {
        let params = DeleteParams::default().grace_period(0);
        self.api(kind).delete(name, &params).await.unwrap();
    }

    /// Deletes the four initial workers of old.
    pub async fn delete_old_workers(&self) {
        for i in 0..4 {
            self.delete(&pods(), &format!("old-worker-{i}")).await;
        }
    }

    /// Starts a proxy in a pod of the old frontends.
    pub async fn proxy(&mut self, what: &str) {
        self.proxy_of("old", what).await;
    }

    /// Starts a proxy in a pod of the frontends of this generation.
    pub async fn proxy_of(&mut self, generation: &str, what: &str) {
        let name = format!("{generation}-frontend-{}", self.proxies.len());
        let port = self.backend(generation).address.port();
        let ports = json!([{"name": "frontend", "containerPort": port}]);
        self.proxy_in(&name, generation, ports, what).await;
    }

    /// Starts a proxy in this pod of the frontends of this generation, which declares `ports` and the proxy's admin port.
    pub async fn proxy_in(&mut self, pod: &str, generation: &str, mut ports: Value, what: &str) {
        let args = [
            "--old",
            &self.backend(generation).url(),
            "--kube",
            "--kube-deployment",
            generation,
            "--kube-namespace",
            &self.namespace,
            "--kube-allow-any-target",
        ];
        let env = [("KUBECONFIG", self.kubeconfig.as_str())];
        let proxy = Proxy::start_with_env(&args, &env).await;
        let admin = json!({"name": "crossfade", "containerPort": proxy.admin.port()});
        ports.as_array_mut().unwrap().push(admin);
        let labels = json!({
            "nvidia.com/dynamo-graph-deployment-name": generation, "nvidia.com/dynamo-component-type": "frontend",
        });
        self.pod(pod, labels, ports).await;
        self.pod_ready(pod, true).await;
        eventually(&format!("the proxy follows {what}"), async || {
            proxy.plan().await.contains(&format!("/{what}"))
        })
        .await;
        self.proxies.push(proxy);
    }

    fn backend(&self, generation: &str) -> &Upstream {
        match generation {
            "old" => &self.old,
            _ => &self.new,
        }
    }

    /// Creates an update from `old` to `new` with these additional fields.
    pub async fn update(&self, name: &str, more: Value) {
        let mut spec = json!({
            "newFrontendService": self.new.url(), "trafficSplitPercent": 0, "sourceDeployment": "old",
            "targetDeployment": "new", "stableSeconds": 0,
        });
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        self.create(&updates(), name, json!({"spec": spec})).await;
    }

    pub async fn edit(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        let params = PatchParams {
            field_manager: Some("a-person".into()),
            ..PatchParams::default()
        };
        self.api(&updates())
            .patch(name, &params, &patch)
            .await
            .unwrap();
    }

    pub async fn controller(&self, more: &[&str]) -> Controller {
        let isolated = ["--assume-isolated-namespace", "--quiet-period", "1"];
        self.wary_controller(&[&isolated, more].concat()).await
    }

    /// A controller without information about other namespaces, with the default quiet period.
    pub async fn wary_controller(&self, more: &[&str]) -> Controller {
        let args = ["--namespace", &self.namespace, "--allow-any-target"];
        Controller::start(&self.kubeconfig, &[&args, more].concat()).await
    }

    pub async fn get(&self, name: &str) -> Value {
        let object = self.api(&updates()).get(name).await.unwrap();
        serde_json::to_value(object).unwrap()
    }

    /// Waits until `condition` holds for the update.
    pub async fn until(&self, name: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let object = self.get(name).await;
            if condition(&object) {
                return object;
            }
            assert!(
                Instant::now() < deadline,
                "never {what}: {} {}",
                object["spec"],
                object["status"]
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the update has exactly this split.
    pub async fn wait_for_split(&self, name: &str, old: u32, new: u32) -> Value {
        let weights = json!({"old": old, "new": new});
        let what = format!("{old} : {new}");
        self.until(name, &what, |object| {
            object["spec"]["weights"] == weights && object["status"]["wanted"]["weights"] == weights
        })
        .await
    }

    /// Asserts that the split stays the same for several reconciles.
    pub async fn keeps(&self, controller: &Controller, name: &str, percent: u32) {
        let reconciles = async || {
            let metrics = controller.metrics().await;
            metrics.sum("crossfade_controller_reconciles_total", &[])
        };
        let before = reconciles().await;
        for i in 0.. {
            let object = self.get(name).await;
            assert_eq!(object["spec"]["trafficSplitPercent"], percent, "{object}");
            if reconciles().await >= before + 3.0 {
                break;
            }
            // An event that triggers a reconcile but changes nothing.
            let note = json!({"metadata": {"annotations": {"again": i.to_string()}}});
            let params = PatchParams::default();
            let api = self.api(&updates());
            api.patch(name, &params, &Patch::Merge(note)).await.unwrap();
            tokio::time::sleep(POLL).await;
        }
    }

    /// The Events of the namespace, by reason.
    pub async fn events(&self) -> BTreeMap<String, Vec<String>> {
        let kind = resource("events.k8s.io", "v1", "Event", "events");
        let mut events: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in self.api(&kind).list(&Default::default()).await.unwrap() {
            let reason = event.data["reason"].as_str().unwrap().to_owned();
            let note = event.data["note"].as_str().unwrap().to_owned();
            events.entry(reason).or_default().push(note);
        }
        events
    }

    pub async fn wait_for_event(&self, reason: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(notes) = self.events().await.remove(reason) {
                return notes[0].clone();
            }
            assert!(Instant::now() < deadline, "never {reason}");
            tokio::time::sleep(POLL).await;
        }
    }
}
