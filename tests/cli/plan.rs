//! `crossfade plan`: creates the next generation from the current and the edited manifests, and explains errors in them.

use std::fs;
use std::path::PathBuf;

use crossfade::inject::manifests;
use crossfade::resource::load_rollout;
use serde_json::{Value, json};

use crate::program::run;

const DEPLOYMENTS: &str = include_str!("../../src/next_generation/tests/deployments.yaml");
const GRAPH: &str = include_str!("../../src/next_generation/tests/graph.yaml");

/// Two manifests in a temporary directory.
struct Files {
    _directory: tempfile::TempDir,
    from: PathBuf,
    to: PathBuf,
}

impl Files {
    fn with(from: &str, to: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        Self {
            from: file("from.yaml", from),
            to: file("to.yaml", to),
            _directory: directory,
        }
    }

    fn plan(&self, more: &[&str]) -> (Option<i32>, String, String) {
        let (from, to) = (self.from.to_str().unwrap(), self.to.to_str().unwrap());
        run(&[&["plan", "--from", from, "--to", to], more].concat(), b"")
    }
}

/// The manifests with other workers.
fn edited(text: &str) -> String {
    text.replace("vllm-runtime:1.6.1", "vllm-runtime:1.7.0")
}

fn planned(from: &str, more: &[&str]) -> (Vec<Value>, String) {
    let (status, out, err) = Files::with(from, &edited(from)).plan(more);
    assert_eq!(status, Some(0), "{err}");
    let read = manifests(&out).unwrap();
    (read.into_iter().flat_map(|one| one.objects).collect(), err)
}

fn refused(from: &str, to: &str, more: &[&str]) -> String {
    let (status, out, err) = Files::with(from, to).plan(more);
    assert_eq!((status, &*out), (Some(2), ""), "{err}");
    err
}

fn find<'a>(objects: &'a [Value], kind: &str, start: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| {
        let name = object["metadata"]["name"].as_str().unwrap();
        object["kind"] == kind && name.starts_with(start)
    });
    found
        .next()
        .unwrap_or_else(|| panic!("no {kind}/{start}: {objects:#?}"))
}

fn labels(object: &Value) -> &Value {
    &object["spec"]["template"]["metadata"]["labels"]
}

fn selects(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object().unwrap();
    selector
        .iter()
        .all(|(label, value)| labels[label] == *value)
}

