//! Installs the charts in a cluster, upgrades them from an earlier version, and uninstalls them while an update is in progress under
//! load.

use std::net::SocketAddr;
use std::path::Path;

use crossfade::inject::{Options, inject};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::fixture::{answers, eventually};
use crate::helm::{CONTROLLER, DEFINITION, Earlier, Helm, chart};
use crate::load::{Load, assert_none_failed, share};
use crate::rollout::SHAPE;

const STREAMS: usize = 20;
const NAMESPACE: &str = "charts";
const UPDATE: &str = "old-to-new";

/// The definitions of the chart [`DEFINITION`].
const DEFINITIONS: [&str; 2] = [
    "crd/dynamoupdateconfigs.nvidia.com",
    "crd/dynamorollouts.nvidia.com",
];

/// Deletes what other scenarios have left behind: it would take up resources, or was installed in another way.
pub async fn bare(cluster: &Cluster) {
    let zero = [
        "scale",
        "deployment",
        "--all",
        "--replicas=0",
        "-n",
        "default",
    ];
    cluster.try_kubectl(&zero, "");
    let controller = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/controller");
    let controller = controller.to_string_lossy();
    cluster.kubectl(&["delete", "--ignore-not-found", "-k", &controller]);
    cluster.kubectl(&[&["delete", "--ignore-not-found"][..], &DEFINITIONS].concat());
    eventually("all pods are deleted", async || {
        let pods = cluster.get(&["pods", "--all-namespaces"]);
        pods["items"].as_array().expect("a list").is_empty()
    })
    .await;
}

/// Deletes what the charts leave behind, and the namespace of a scenario.
pub async fn clear(cluster: &Cluster, namespace: &str) {
    let helm = Helm::new(cluster.kubeconfig());
    for release in [CONTROLLER, DEFINITION] {
        helm.run(&["uninstall", release, "--namespace=crossfade", "--wait"]);
    }
    cluster.kubectl(&[&["delete"][..], &DEFINITIONS].concat());
    // Kubernetes retries the deletion of a namespace with pods only after half of their grace periods, so delete the pods first.
    cluster.try_kubectl(&["delete", "dgd", "--all", "-n", namespace], "");
    cluster.kubectl(&["delete", "deployment", "--all", "-n", namespace]);
    eventually("all pods are deleted", async || {
        let pods = cluster.get(&["pods", "-n", namespace]);
        pods["items"].as_array().expect("a list").is_empty()
    })
    .await;
    cluster.kubectl(&["delete", "namespace", "crossfade", namespace]);
}

/// A generation: a server with the sidecar, and its Service.
fn generation(name: &str, tag: &str, replicas: u32) -> String {
    let server = json!({
        "name": "server", "image": format!("vllm/vllm-openai:{tag}"), "args": ["--model", "Qwen/Qwen3-0.6B"],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}},
    });
    let labels = json!({"app": name});
    let manifests = json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels},
                     "template": {"metadata": {"labels": labels}, "spec": {"containers": [server]}}},
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": labels, "ports": [{"port": 8000, "targetPort": "http"}]},
        },
    ]});
    let options = Options {
        image: Some(crate::fixture::IMAGE.to_owned()),
        ..Options::default()
    };
    let injected = inject(&manifests.to_string(), &options, None).expect("it can be injected");
    injected.text
}

/// An administrator with two generations and the charts.
struct Administrator {
    cluster: Cluster,
    helm: Helm,
}

impl Administrator {
    fn types(&self, args: &[&str]) {
        self.cluster.kubectl(&[&["-n", NAMESPACE], args].concat());
    }

    fn starts(&self, name: &str, tag: &str, replicas: u32) {
        let args = ["-n", NAMESPACE, "apply", "-f", "-"];
        self.cluster
            .kubectl_with(&args, &generation(name, tag, replicas));
        let deployment = format!("deployment/{name}");
        self.types(&["rollout", "status", &deployment, "--timeout=120s"]);
    }

    fn scales(&self, name: &str, replicas: u32) {
        let (name, replicas) = (
            format!("deployment/{name}"),
            format!("--replicas={replicas}"),
        );
        self.types(&["scale", &name, &replicas]);
    }

    /// Runs `helm` for both charts.
    fn releases(&self, verb: &str, charts: [&Path; 2]) {
        let [definition, controller] = charts.map(|chart| chart.to_string_lossy());
        let own = "--namespace=crossfade";
        let establish = [verb, DEFINITION, &*definition, own, "--create-namespace"];
        self.helm
            .run(&establish[..if verb == "install" { 5 } else { 4 }]);
        let (image, tag) = crate::fixture::IMAGE.rsplit_once(':').expect("a tag");
        let level = if verb == "upgrade" { "debug" } else { "info" };
        let image =
            format!("--set-string=image.repository={image},image.tag={tag},log.level={level}");
        let access = format!(
            "--set=sidecar.access[0].namespace={NAMESPACE},sidecar.access[0].serviceAccounts={{default}}"
        );
        let more = [own, &image, &access, "--wait", "--timeout=2m"];
        self.helm
            .run(&[&[verb, CONTROLLER, &*controller][..], &more].concat());
    }

