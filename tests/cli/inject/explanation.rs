//! The explanation names every change to a manifest.
//!
//! The annotation of an injected pod lists all changes: injecting fails if reverting them does not restore the manifest byte for
//! byte.

use super::*;

/// The parts of a path that say where a pod or a value is, and not what has changed.
const PLACES: &[&str] = &[
    "spec",
    "template",
    "podTemplate",
    "extraPodSpec",
    "metadata",
    "mainContainer",
    "initContainers",
    "env",
    "envs",
    "args",
    "command",
    "lifecycle",
    "exec",
    "httpGet",
    "tcpSocket",
    "securityContext",
    "sysctls",
];

/// Fields whose value is named instead of the field.
const VALUES: &[&str] = &["name", "value", "port", "containerPort", "hostPort"];

/// The words by which one line of the explanation must name a change. `value` is the new value, or the part of it that is new.
fn words(path: &str, value: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut steps = path.split('/').peekable();
    while let Some(step) = steps.next() {
        let name = step.replace("~1", "/").replace("~0", "~");
        let name = name.trim_matches(['[', ']']);
        if step == "containers" {
            // Only the frontend's container changes; a sidecar is an item of the list itself.
            steps.next_if(|_| path.contains("]/"));
        } else if name.starts_with('#') || VALUES.contains(&name) {
            words.push(value.trim_start_matches(':').to_owned());
        } else if !PLACES.contains(&name) {
            let list = ["ports", "volumes", "labels", "annotations"].contains(&name);
            words.push(
                name.strip_suffix('s')
                    .filter(|_| list)
                    .unwrap_or(name)
                    .to_owned(),
            );
        }
    }
    words
}

/// All values of this key, in the order of the document.
fn values_of<'v>(key: &str, json: &'v Value, found: &mut Vec<&'v str>) {
    match json {
        Value::Array(items) => items.iter().for_each(|item| values_of(key, item, found)),
        Value::Object(map) => {
            found.extend(map.get(key).and_then(Value::as_str));
            map.values().for_each(|value| values_of(key, value, found));
        }
        _ => {}
    }
}

fn assert_named(text: &str, options: &Options) -> usize {
    let report = injected_with(text, options).unwrap();
    let manifests = manifests(&report.text).unwrap();
    let objects = manifests.iter().flat_map(|manifest| &manifest.objects);
    let mut records = Vec::new();
    objects.for_each(|object| values_of("crossfade/injected", object, &mut records));
    let is_injected = |note: &&crossfade::inject::Note| note.summary.contains("is added as");
    let notes: Vec<_> = report.notes.iter().filter(is_injected).collect();
    assert_eq!(records.len(), notes.len());
    let mut count = 0;
    for (record, note) in records.into_iter().zip(notes) {
        let record: Value = serde_json::from_str(record).unwrap();
        let list = |key: &str| record[key].as_array().cloned().unwrap_or_default();
        let of = |change: &Value, key: &str| change[key].as_str().unwrap().to_owned();
        let added = list("added").into_iter().map(|path| {
            // Only the arguments that move the frontend have no name.
            let path = path.as_str().unwrap().to_owned();
            (path, "it moves from port".to_owned())
        });
        let swapped = list("swapped");
        let swapped = swapped
            .iter()
            .map(|change| (of(change, "path"), of(change, "to")));
        let replaced = list("replaced");
        let replaced = replaced
            .iter()
            .map(|change| (of(change, "path"), String::new()));
        let explanation = note.to_string();
        for (path, value) in added.chain(swapped).chain(replaced) {
            let words = words(&path, &value);
            let is_named = |line: &str| words.iter().all(|word| line.contains(word.as_str()));
            assert!(!words.is_empty(), "{path}");
            assert!(
                explanation.lines().any(is_named),
                "{path} (a line with {words:?}) is missing in:\n{explanation}"
            );
            count += 1;
        }
    }
    count
}

#[test]
fn every_change_is_named_in_the_explanation() {
    let all = [
        Options::default(),
        Options {
            plain_container: true,
            drain: Some(1800),
            ..Options::default()
        },
        Options {
            health: Some("/healthz".into()),
            ..Options::default()
        },
    ];
    for (path, text) in corpus() {
        for options in &all {
            let count = assert_named(&text, options);
            assert!(count > 5, "{path:?}: {count}");
        }
    }
}

#[test]
fn changes_outside_the_samples_are_named_as_well() {
    for container in [
        // A port that only root may use, and a command of a probe.
        "        image: x/vllm-openai\n        args: [--port, \"80\"]\n        livenessProbe: {exec: {command: [curl, 'localhost:80/health']}}\n",
        "        image: x/dynamo-frontend\n        env: [{name: DYN_HTTP_PORT, value: \"9000\"}]\n        ports: [{containerPort: 9000}]\n",
        "        image: x/dynamo-frontend\n        lifecycle: {preStop:, postStart: {tcpSocket: {port: 8000}}}\n",
        "        image: x/vllm-openai\n        ports: [{containerPort: 8000, hostPort: 80}]\n      hostNetwork: true\n",
    ] {
        assert_named(&deployment(container), &Options::default());
    }
    let graph = include_str!("../../corpus/inject/graph-v1alpha1.yaml");
    let graph = graph.replace(
        "      replicas: 1\n      extraPodSpec:\n",
        "      replicas: 1\n      envs: [{name: DYN_HTTP_PORT, value: \"9000\"}]\n      readinessProbe: {httpGet: {path: /health, port: 9000}}\n      \
         livenessProbe: {httpGet: {path: /live, port: 9000}}\n      extraPodSpec:\n",
    );
    assert_named(&graph, &Options::default());
}
