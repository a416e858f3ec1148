//! The hash, and what needs a second generation. The objects themselves are tested with the command line.

use super::*;

const DEPLOYMENTS: &str = include_str!("tests/deployments.yaml");
const GRAPH_TEXT: &str = include_str!("tests/graph.yaml");

fn planned(from: &str, to: &str) -> Result<NextGeneration, Error> {
    plan(&Request {
        from,
        to,
        image: Some("crossfade:test"),
        ..Request::default()
    })
}

/// The suffix of the generation in a text.
fn hash(text: &str) -> &str {
    let (_, rest) = text.split_once(GENERATION).expect("the label is there");
    let value = rest.trim_start_matches([':', ' ', '"']);
    value.get(..8).unwrap()
}

#[test]
fn a_rolling_update_suffices_if_the_servers_do_not_change() {
    for (from, to, why) in [
        (
            "replicas: 4",
            "replicas: 6",
            "only replicas, labels, annotations, or resources",
        ),
        (
            "nvidia.com/gpu: \"4\"",
            "nvidia.com/gpu: \"8\"",
            "only replicas, labels",
        ),
        (
            "dynamo-frontend:1.6.1",
            "dynamo-frontend:1.7.0",
            "only the frontends change",
        ),
        (
            "replicas: 4",
            "replicas: 4 # four",
            "the manifests do not differ",
        ),
    ] {
        let planned = planned(DEPLOYMENTS, &DEPLOYMENTS.replacen(from, to, 1)).unwrap();
        assert_eq!(planned.text, "", "{to}");
        assert!(planned.notes[0].contains(why), "{:?}", planned.notes);
    }
    for (from, to) in [
        ("vllm-runtime:1.6.1", "vllm-runtime:1.7.0"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"),
        (
            "- name: main\n        image: nvcr.io/nvidia/ai-dynamo/vllm",
            "- name: main\n        env: [{name: A, value: b}]\n        image: nvcr.io/nvidia/ai-dynamo/vllm",
        ),
    ] {
        let planned = planned(DEPLOYMENTS, &DEPLOYMENTS.replacen(from, to, 1)).unwrap();
        assert!(planned.text.contains("kind: DynamoRollout"), "{to}");
    }
    let graph = GRAPH_TEXT.replace("replicas: 4", "replicas: 8");
    assert_eq!(planned(GRAPH_TEXT, &graph).unwrap().text, "");
    let graph = GRAPH_TEXT.replace("vllm-runtime:1.6.1", "vllm-runtime:1.7.0");
    assert!(
        planned(GRAPH_TEXT, &graph)
            .unwrap()
            .text
            .contains("kind: DynamoRollout")
    );
}

/// Applied as they are, the edited manifests would create a second object beside the first one.
#[test]
fn an_object_of_another_name_or_kind_is_of_another_generation() {
    for (manifests, from, to) in [
        (
            DEPLOYMENTS,
            "kind: Deployment\nmetadata: {name: chat-decode,",
            "kind: Deployment\nmetadata: {name: chat-decode-b,",
        ),
        (
            DEPLOYMENTS,
            "kind: Deployment\nmetadata: {name: chat-decode,",
            "kind: StatefulSet\nmetadata: {name: chat-decode,",
        ),
        (
            DEPLOYMENTS,
            "  name: chat-frontend\n",
            "  name: chat-frontend-b\n",
        ),
        (
            GRAPH_TEXT,
            "metadata: {name: chat,",
            "metadata: {name: chat-b,",
        ),
    ] {
        let edited = manifests.replacen(from, to, 1);
        assert_ne!(edited, manifests);
        let planned = planned(manifests, &edited).unwrap();
        assert!(planned.text.contains("kind: DynamoRollout"), "{to}");
    }
    let moved = DEPLOYMENTS.replace("namespace: inference", "namespace: other");
    let refused = planned(DEPLOYMENTS, &moved).unwrap_err().to_string();
    assert!(
        refused.contains("Deployment/chat-frontend moves from namespace inference to other"),
        "{refused}"
    );
}

#[test]
fn an_edit_of_other_objects_alone_needs_no_second_generation() {
    let edited = DEPLOYMENTS.replace("router: kv", "router: random");
    let planned = planned(DEPLOYMENTS, &edited).unwrap();
    assert_eq!(planned.text, "");
    assert!(
        planned.notes[0].contains("neither workers nor frontends change"),
        "{:?}",
        planned.notes
    );
}

#[test]
fn workers_of_a_kind_without_a_next_generation_are_refused_by_name() {
    const SET: &str = "---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: chat-wide, namespace: inference}
spec: {leaderWorkerTemplate: {workerTemplate: {spec: {containers: [{name: main, image: vllm-runtime:1.6.1}]}}}}
";
    let alone: Vec<_> = DEPLOYMENTS.split("---\n").take(2).collect();
    let alone = alone.join("---\n") + SET;
    let beside = DEPLOYMENTS.to_owned() + SET;
    for manifests in [alone, beside] {
        let edited = manifests.replace("image: vllm-runtime:1.6.1", "image: vllm-runtime:1.7.0");
        let refused = planned(&manifests, &edited).unwrap_err().to_string();
        assert!(
            refused.contains("LeaderWorkerSet/chat-wide has workers, but `plan` supports only"),
            "{refused}"
        );
    }
}

#[test]
fn a_partition_is_reported_since_a_second_object_is_created() {
    let set = DEPLOYMENTS.replace(
        "kind: Deployment\nmetadata: {name: chat-decode,",
        "kind: StatefulSet\nmetadata: {name: chat-decode,",
    );
    let edited = set.replace("vllm-runtime:1.6.1", "vllm-runtime:1.7.0");
    let with_partition = edited.replace(
        "    matchLabels: {app: chat-decode}\n",
        "    matchLabels: {app: chat-decode}\n  updateStrategy: {rollingUpdate: {partition: 2}}\n",
    );
    assert_ne!(edited, with_partition);
    let reports = |edited: &str| {
        let notes = planned(&set, edited).unwrap().notes;
        let mut notes = notes.iter();
        notes.any(|note| note.contains("StatefulSet/chat-decode has a partition"))
    };
    assert!(reports(&with_partition) && !reports(&edited));
}

#[test]
fn the_hash_is_of_what_the_pods_are_and_of_nothing_else() {
    let edit = |image: &str| DEPLOYMENTS.replace("vllm-runtime:1.6.1", image);
    let text = |to: &str| planned(DEPLOYMENTS, to).unwrap().text;
    let first = text(&edit("vllm-runtime:1.7.0"));
    let hash_of_first = hash(&first).to_owned();
    assert_eq!(hash_of_first.len(), 8, "{hash_of_first}");
    assert!(hash_of_first.chars().all(|c| c.is_ascii_hexdigit()));
    assert_eq!(text(&edit("vllm-runtime:1.7.0")), first);
    // Comments and sizes are nothing that a pod is.
    let same = edit("vllm-runtime:1.7.0").replace("replicas: 4", "replicas: 5 # more");
    assert_eq!(hash(&text(&same)), hash_of_first);
    assert_ne!(hash(&text(&edit("vllm-runtime:1.8.0"))), hash_of_first);
}

#[test]
fn the_generation_after_the_next_has_one_hash_in_its_names() {
    let edit = |text: &str, to: &str| {
        text.replace("vllm-runtime:1.6.1", to)
            .replace("vllm-runtime:1.7.0", to)
    };
    let second = planned(DEPLOYMENTS, &edit(DEPLOYMENTS, "vllm-runtime:1.7.0"))
        .unwrap()
        .text;
    let own: Vec<_> = second
        .split_inclusive("---\n")
        .filter(|part| !part.contains("kind: DynamoRollout"))
        .collect();
    // The Service of its own frontends is not the clients'.
    let alone = own.concat();
    let alone = alone.trim_end_matches("---\n");
    let error = planned(alone, &edit(alone, "vllm-runtime:1.8.0")).unwrap_err();
    assert!(
        error.to_string().contains("was created by `plan`"),
        "{error}"
    );
    // As a person keeps it: with the clients' Service, which selects the second generation now.
    let hash_of_second = hash(&second).to_owned();
    let clients = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: chat, namespace: inference}}\nspec:\n  selector: {{app: chat-frontend-{hash_of_second}}}\n  ports: [{{port: 80, targetPort: http}}]\n"
    );
    let from = format!("{}\n---\n{clients}", own.concat().trim_end_matches("---\n"));
    let request = Request {
        from: &from,
        to: &edit(&from, "vllm-runtime:1.8.0"),
        image: Some("crossfade:test"),
        client_service: Some("chat"),
        anyway: false,
    };
    let third = plan(&request).unwrap();
    let hash_of_third = hash(&third.text);
    assert_ne!(hash_of_third, hash_of_second);
    for expected in [
        format!("name: chat-decode-{hash_of_third}\n"),
        format!("app: chat-prefill-{hash_of_third}\n"),
        format!("value: chat-{hash_of_third}\n"),
        format!(
            "--namespace chat-{hash_of_third} --endpoint dyn://chat-{hash_of_third}.decode.generate"
        ),
    ] {
        assert!(third.text.contains(&expected), "{expected}\n{}", third.text);
    }
    let (new, rollout) = third.text.split_once("kind: DynamoRollout").unwrap();
    assert!(!new.contains(&hash_of_second), "{new}");
    assert!(
        rollout.contains(&format!("name: chat-decode-{hash_of_second}\n")),
        "{rollout}"
    );
    assert!(rollout.contains("clientService: chat\n"), "{rollout}");
    assert!(third.notes.is_empty(), "{:?}", third.notes);
    // Without the label, going back to the first edit would give the same hash as the first time.
    let back = plan(&Request {
        to: &edit(&from, "vllm-runtime:1.7.0"),
        ..request
    });
    assert_eq!(back.unwrap().text, "");
}
