//! Validates the contents of `deploy/` with a real API server, kustomize, promtool, and the program's own help.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::Cluster;
use crate::rig::proxy::run;
use crossfade::resource::{self, TargetScope};
use serde_json::{Value, json};

/// The label by which the operator identifies the pods of a graph.
const GRAPH: &str = "nvidia.com/dynamo-graph-deployment-name";

pub fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

pub fn kustomize(cluster: &Cluster, directory: &Path) -> String {
    cluster.kubectl(&["kustomize", &directory.to_string_lossy()])
}

/// The result of a server-side dry run. Unknown fields are errors.
pub fn dry_run(cluster: &Cluster, manifests: &str) -> Vec<Value> {
    let args = [
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "-o",
        "json",
        "-f",
        "-",
    ];
    let text = cluster.kubectl_with(&args, manifests);
    let value: Value = serde_json::from_str(&text).expect("JSON");
    match value["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![value],
    }
}

pub fn of_kind<'a>(items: &'a [Value], kind: &str) -> &'a Value {
    let mut items = items.iter();
    let item = items.find(|item| item["kind"] == kind);
    item.unwrap_or_else(|| panic!("no {kind}"))
}

/// Copies the contents of `deploy/` to another directory.
fn copy_to(place: &Path) {
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(deploy()).arg(place);
    assert!(copy.status().unwrap().success());
}

/// The plain example with another sidecar component.
pub fn plain_with(cluster: &Cluster, component: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    copy_to(directory.path());
    let plain = directory.path().join("deploy/examples/plain");
    let file = plain.join("kustomization.yaml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("../../sidecar\n"));
    fs::write(
        &file,
        text.replace("../../sidecar\n", &format!("../../{component}\n")),
    )
    .unwrap();
    kustomize(cluster, &plain)
}

/// A Deployment with this pod spec.
fn deployment(spec: &Value) -> String {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "from-a-graph"},
        "spec": {
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": spec},
        },
    })
    .to_string()
}