#[test]
fn two_generations_of_deployments_share_no_name_no_label_and_no_namespace() {
    let (objects, err) = planned(DEPLOYMENTS, &[]);
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(
        err.contains("Deployment/chat-frontend has no sidecar in these manifests"),
        "{err}"
    );
    let kinds: Vec<_> = objects
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "Service",
            "Service",
            "Deployment",
            "Deployment",
            "Deployment",
            "DynamoRollout"
        ]
    );
    let old: Vec<_> = manifests(DEPLOYMENTS)
        .unwrap()
        .into_iter()
        .flat_map(|one| one.objects)
        .collect();
    for start in ["chat-frontend", "chat-prefill", "chat-decode"] {
        let (new, old) = (
            find(&objects, "Deployment", start),
            find(&old, "Deployment", start),
        );
        let hash = new["metadata"]["labels"]["crossfade/generation"]
            .as_str()
            .unwrap();
        assert_eq!(new["metadata"]["name"], format!("{start}-{hash}"));
        assert!(
            selects(&new["spec"]["selector"]["matchLabels"], labels(new)),
            "{new:#}"
        );
        assert!(
            !selects(&old["spec"]["selector"]["matchLabels"], labels(new)),
            "{new:#}"
        );
        assert!(
            !selects(&new["spec"]["selector"]["matchLabels"], labels(old)),
            "{new:#}"
        );
        assert_eq!(
            labels(new)["nvidia.com/dynamo-namespace"],
            format!("chat-{hash}")
        );
        assert_eq!(
            labels(new)["nvidia.com/dynamo-graph-deployment-name"],
            format!("chat-frontend-{hash}")
        );
        let replicas = new["spec"].get("replicas").and_then(Value::as_u64);
        assert_eq!(replicas, (start == "chat-frontend").then_some(2));
        assert_eq!(new["metadata"]["namespace"], "inference");
        let text = new.to_string();
        assert!(
            text.contains(&format!("chat-{hash}")) && !text.contains("null"),
            "{text}"
        );
        assert!(
            !text.contains("\"chat\"") || start == "chat-frontend",
            "{text}"
        );
    }
    let clients = find(&old, "Service", "chat");
    let frontend = find(&objects, "Deployment", "chat-frontend");
    assert!(!selects(&clients["spec"]["selector"], labels(frontend)));
    assert_eq!(labels(frontend)["app.kubernetes.io/part-of"], "chat");
    assert_eq!(
        frontend["spec"]["template"]["spec"]["initContainers"][0]["name"],
        "crossfade"
    );
    let service = find(&objects, "Service", "chat-");
    let hash = frontend["metadata"]["labels"]["crossfade/generation"]
        .as_str()
        .unwrap();
    let service = objects
        .iter()
        .find(|object| object["metadata"]["name"] == format!("chat-{hash}"))
        .unwrap_or(service);
    assert!(
        selects(&service["spec"]["selector"], labels(frontend)),
        "{service:#}"
    );
    assert_eq!(
        service["spec"]["ports"],
        json!([{"name": "http", "port": 80, "targetPort": "http"}])
    );
    assert_eq!(
        (
            &service["spec"]["type"],
            &service["metadata"]["annotations"]
        ),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn the_rollout_names_both_generations_and_is_valid() {
    let (status, out, _) = Files::with(
        DEPLOYMENTS,
        &edited(DEPLOYMENTS).replace("replicas: 4", "replicas: 6"),
    )
    .plan(&[]);
    assert_eq!(status, Some(0));
    let text = out.rsplit("---\n").next().unwrap();
    let rollout = load_rollout(text).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    let spec = &rollout.spec;
    assert_eq!(spec.source.roles["prefill"].name, "chat-prefill");
    assert_eq!(spec.target.roles["prefill"].replicas, Some(6));
    assert_eq!(spec.target.roles["decode"].replicas, None);
    // Manifests without sizes keep the current sizes.
    let bare = |text: &str| {
        text.replace("  replicas: 4\n", "")
            .replace("  replicas: 2\n", "")
    };
    for (from, to, prefill) in [
        (bare(DEPLOYMENTS), bare(DEPLOYMENTS), None),
        (DEPLOYMENTS.to_owned(), bare(DEPLOYMENTS), None),
        (bare(DEPLOYMENTS), DEPLOYMENTS.to_owned(), Some(4)),
    ] {
        let (_, out, err) = Files::with(&from, &edited(&to)).plan(&[]);
        let rollout = load_rollout(out.rsplit("---\n").next().unwrap());
        let spec = rollout
            .unwrap_or_else(|problems| panic!("{problems}\n{err}"))
            .spec;
        assert_eq!(spec.target.roles["prefill"].replicas, prefill);
    }
    assert_eq!(
        (&*spec.frontends.source, spec.frontends.port),
        ("chat-frontend", 80)
    );
    assert_eq!(spec.client_service, "chat");
    assert_eq!(rollout.identity.namespace.as_deref(), Some("inference"));
}

#[test]
fn a_second_graph_is_created_without_the_sizes_of_workers() {
    let (objects, err) = planned(GRAPH, &[]);
    assert!(
        err.contains("DynamoGraphDeployment/chat has no sidecar"),
        "{err}"
    );
    let kinds: Vec<_> = objects
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "Role",
            "RoleBinding",
            "DynamoGraphDeployment",
            "DynamoRollout"
        ]
    );
    let (graph, rollout) = (&objects[2], &objects[3]);
    let name = graph["metadata"]["name"].as_str().unwrap();
    let replicas: Vec<_> = graph["spec"]["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|component| component.get("replicas").and_then(Value::as_u64))
        .collect();
    assert_eq!(replicas, [Some(2), None, None]);
    assert!(err.contains("kubectl apply --server-side"), "{err}");
    assert_eq!(
        objects[1]["subjects"][0]["name"],
        format!("{name}-k8s-service-discovery")
    );
    assert_eq!(
        rollout["spec"]["source"],
        json!({"kind": "DynamoGraphDeployment", "name": "chat"})
    );
    assert_eq!(
        rollout["spec"]["target"],
        json!({"kind": "DynamoGraphDeployment", "name": name})
    );
    assert_eq!(
        rollout["spec"]["frontends"],
        json!({"source": "chat", "target": name, "service": format!("{name}-frontend")})
    );
    assert_eq!(rollout["spec"]["clientService"], "chat-clients");
    let alpha = include_str!("../corpus/inject/graph-v1alpha1.yaml");
    let to = alpha.replace("dynamo.vllm", "dynamo.sglang");
    let (status, out, err) = Files::with(alpha, &to).plan(&["--client-service", "clients"]);
    assert_eq!(status, Some(0), "{err}");
    assert!(
        out.contains("    VllmDecodeWorker:\n      componentType: worker\n")
            && !out.contains("replicas: 0"),
        "{out}"
    );
    assert!(!err.contains("--server-side"), "{err}");
    assert!(out.contains("clientService: clients\n"), "{out}");
    // The Service may exist in the cluster.
    assert!(
        err.contains(
            "--client-service: --from has no Service clients: it must exist in the cluster"
        ),
        "{err}"
    );
}