    fn update(&self) -> Value {
        self.cluster.get(&["duc", UPDATE, "-n", NAMESPACE])
    }

    /// Waits until the proxies have this split.
    async fn wait_for_split(&self, old: u32, new: u32) {
        let weights = json!({"old": old, "new": new});
        eventually(&format!("{old} : {new}"), async || {
            let update = self.update();
            let frontends = &update["status"]["frontends"];
            update["spec"]["weights"] == weights
                && frontends["total"] == frontends["applied"]
                && frontends["total"] != 0
        })
        .await;
    }

    fn column(&self) -> Value {
        let definition = self.cluster.get(&["crd", "dynamoupdateconfigs.nvidia.com"]);
        assert!(
            definition["metadata"]["deletionTimestamp"].is_null(),
            "{definition}"
        );
        definition["spec"]["versions"][0]["additionalPrinterColumns"][0]["name"].clone()
    }

    fn address(&self, service: &str) -> SocketAddr {
        let service = self.cluster.get(&["service", service, "-n", NAMESPACE]);
        let ip = service["spec"]["clusterIP"].as_str().expect("an address");
        format!("{ip}:8000").parse().expect("an address")
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn charts_are_installed_upgraded_and_uninstalled_under_load_and_the_update_stays() {
    let cluster = Cluster::around();
    if !cluster.is_own() {
        return println!(
            "skipped: the charts: this cluster does not have the images of the fake servers"
        );
    }
    bare(&cluster).await;
    let helm = Helm::new(cluster.kubeconfig());
    let admin = Administrator { cluster, helm };
    admin.cluster.kubectl(&["create", "namespace", NAMESPACE]);
    let earlier = [DEFINITION, CONTROLLER].map(Earlier::of);
    let [definition, controller] = earlier.each_ref().map(Earlier::path);
    admin.releases("install", [&definition, &controller]);
    assert_eq!(admin.column(), "Share");

    admin.starts("old", "v0.11.0", 2);
    admin.starts("new", "v0.12.0", 1);
    let update = json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoUpdateConfig", "metadata": {"name": UPDATE, "namespace": NAMESPACE},
        "spec": {"sourceDeployment": "old", "targetDeployment": "new", "newFrontendService": "new:8000", "clientService": "old",
                 "stableSeconds": 0, "workers": {
                     "old": {"kind": "Deployment", "name": "old"}, "new": {"kind": "Deployment", "name": "new"},
                 }},
    });
    admin.cluster.apply(&update.to_string());
    let uid = admin.update()["metadata"]["uid"].clone();
    let address = admin.address("old");
    eventually("the Service has an endpoint", async || {
        answers(address, "/v1/models").await
    })
    .await;
    let load = Load::start(address, STREAMS, SHAPE);
    admin.wait_for_split(2, 1).await;

    let current = [DEFINITION, CONTROLLER].map(chart);
    let [definition, controller] = &current;
    admin.releases("upgrade", [definition, controller]);
    assert_eq!(admin.column(), "Split");
    // The new version of the controller continues the update.
    admin.scales("old", 1);
    admin.wait_for_split(1, 1).await;

    let uninstall = |release| {
        admin
            .helm
            .run(&["uninstall", release, "--namespace=crossfade", "--wait"])
    };
    uninstall(CONTROLLER);
    load.enter_phase(1);
    uninstall(DEFINITION);
    assert_eq!(admin.column(), "Split");
    assert_eq!(admin.update()["metadata"]["uid"], uid);
    // Without a controller the split stays, and an old pod that starts now still reads it.
    admin.types(&["rollout", "restart", "deployment/old"]);
    admin.types(&["rollout", "status", "deployment/old", "--timeout=120s"]);
    load.leave_phase().await;
    load.enter_phase(2);
    load.wait_for_started(4 * STREAMS).await;
    load.leave_phase().await;

    admin.releases("install", [definition, controller]);
    admin.scales("new", 2);
    admin.wait_for_split(1, 2).await;
    assert_eq!(admin.update()["metadata"]["uid"], uid);
    let ended = load.finish();
    assert_none_failed(&ended);
    println!("{} streams, none failed or cut", ended.len());
    for phase in [1, 2] {
        let (all, new) = share(&ended, phase);
        let off = new.abs_diff(all - new);
        assert!(off <= 4, "without a controller {new} of {all} went to new");
    }
    clear(&admin.cluster, NAMESPACE).await;
}