/// Asserts what must hold for every pod with a sidecar, regardless of how it was added.
fn assert_right(pod: &Value) {
    let all = ["containers", "initContainers"];
    let containers = all.iter().filter_map(|kind| pod[kind].as_array()).flatten();
    let containers: Vec<_> = containers.collect();
    let named = |name: &str| {
        let mut containers = containers.iter();
        let found = containers.find(|container| container["name"] == name);
        *found.unwrap_or_else(|| panic!("no container {name}: {pod}"))
    };
    let (main, sidecar) = (named("main"), named("crossfade"));

    let ports = |container: &Value, name: &str| {
        let ports = container["ports"].as_array().cloned().unwrap_or_default();
        ports.iter().any(|port| port["name"] == name)
    };
    assert!(ports(sidecar, "http") && !ports(main, "http"));

    let variable = |name: &str| {
        let mut variables = sidecar["env"].as_array().expect("env").iter();
        let value = variables.find(|variable| variable["name"] == name);
        value.unwrap_or_else(|| panic!("no {name}"))["value"].clone()
    };
    let seconds = |name| variable(name).as_str().unwrap().parse::<i64>().unwrap();
    let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap();
    assert!(seconds("CROSSFADE_SETTLE") + seconds("CROSSFADE_DRAIN") < grace);

    let help = String::from_utf8(run(&["proxy", "--help"]).stdout).unwrap();
    for entry in sidecar["env"].as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        if name.starts_with("CROSSFADE_") {
            assert!(
                help.contains(&format!("[env: {name}=")),
                "{name} is no variable of the proxy"
            );
        }
    }
    // The root file system is read-only, so state is in a volume that lives as long as the pod.
    let directory = variable("CROSSFADE_STATE_DIR");
    let mount = &sidecar["volumeMounts"][0];
    assert_eq!(mount["mountPath"], directory);
    let mut volumes = pod["volumes"].as_array().expect("volumes").iter();
    let volume = volumes.find(|volume| volume["name"] == mount["name"]);
    assert!(volume.expect("its volume")["emptyDir"].is_object());
    assert_eq!(sidecar["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert_eq!(main["lifecycle"]["preStop"]["httpGet"]["path"], "/drained");
    assert_ne!(main["readinessProbe"]["httpGet"]["path"], "/health");
    let native = sidecar["restartPolicy"] == "Always";
    let hook = &sidecar["lifecycle"]["preStop"]["exec"]["command"];
    assert_eq!(native, *hook == json!(["/crossfade", "drain"]), "{hook}");
    let security = &sidecar["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["runAsNonRoot"], true);
}

/// The first number after `word` in a manifest, in any YAML style.
fn number_behind(word: &str, manifest: &str) -> Option<u64> {
    let (_, rest) = manifest.split_once(word)?;
    let start = rest.find(|c: char| c.is_ascii_digit())?;
    let digits = rest[start..].split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[test]
fn every_sidecars_memory_limit_fits_the_memory_budget() {
    let budget = crossfade::proxy::ProxySettings::default().replay_budget as u64;
    let files = [
        "sidecar/sidecar.yaml",
        "sidecar-container/sidecar.yaml",
        "examples/dgd-container.yaml",
        "examples/dgd-v1alpha1.yaml",
        "examples/dgd-v1beta1.yaml",
    ];
    let read = |name: &str| fs::read_to_string(deploy().join(name)).unwrap();
    let injected = crate::manifests::injected(&read("examples/plain/frontend.yaml"));
    let mut manifests: Vec<_> = files.iter().map(|name| (*name, read(name))).collect();
    manifests.push(("crossfade inject", injected.unwrap().text));
    for (name, manifest) in manifests {
        assert!(
            !manifest.contains("CROSSFADE_REPLAY_BUDGET_BYTES"),
            "{name}"
        );
        assert_eq!(manifest.matches("limits:").count(), 1, "{name}");
        let (_, limits) = manifest.split_once("limits:").unwrap();
        let number = number_behind("memory", limits).unwrap();
        let has_unit = |unit: &str| limits.contains(&format!("{number}{unit}"));
        let mib = match (has_unit("Mi"), has_unit("Gi")) {
            (true, false) => number,
            (false, true) => number << 10,
            _ => panic!("{name}: {number} in which unit?"),
        };
        // The limit is sufficient only if no more connections are possible than it was calculated for.
        let bound = |what: &str| {
            let found = number_behind(&format!("CROSSFADE_MAX_{what}"), &manifest);
            found.unwrap_or_else(|| panic!("{name} has no bound on {what}"))
        };
        // As in docs/behaviour.md for HTTP/2 clients.
        let held = bound("CONNECTIONS") * (64 << 10) + bound("REQUESTS") * (16 << 10);
        let needed = budget + (64 << 20) + held;
        assert!(mib << 20 >= needed, "{name}: {mib} MiB < {needed}");
    }
}

#[test]
fn a_real_api_server_accepts_every_manifest_and_their_pods_are_correct() {
    let cluster = Cluster::api_server();
    cluster.apply(include_str!("../kubernetes/operators.yaml"));
    for part in ["crd", "base"] {
        cluster.apply(&kustomize(&cluster, &deploy().join(part)));
    }
    cluster.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=30s",
    ]);
    dry_run(&cluster, &kustomize(&cluster, &deploy().join("monitoring")));
    let policy = fs::read_to_string(deploy().join("network-policy/admin.yaml")).unwrap();
    let policy = dry_run(&cluster, &policy).remove(0);
    let opened = policy["spec"]["ingress"][0]["ports"].as_array().unwrap();
    let is_open = |port: i64| {
        opened
            .iter()
            .filter(|range| range["protocol"] == "TCP")
            .any(|range| {
                (range["port"].as_i64().unwrap()..=range["endPort"].as_i64().unwrap())
                    .contains(&port)
            })
    };
    assert!(is_open(8000) && is_open(8080) && !is_open(9464) && is_open(9465));

    let example = |name: &str| fs::read_to_string(deploy().join("examples").join(name)).unwrap();
    let update = dry_run(&cluster, &example("update.yaml")).remove(0);
    let (source, target) = (
        &update["spec"]["sourceDeployment"],
        &update["spec"]["targetDeployment"],
    );
    let new = dry_run(&cluster, &example("dgd-new.yaml"));
    let name = new[0]["metadata"]["name"].as_str().unwrap();
    assert_eq!(target, name);
    // The Service that the operator creates for its frontend.
    let service = format!("{name}-frontend:8000");
    assert_eq!(update["spec"]["newFrontendService"], *service);

    for component in ["sidecar", "sidecar-container"] {
        let items = dry_run(&cluster, &plain_with(&cluster, component));
        let template = &of_kind(&items, "Deployment")["spec"]["template"];
        assert_right(&template["spec"]);
        let labels = &template["metadata"]["labels"];
        assert_eq!(&labels[GRAPH], source);
        // Without it, neither proxies nor frontends are discovered.
        assert_eq!(labels["nvidia.com/dynamo-component-type"], "frontend");
    }
    for version in ["v1beta1", "v1alpha1", "container"] {
        let text = example(&format!("dgd-{version}.yaml"));
        dry_run(&cluster, &text);
        // In the version of the manifest: this cluster has no operator that converts to the stored version.
        let args = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
        let (graph, _) = text.split_once("\n---\n").unwrap();
        let graph: Value = serde_json::from_str(&cluster.kubectl_with(&args, graph)).unwrap();
        let spec = &graph["spec"];
        assert_eq!(graph["metadata"]["name"], *source);
        assert!(text.contains(&format!(
            "CROSSFADE_KUBE_DEPLOYMENT, value: {}}}",
            source.as_str().unwrap()
        )));
        let mut pod = match version {
            "v1beta1" | "container" => spec["components"][0]["podTemplate"]["spec"].clone(),
            _ => spec["services"]["Frontend"]["extraPodSpec"].clone(),
        };
        if let Some(main) = pod
            .as_object_mut()
            .and_then(|pod| pod.remove("mainContainer"))
        {
            pod["containers"] = json!([main]);
            pod["containers"][0]["name"] = "main".into();
        }
        let items = dry_run(&cluster, &deployment(&pod));
        assert_right(&items[0]["spec"]["template"]["spec"]);
    }
}

/// The files on a page: YAML blocks whose first line names them.
fn shown(page: &str) -> Vec<(&str, &str)> {
    let blocks = page.split("```yaml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap());
    blocks
        .filter_map(|block| Some((block.lines().next()?.strip_prefix("# ")?, block)))
        .collect()
}

#[test]
fn the_quick_start_in_a_cluster_works_as_written() {
    let cluster = Cluster::api_server();
    let directory = tempfile::tempdir().unwrap();
    // The directory of the reader's clone of this repository.
    let repository = directory.path().join("crossfade");
    fs::create_dir_all(&repository).unwrap();
    copy_to(&repository);
    fs::create_dir(directory.path().join("controller")).unwrap();
    let frontend = deploy().join("examples/plain/frontend.yaml");
    fs::copy(frontend, directory.path().join("frontend.yaml")).unwrap();
    let files = shown(include_str!("../../docs/quick-start.md"));
    let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "kustomization.yaml",
            "controller/kustomization.yaml",
            "update.yaml"
        ]
    );
    for (name, text) in &files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    for place in ["crossfade/deploy/crd", "controller", ""] {
        let made = kustomize(&cluster, &directory.path().join(place));
        assert!(!made.contains("crossfade:latest"), "{made}");
        cluster.apply(&made);
    }
    let established = "--for=condition=Established";
    cluster.kubectl(&["wait", established, "crd", "--all", "--timeout=30s"]);
    let (_, update) = files[2];
    let update = dry_run(&cluster, update).remove(0);
    // What the proxies in the pods report about its target.
    let scope = TargetScope {
        namespace: "default".into(),
        domain: "cluster.local".into(),
        anywhere: false,
    };
    let targets = update["spec"]["newFrontendService"].as_str().unwrap();
    for target in &resource::parse_targets(targets).unwrap() {
        scope.of(target).unwrap();
    }
}