#[test]
fn the_client_service_of_a_graph_is_not_the_one_of_the_operator() {
    let (objects, err) = planned(GRAPH, &["--client-service", "chat-clients"]);
    assert_eq!(objects[3]["spec"]["clientService"], "chat-clients");
    assert!(!err.contains("--client-service"), "{err}");
    let alpha = include_str!("../corpus/inject/graph-v1alpha1.yaml");
    let to = alpha.replace("dynamo.vllm", "dynamo.sglang");
    for (from, to, service) in [
        (GRAPH, &*edited(GRAPH), "chat-frontend"),
        (alpha, &*to, "vllm-disagg-frontend"),
    ] {
        let err = refused(from, to, &["--client-service", service]);
        let expected = format!("--client-service: Dynamo's operator creates the Service {service}");
        assert!(err.contains(&expected), "{err}");
    }
}

#[test]
fn the_same_edit_gives_the_same_text_and_an_existing_sidecar_changes_nothing() {
    let files = Files::with(DEPLOYMENTS, &edited(DEPLOYMENTS));
    let (_, first, _) = files.plan(&[]);
    assert_eq!(files.plan(&[]).1, first);
    let injected = crate::manifests::injected(DEPLOYMENTS).unwrap().text;
    let (_, second, err) = Files::with(&injected, &edited(&injected)).plan(&[]);
    // With the sidecar, the current frontends have the label of a graph.
    assert_eq!(second, first);
    assert_eq!(err, "");
}

#[test]
fn if_a_rolling_update_suffices_it_is_reported_and_nothing_is_printed() {
    let files = Files::with(
        DEPLOYMENTS,
        &DEPLOYMENTS.replace("replicas: 4", "replicas: 8"),
    );
    let (status, out, err) = files.plan(&[]);
    assert_eq!((status, &*out), (Some(0), ""));
    assert!(
        err.starts_with("a plain rolling update is enough: only replicas"),
        "{err}"
    );
    let (status, out, _) = files.plan(&["--anyway"]);
    assert_eq!(status, Some(0));
    assert!(out.contains("kind: DynamoRollout"));
}

#[test]
fn other_objects_are_copied_or_reported() {
    let to = edited(DEPLOYMENTS).replace("{router: kv}", "{router: random}")
        + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: more, namespace: inference}\ndata: {a: b}\n";
    let from = format!(
        "{DEPLOYMENTS}---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: decode, namespace: inference}}\n"
    );
    let (status, out, err) = Files::with(&from, &to).plan(&[]);
    assert_eq!(status, Some(0), "{err}");
    assert!(
        err.contains("ConfigMap/chat-settings changes, and both generations use it"),
        "{err}"
    );
    assert!(
        err.contains("HorizontalPodAutoscaler/decode scales workers"),
        "{err}"
    );
    assert!(
        out.contains("name: more\n") && !out.contains("name: chat-settings"),
        "{out}"
    );
}

#[test]
fn workers_without_a_namespace_get_one() {
    let from = DEPLOYMENTS
        .replace(
            "        env:\n        - {name: DYN_NAMESPACE, value: chat}\n",
            "",
        )
        .replace(", --namespace, chat", "")
        .replace(
            " --namespace chat --endpoint dyn://chat.decode.generate",
            "",
        );
    let (objects, err) = planned(&from, &[]);
    for start in ["chat-frontend", "chat-prefill", "chat-decode"] {
        assert!(
            err.contains(&format!(
                "Deployment/{start} does not set a Dynamo namespace"
            )),
            "{err}"
        );
        let object = find(&objects, "Deployment", start);
        let hash = object["metadata"]["labels"]["crossfade/generation"]
            .as_str()
            .unwrap();
        let variable = &object["spec"]["template"]["spec"]["containers"][0]["env"][0];
        assert_eq!(
            *variable,
            json!({"name": "DYN_NAMESPACE", "value": format!("dynamo-{hash}")})
        );
    }
}

