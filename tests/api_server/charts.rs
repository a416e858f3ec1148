//! The charts in `deploy/helm`, checked with the real helm and a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use crossfade::inject::manifests;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::deploy::{asking, deploy, dry_run, kustomize};
use crate::helm::{CONTROLLER, DEFINITION, Earlier, Helm, chart};

/// The values that enable everything in the chart, with the names of `deploy/`.
const EVERYTHING: [&str; 12] = [
    "--set=image.repository=crossfade,image.tag=latest",
    "--set=rbac.people=true",
    "--set=rollouts.enabled=true",
    "--set=rollouts.namespaces={inference}",
    "--set=podMonitor.enabled=true",
    "--set=prometheusRule.enabled=true",
    "--set=dashboard.enabled=true",
    "--set=networkPolicy.enabled=true",
    "--set=networkPolicy.proxyNamespaces={inference}",
    "--set=sidecar.access[0].namespace=inference",
    "--set=sidecar.access[0].serviceAccounts={crossfade-sidecar}",
    "--namespace=crossfade",
];

fn path(name: &str) -> String {
    chart(name).to_string_lossy().into_owned()
}

#[test]
fn helm_lint_accepts_the_charts() {
    let helm = Helm::new(None);
    helm.run(&["lint", "--strict", &path(DEFINITION)]);
    let controller = path(CONTROLLER);
    let lint = ["lint", "--strict", &controller];
    helm.run(&[&lint[..], &EVERYTHING[..1]].concat());
    helm.run(&[&lint[..], &EVERYTHING].concat());
    let one_namespace = "--set=image.repository=crossfade,watchNamespace=inference,replicas=1";
    helm.run(&[&lint[..], &[one_namespace]].concat());
}