#[test]
fn the_kustomization_on_the_page_about_rollouts_enables_them() {
    let cluster = Cluster::api_server();
    cluster.kubectl(&["create", "namespace", "crossfade"]);
    let directory = tempfile::tempdir().unwrap();
    let repository = directory.path().join("crossfade");
    fs::create_dir_all(&repository).unwrap();
    copy_to(&repository);
    let files = shown(include_str!("../../docs/rollout.md"));
    let [(name, text)] = files[..] else {
        panic!("{files:?}");
    };
    assert_eq!(name, "controller/kustomization.yaml");
    fs::create_dir(directory.path().join("controller")).unwrap();
    fs::write(directory.path().join(name), text).unwrap();
    let made = dry_run(
        &cluster,
        &kustomize(&cluster, &directory.path().join("controller")),
    );
    let deployment = made.iter().find(|object| object["kind"] == "Deployment");
    let container = &deployment.unwrap()["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        container["args"],
        serde_json::json!(["controller", "--rollouts"])
    );
    assert_eq!(container["image"], "registry.example/crossfade:0.1.0");
}

#[test]
fn deleting_all_of_deploy_except_the_definition_keeps_the_definition_and_every_update() {
    let cluster = Cluster::api_server();
    cluster.apply(include_str!("../kubernetes/operators.yaml"));
    let parts = ["crd", "base", "controller", "people", "monitoring"];
    for part in parts {
        cluster.apply(&kustomize(&cluster, &deploy().join(part)));
    }
    let established = "--for=condition=Established";
    cluster.kubectl(&["wait", established, "crd", "--all", "--timeout=30s"]);
    let update = fs::read_to_string(deploy().join("examples/update.yaml")).unwrap();
    cluster.apply(&update);
    let mut places: Vec<_> = parts[1..].iter().map(|part| deploy().join(part)).collect();
    places.push(deploy().join("examples/plain/controller"));
    places.push(deploy().join("examples/plain"));
    for place in &places {
        let made = kustomize(&cluster, place);
        assert!(
            !made.contains("kind: CustomResourceDefinition"),
            "{place:?}"
        );
        let delete = ["delete", "--ignore-not-found", "--wait=false", "-f", "-"];
        cluster.kubectl_with(&delete, &made);
    }
    let left = cluster.get(&["duc", "my-update"]);
    assert!(left["metadata"]["deletionTimestamp"].is_null(), "{left}");
    let definition = cluster.get(&["crd", "dynamoupdateconfigs.nvidia.com"]);
    assert!(
        definition["metadata"]["deletionTimestamp"].is_null(),
        "{definition}"
    );
}