#[test]
fn generations_that_could_not_be_separated_are_rejected() {
    let with = |from: &str, to: &str| {
        let text = DEPLOYMENTS.replacen(from, to, 1);
        assert_ne!(text, DEPLOYMENTS, "{from}");
        refused(&text, &edited(&text), &[])
    };
    for (from, to, expected) in [
        (
            "DYN_NAMESPACE, value: chat",
            "DYN_NAMESPACE_PREFIX, value: chat",
            "DYN_NAMESPACE_PREFIX makes frontends find the workers of every generation",
        ),
        (
            "--router-mode, kv",
            "--namespace-prefix, chat",
            "--namespace-prefix makes frontends find",
        ),
        (
            "value: chat}",
            "valueFrom: {fieldRef: {fieldPath: metadata.name}}}",
            "DYN_NAMESPACE comes from elsewhere",
        ),
        (
            "selector: {app: chat-frontend}\n  ports",
            "selector: {nvidia.com/dynamo-component-type: frontend}\n  ports",
            "--from has no Service that selects",
        ),
        (
            "dynamo.frontend",
            "dynamo.planner",
            "has neither a DynamoGraphDeployment nor a Deployment or StatefulSet that runs dynamo.frontend: `plan` creates \
             generations of Dynamo; for another server, write the manifests of the next generation yourself",
        ),
        (
            "dynamo-component-type: decode",
            "dynamo-component-type: prefill",
            "two sets of prefill workers",
        ),
    ] {
        let err = with(from, to);
        assert!(err.contains(expected), "{expected}: {err}");
    }
    let all = DEPLOYMENTS
        .replace(
            "selector: {app: chat-frontend}\n  ports",
            "selector: {nvidia.com/dynamo-component-type: frontend}\n  ports",
        )
        .replace(
            "nvidia.com/dynamo-namespace: chat\n    spec",
            "nvidia.com/dynamo-component-type: frontend\n    spec",
        );
    let err = refused(&all, &edited(&all), &[]);
    assert!(
        err.contains("Service/chat would select the new frontends as well"),
        "{err}"
    );
    let alone = DEPLOYMENTS
        .split("---\n")
        .take(2)
        .collect::<Vec<_>>()
        .join("---\n");
    let err = refused(&alone, &alone.replace("1.6.1", "1.7.0"), &[]);
    assert!(err.contains("--from has no workers"), "{err}");
    let err = refused(DEPLOYMENTS, GRAPH, &[]);
    assert!(err.contains("both must be of the same kind"), "{err}");
    let two = format!(
        "{GRAPH}---\n{}",
        GRAPH.replace("name: chat,", "name: other,")
    );
    assert!(refused(&two, GRAPH, &[]).contains("--from has several graphs"));
    let global = GRAPH.replace(
        "    type: decode\n",
        "    type: decode\n    globalDynamoNamespace: true\n",
    );
    assert!(
        refused(&global, &edited(&global), &[])
            .contains("globalDynamoNamespace: two generations would share it")
    );
    let lone = GRAPH.split("---\n").next().unwrap();
    assert!(
        refused(lone, &edited(lone), &[])
            .contains("name the one that clients connect to with --client-service")
    );
}

#[test]
fn with_several_services_the_client_service_must_be_named() {
    let two = format!(
        "{DEPLOYMENTS}---\napiVersion: v1\nkind: Service\nmetadata: {{name: chat-2, namespace: inference}}\nspec:\n  selector: {{app: chat-frontend}}\n  ports: [{{port: 8000}}]\n"
    );
    let err = refused(&two, &edited(&two), &[]);
    assert!(
        err.contains("several Services select the current frontends: chat, chat-2"),
        "{err}"
    );
    let err = refused(&two, &edited(&two), &["--client-service", "chat-3"]);
    assert!(err.contains("--from has no Service chat-3"), "{err}");
    let (objects, _) = planned(&two, &["--client-service", "chat-2"]);
    let rollout = objects.last().unwrap();
    assert_eq!(rollout["spec"]["clientService"], "chat-2");
    assert_eq!(rollout["spec"]["frontends"]["port"], Value::Null);
}

#[test]
fn invalid_arguments_are_rejected_with_status_2() {
    for (args, expected) in [
        (&["plan"][..], "--from <FILE>"),
        (
            &["plan", "--from", "-", "--to", "-"],
            "only one of --from and --to can be standard input",
        ),
        (
            &["plan", "--from", "/nowhere.yaml", "--to", "-"],
            "/nowhere.yaml: ",
        ),
        (
            &[
                "plan",
                "--from",
                "-",
                "--to",
                "/dev/null",
                "--client-service",
                "a b",
            ],
            "--client-service",
        ),
    ] {
        let (status, out, err) = run(args, b"a: [");
        assert_eq!((status, &*out), (Some(2), ""), "{err}");
        assert!(err.contains(expected), "{expected}: {err}");
    }
    let err = refused("a: [", DEPLOYMENTS, &[]);
    assert!(err.contains("--from: document 1, line 1"), "{err}");
}