#[test]
fn a_released_chart_links_to_the_files_of_its_release() {
    let out = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/charts.sh");
    let source = "https://source.example/blob/v9.0.0";
    let arguments = ["9.0.0", "registry.example/crossfade"].map(AsRef::as_ref);
    let arguments = arguments
        .into_iter()
        .chain([out.path().as_os_str(), source.as_ref()]);
    let output = Command::new(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut links = BTreeSet::new();
    for chart in [DEFINITION, CONTROLLER] {
        let package = out.path().join(format!("{chart}-9.0.0.tgz"));
        let text = Helm::new(None).run(&["show", "readme", package.to_str().unwrap()]);
        let targets = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'));
        links.extend(targets.map(|(target, _)| target.to_owned()));
    }
    let files = links
        .iter()
        .map(|link| link.strip_prefix(source).unwrap_or(link));
    let files: Vec<_> = files.collect();
    assert_eq!(
        files,
        [
            "/deploy/README.md",
            "/deploy/helm/crossfade-crds/README.md",
            "/deploy/helm/crossfade/README.md",
            "/docs/install.md"
        ]
    );
}

#[test]
fn own_annotations_take_precedence_and_labels_can_be_null() {
    let null = "--set=podMonitor.labels=null,prometheusRule.labels=null,dashboard.labels=null";
    let own = r"--set=podAnnotations.prometheus\.io/path=/own,scrapeAnnotations=true";
    let given = ["template", "crossfade", &path(CONTROLLER), null, own];
    let text = Helm::new(None).run(&[&given[..], &EVERYTHING].concat());
    let paths = text.lines().filter(|line| line.contains("prometheus.io/p"));
    let paths: Vec<_> = paths.map(str::trim).collect();
    assert_eq!(
        paths.join(" "),
        "prometheus.io/path: /own prometheus.io/port: \"9465\""
    );
}

#[test]
fn names_that_are_numbers_are_strings_in_all_objects() {
    fn numbers(value: &Value, key: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    numbers(value, key, found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| numbers(item, key, found)),
            Value::Number(number) if number.to_string() == "123" || number.to_string() == "456" => {
                found.push(format!("{key}: {number}"));
            }
            _ => {}
        }
    }
    let given = ["template", "123", &path(CONTROLLER)];
    let own = "--set-string=serviceAccount.name=123,priorityClassName=456,fullnameOverride=123";
    for own in [&[][..], &[own]] {
        let text =
            Helm::new(None).run(&[&given[..], &EVERYTHING, own, &["--namespace=456"]].concat());
        let mut found = Vec::new();
        for manifest in manifests(&text).unwrap() {
            for object in &manifest.objects {
                numbers(object, "", &mut found);
            }
        }
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn the_other_ports_of_proxies_can_be_restricted_as_well() {
    let helm = Helm::new(None);
    let controller = path(CONTROLLER);
    let template = ["template", "crossfade", &controller];
    let rules = |more: &[&str]| -> Vec<Value> {
        let text = helm.run(&[&template[..], &EVERYTHING, more].concat());
        let all = manifests(&text).unwrap();
        let objects = all.into_iter().flat_map(|manifest| manifest.objects);
        let policies = objects.filter(|object| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            object["kind"] == "NetworkPolicy" && name.starts_with("crossfade-admin")
        });
        policies
            .map(|policy| policy["spec"]["ingress"].clone())
            .collect()
    };
    let open = rules(&[]);
    assert_eq!(open.len(), 2);
    let closed = rules(&[r#"--set-json=networkPolicy.clientFrom=[{"podSelector":{}}]"#]);
    for (open, closed) in open.iter().zip(&closed) {
        assert!(open[0]["from"].is_null(), "{open}");
        assert_eq!(open[0]["ports"], closed[0]["ports"]);
        // The controller requests the models of frontends.
        let expected = json!([{"podSelector": {}}, open[1]["from"][0]]);
        assert_eq!(closed[0]["from"], expected);
        assert_eq!(open[1], closed[1]);
    }
}

#[test]
fn an_invalid_value_is_rejected_by_name() {
    let helm = Helm::new(None);
    let controller = path(CONTROLLER);
    let template = ["template", "crossfade", &controller];
    let image = "--set=image.repository=crossfade";
    for (wrong, expected) in [
        ("replicas=two", "replicas"),
        ("replicas=-1", "replicas"),
        ("image.digest=sha256:12", "digest"),
        (
            "image.repository=registry.example/crossfade:1",
            "repository",
        ),
        ("image.repository=registry.example/Crossfade", "repository"),
        ("image.repository=Me/crossfade", "repository"),
        ("image.repository=registry.example/crossfade/", "repository"),
        ("image.tag=.1", "tag"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("log.format=xml", "format"),
        ("log.level=bogus", "level"),
        ("clusterDomain=a b", "clusterDomain"),
        ("env[0].name=A,env[0].value=30", "env/0/value"),
        (
            r"podLabels.app\.kubernetes\.io/name=a",
            "app.kubernetes.io/name",
        ),
        ("watchNamespace=A_B", "watchNamespace"),
        ("rollouts.namespaces={A_B}", "namespaces"),
        ("podMonitor.interval=often", "interval"),
        ("podMonitor.enable=true", "enable"),
        ("sidecar.access[0].namespace=inference", "serviceAccounts"),
        ("networkPolicies.enabled=true", "networkPolicies"),
        ("resources.limit.memory=1Gi", "limit"),
        ("tolerations[0].keys=gpu", "keys"),
        (
            "tolerations[0].key=gpu,tolerations[0].tolerationSeconds=soon",
            "tolerationSeconds",
        ),
        ("networkPolicy.clientFrom[0].from=a", "clientFrom"),
        (
            "networkPolicy.clientFrom[0].podSelector.app=gateway",
            "podSelector",
        ),
        (
            "networkPolicy.clientFrom[0].namespaceSelector.matchExpressions[0].operator=In",
            "matchExpressions",
        ),
        ("networkPolicy.clientFrom[0].ipBlock.cidr=10.0.0.1", "cidr"),
        (
            "networkPolicy.clientFrom[0].ipBlock.cidr=10.0.0.0/8,networkPolicy.clientFrom[0].podSelector.matchLabels.a=b",
            "clientFrom",
        ),
        // A section without values in a file.
        ("log=null", "log"),
        ("sidecar=null", "sidecar"),
    ] {
        let error = helm.refuses(&[&template[..], &[image, "--set", wrong]].concat());
        let schema = "values don't meet the specifications of the schema";
        assert!(
            error.contains(schema) && error.contains(expected),
            "{error}"
        );
    }
    let namespaces = "--set=watchNamespace=a,rollouts.enabled=true,rollouts.namespaces={a,b}";
    let error = helm.refuses(&[&template[..], &[image, namespaces]].concat());
    assert!(
        error.contains("rollouts.namespaces: b is not watchNamespace"),
        "{error}"
    );
    for (wrong, expected) in [
        (
            "networkPolicy.clientFrom[0].ipBlock.cidr=10.0.0.0/8",
            "networkPolicy.clientFrom: without networkPolicy.proxyNamespaces, it has no effect",
        ),
        (
            "rollouts.namespaces={a}",
            "rollouts.namespaces: without rollouts.enabled",
        ),
        (
            "env[0].name=A,env[0].value=a,env[1].name=A,env[1].value=b",
            "env: A is set twice",
        ),
        (
            "env[0].name=CROSSFADE_LOG_FORMAT,env[0].value=text",
            "env: CROSSFADE_LOG_FORMAT is set twice, or the chart itself sets it",
        ),
        (
            "env[0].name=CROSSFADE_NAMESPACE,env[0].value=a",
            "env: CROSSFADE_NAMESPACE: use the value watchNamespace instead",
        ),
        (
            "serviceAccount.create=false",
            "serviceAccount.name: without serviceAccount.create, name the service account",
        ),
        (
            "sidecar.access[0].namespace=a,sidecar.access[0].serviceAccounts={x},\
             sidecar.access[1].namespace=a,sidecar.access[1].serviceAccounts={y}",
            "sidecar.access: a is listed twice",
        ),
    ] {
        let error = helm.refuses(&[&template[..], &[image, "--set", wrong]].concat());
        assert!(error.contains(expected), "{error}");
    }
    for right in [
        "crossfade",
        "me/crossfade",
        "localhost:5000/a/b__c.d",
        "Registry.Example:5000/crossfade",
        "registry/crossfade",
    ] {
        let right = format!("--set=image.repository={right}");
        helm.run(&[&template[..], &[&right]].concat());
    }
    let error = helm.refuses(&template);
    assert!(
        error.contains("image.repository: name the image"),
        "{error}"
    );
    let definition = path(DEFINITION);
    let error = helm.refuses(&["template", "a", &definition, "--set=keep=false"]);
    assert!(error.contains("keep"), "{error}");
}

/// An object without the fields that only one of the two installation methods sets.
fn comparable(mut object: Value) -> Value {
    let fields = object.as_object_mut().expect("an object");
    fields.retain(|field, _| !["metadata", "status"].contains(&field.as_str()));
    tidy(&mut object);
    object
}

fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("app.kubernetes.io/instance");
            fields.remove("imagePullPolicy");
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let named = objects.into_iter().map(|object| {
        let (kind, metadata) = (object["kind"].clone(), &object["metadata"]);
        let part = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let name = format!("{} {}", kind.as_str().unwrap(), part("name"));
        (name, comparable(object))
    });
    named.collect()
}

/// A cluster with the resource definitions of other programs, and the namespaces.
fn cluster() -> Cluster {
    let cluster = Cluster::api_server();
    cluster.apply(include_str!("../kubernetes/operators.yaml"));
    for namespace in ["crossfade", "inference"] {
        cluster.kubectl(&["create", "namespace", namespace]);
    }
    let established = "--for=condition=Established";
    cluster.kubectl(&["wait", established, "crd", "--all", "--timeout=30s"]);
    cluster
}

#[test]
fn the_charts_render_the_objects_in_deploy() {
    let (cluster, helm) = (cluster(), Helm::new(None));
    let controller = path(CONTROLLER);
    let template = ["template", "crossfade", &controller];
    let made = helm.run(&[&template[..], &EVERYTHING].concat());
    let mut made = by_name(dry_run(&cluster, &made));
    let definition = helm.run(&["template", "crossfade-crds", &path(DEFINITION)]);
    made.extend(by_name(dry_run(&cluster, &definition)));

    let mut held = BTreeMap::new();
    for part in ["crd", "controller", "people", "monitoring", "rollout"] {
        held.extend(by_name(dry_run(
            &cluster,
            &kustomize(&cluster, &deploy().join(part)),
        )));
    }
    for part in [
        "base/rbac.yaml",
        "network-policy/admin.yaml",
        "rollout/namespace.yaml",
    ] {
        let text = fs::read_to_string(deploy().join(part)).unwrap();
        // In `deploy/`, the subject has no namespace and gets that of the binding.
        let text = text.replace(
            "- kind: ServiceAccount\n  name: crossfade-sidecar",
            "- kind: ServiceAccount\n  name: crossfade-sidecar\n  namespace: inference",
        );
        held.extend(by_name(dry_run(&cluster, &text)));
    }
    // The user owns the namespace and the service account of the sidecars. The name of a ConfigMap depends on the tool.
    held.remove("Namespace crossfade");
    held.remove("ServiceAccount crossfade-sidecar");
    for (there, here) in [
        (
            "ConfigMap crossfade-dashboard",
            "ConfigMap crossfade-controller-dashboard",
        ),
        (
            "PrometheusRule crossfade",
            "PrometheusRule crossfade-controller",
        ),
        (
            "PodMonitor crossfade",
            "PodMonitor crossfade-controller-proxies",
        ),
    ] {
        let object = held.remove(there).unwrap_or_else(|| panic!("no {there}"));
        held.insert(here.to_owned(), object);
    }
    // It selects proxies in all namespaces. The one in `deploy/` is applied in the namespace of the proxies.
    let proxies = made
        .get_mut("PodMonitor crossfade-controller-proxies")
        .unwrap();
    let selector = proxies["spec"].as_object_mut().unwrap();
    assert_eq!(selector.remove("namespaceSelector").unwrap()["any"], true);
    // Only the chart restricts access to the controller's port.
    let own = made.remove("NetworkPolicy crossfade-controller").unwrap();
    assert_eq!(own["spec"]["ingress"][0]["ports"][0]["port"], 9465);

    // Only the chart has a value that enables rollouts.
    let controller = made.get_mut("Deployment crossfade-controller").unwrap();
    let container = &mut controller["spec"]["template"]["spec"]["containers"][0];
    let variables = container["env"].as_array_mut().unwrap();
    let count = variables.len();
    variables.retain(|variable| variable["name"] != "CROSSFADE_ROLLOUTS");
    assert_eq!(variables.len(), count - 1);

    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&made), names(&held));
    for (name, object) in &held {
        assert_eq!(&made[name], object, "{name}");
    }
}

#[test]
fn a_controller_of_one_namespace_has_no_rights_in_others() {
    let (cluster, helm) = (cluster(), Helm::new(None));
    let controller = path(CONTROLLER);
    let definition = helm.run(&["template", "crossfade-crds", &path(DEFINITION)]);
    cluster.apply(&definition);
    let made = helm.run(&[
        "template",
        "crossfade",
        &controller,
        "--namespace=crossfade",
        "--set=image.repository=crossfade,watchNamespace=inference,rbac.people=false",
        "--set=rollouts.enabled=true,rollouts.namespaces={inference}",
    ]);
    assert!(!made.contains("ClusterRole"), "{made}");
    assert!(!made.contains("CROSSFADE_ALL_NAMESPACES"), "{made}");
    cluster.apply(&made);
    let may = asking(&cluster, "crossfade:crossfade-controller");
    let updates = "dynamoupdateconfigs.nvidia.com";
    let lease = "leases.coordination.k8s.io/crossfade-controller";
    assert!(may("patch", updates, "inference") && may("watch", "pods", "inference"));
    assert!(may("update", lease, "crossfade"));
    let rollouts = "dynamorollouts.nvidia.com";
    assert!(may("watch", rollouts, "inference") && may("patch", "services", "inference"));
    for (verb, what, namespace) in [
        ("patch", updates, "default"),
        ("watch", "pods", "crossfade"),
        ("watch", "pods", "default"),
        ("watch", rollouts, "default"),
        ("patch", "services", "default"),
        ("get", "secrets", "inference"),
        ("update", lease, "inference"),
    ] {
        assert!(!may(verb, what, namespace), "{verb} {what} in {namespace}");
    }
}

#[test]
fn the_definition_and_updates_survive_upgrades_uninstallations_and_other_ways_of_installing() {
    let cluster = cluster();
    let helm = Helm::new(cluster.kubeconfig());
    let definition = || cluster.get(&["crd", "dynamoupdateconfigs.nvidia.com"]);
    let column =
        || definition()["spec"]["versions"][0]["additionalPrinterColumns"][0]["name"].clone();
    let update = || cluster.get(&["duc", "my-update"])["metadata"]["uid"].clone();
    let current = path(DEFINITION);
    let named = ["crossfade-crds", &current, "--namespace=crossfade"];

    // The definition was first applied by kubectl.
    let applied = fs::read_to_string(deploy().join("crd/crd.yaml")).unwrap();
    cluster.apply(&applied);
    let established = [
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=30s",
    ];
    cluster.kubectl(&established);
    cluster.apply(&fs::read_to_string(deploy().join("examples/update.yaml")).unwrap());
    let uid = update();
    let error = helm.refuses(&[&["install"][..], &named].concat());
    assert!(error.contains("invalid ownership metadata"), "{error}");

    let earlier = Earlier::of(DEFINITION);
    let earlier = earlier.path();
    let install = ["install", "crossfade-crds", &*earlier.to_string_lossy()];
    helm.run(&[&install[..], &["--take-ownership", "--namespace=crossfade"]].concat());
    assert_eq!((column(), update()), ("Share".into(), uid.clone()));
    helm.run(&[&["upgrade"][..], &named].concat());
    assert_eq!((column(), update()), ("Split".into(), uid.clone()));

    let output = helm.run(&["uninstall", "crossfade-crds", "--namespace=crossfade"]);
    assert!(
        output.contains("dynamoupdateconfigs.nvidia.com"),
        "{output}"
    );
    assert!(definition()["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(update(), uid);
    helm.run(&[&["install"][..], &named].concat());

    // The controller's chart affects neither.
    let controller = path(CONTROLLER);
    let image = "--set=image.repository=crossfade";
    let access =
        "--set=sidecar.access[0].namespace=inference,sidecar.access[0].serviceAccounts={default}";
    let more = ["--namespace=crossfade", image, access];
    let notes = helm.run(&[&["install", "crossfade", &controller][..], &more].concat());
    assert!(
        notes.contains("manages the updates of all namespaces, so it must be the only controller"),
        "{notes}"
    );
    let command = format!(
        "crossfade inject frontend.yaml --image crossfade:{} | kubectl apply -f -",
        env!("CARGO_PKG_VERSION")
    );
    assert!(notes.contains(&command), "{notes}");
    let sidecar = asking(&cluster, "inference:default");
    assert!(sidecar(
        "watch",
        "dynamoupdateconfigs.nvidia.com",
        "inference"
    ));
    helm.run(&["uninstall", "crossfade", "--namespace=crossfade"]);
    assert!(sidecar(
        "watch",
        "dynamoupdateconfigs.nvidia.com",
        "inference"
    ));
    let gone = cluster.get(&["deployments,clusterroles,roles", "-n", "crossfade"]);
    let gone = gone["items"].as_array().unwrap().iter();
    let left: Vec<_> = gone
        .map(|object| &object["metadata"]["name"])
        .filter(|name| name.as_str().unwrap().starts_with("crossfade"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!((column(), update()), ("Split".into(), uid));
}

#[test]
fn a_packaged_chart_contains_the_targets_of_its_links() {
    let helm = Helm::new(None);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_string_lossy();
    for name in [DEFINITION, CONTROLLER] {
        helm.run(&["package", &path(name), "--destination", &place]);
        let package = format!("{name}-{}.tgz", env!("CARGO_PKG_VERSION"));
        let package = Path::new(&*place).join(package);
        let package = package.to_string_lossy();
        let args = [
            "template",
            "crossfade",
            &package,
            "--set=image.repository=a",
        ];
        let args = &args[..if name == DEFINITION { 3 } else { 4 }];
        let made = helm.run(args);
        assert!(made.contains("dynamoupdateconfigs"), "{made}");
    }
}