/// Returns a function that tells whether a service account may do something in a namespace.
pub fn asking(cluster: &Cluster, account: &str) -> impl Fn(&str, &str, &str) -> bool {
    let who = format!("--as=system:serviceaccount:{account}");
    move |verb, what, namespace| {
        let args = ["auth", "can-i", verb, what, &who, "-n", namespace];
        let output = cluster.try_kubectl(&args, "");
        String::from_utf8(output.stdout).unwrap().trim() == "yes"
    }
}

#[test]
fn the_controllers_service_account_may_see_workers_write_updates_and_hold_its_lease_and_nothing_else()
 {
    let cluster = Cluster::api_server();
    for part in ["crd", "base", "controller"] {
        cluster.apply(&kustomize(&cluster, &deploy().join(part)));
    }
    let may = asking(&cluster, "crossfade:crossfade-controller");
    let updates = "dynamoupdateconfigs.nvidia.com";
    let status = "dynamoupdateconfigs.nvidia.com/status";
    let (events, lease) = (
        "events.events.k8s.io",
        "leases.coordination.k8s.io/crossfade-controller",
    );
    for (verb, what, namespace) in [
        ("watch", updates, "default"),
        ("patch", updates, "default"),
        ("patch", status, "default"),
        ("watch", "pods", "default"),
        ("watch", "endpointslices.discovery.k8s.io", "default"),
        ("watch", "deployments.apps", "default"),
        ("watch", "ingresses.networking.k8s.io", "default"),
        ("watch", "services", "default"),
        ("create", events, "default"),
        ("create", "leases.coordination.k8s.io", "crossfade"),
        ("update", lease, "crossfade"),
    ] {
        assert!(may(verb, what, namespace), "{verb} {what} in {namespace}");
    }
    for (verb, what, namespace) in [
        ("create", updates, "default"),
        ("update", updates, "default"),
        ("delete", updates, "default"),
        ("list", events, "default"),
        ("get", "secrets", "crossfade"),
        ("get", "configmaps", "crossfade"),
        ("patch", "services", "default"),
        ("create", "pods", "default"),
        ("delete", "pods", "default"),
        ("create", "pods/exec", "default"),
        ("create", "pods/portforward", "default"),
        ("patch", "deployments.apps", "default"),
        ("patch", "ingresses.networking.k8s.io", "default"),
        ("update", "leases.coordination.k8s.io/another", "crossfade"),
        ("update", lease, "default"),
        ("list", "leases.coordination.k8s.io", "crossfade"),
    ] {
        assert!(
            !may(verb, what, namespace),
            "may {verb} {what} in {namespace}"
        );
    }
}

#[test]
fn the_sidecars_service_account_may_read_updates_and_write_events_and_nothing_else() {
    let cluster = Cluster::api_server();
    for part in ["crd", "base"] {
        cluster.apply(&kustomize(&cluster, &deploy().join(part)));
    }
    let may = asking(&cluster, "default:crossfade-sidecar");
    let updates = "dynamoupdateconfigs.nvidia.com";
    let events = "events.events.k8s.io";
    for verb in ["get", "list", "watch"] {
        assert!(may(verb, updates, "default"), "{verb}");
    }
    assert!(may("create", events, "default"));
    let nothing = [
        ("get", updates, "kube-system"),
        ("update", updates, "default"),
        ("patch", updates, "default"),
        ("patch", "dynamoupdateconfigs.nvidia.com/status", "default"),
        ("create", updates, "default"),
        ("delete", updates, "default"),
        ("create", events, "kube-system"),
        ("list", events, "default"),
        ("delete", events, "default"),
        ("get", "secrets", "default"),
        ("get", "configmaps", "default"),
        ("list", "pods", "default"),
        ("create", "pods/exec", "default"),
        ("list", "endpointslices.discovery.k8s.io", "default"),
        ("get", "leases.coordination.k8s.io", "default"),
    ];
    for (verb, what, namespace) in nothing {
        assert!(
            !may(verb, what, namespace),
            "may {verb} {what} in {namespace}"
        );
    }
}

#[test]
fn the_alert_rules_use_metrics_that_exist() {
    let rules = fs::read_to_string(deploy().join("monitoring/alerts.yaml")).unwrap();
    let pages = concat!(
        include_str!("../../docs/observability.md"),
        include_str!("../../docs/controller.md")
    );
    let known: BTreeSet<_> = pages.split('`').skip(1).step_by(2).collect();
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    for word in words.filter(|word| word.starts_with("crossfade_")) {
        let name = word.strip_suffix("_bucket").or(word.strip_suffix("_count"));
        let name = name.unwrap_or(word);
        assert!(known.contains(name), "{name} is no metric");
    }
}
