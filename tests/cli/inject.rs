//! `crossfade inject` and `uninject`: realistic, unusual and random manifests, and the command line.

mod branches;
mod command;
mod environment;
mod explanation;
mod graphs;
mod later_changes;
mod objects;
mod ports;
mod random;
mod servers;
mod shell_variables;
mod styles;
mod unusual_yaml;

use crossfade::inject::{ANNOTATION, Error, Options, inject, manifests, uninject, yaml};
use serde_json::Value;

use crate::manifests::{corpus, deployment, flat, injected, injected_with};

#[test]
fn uninject_restores_manifests_byte_for_byte_and_a_second_injection_changes_nothing() {
    for (path, text) in corpus() {
        for plain_container in [false, true] {
            let options = Options {
                plain_container,
                ..Options::default()
            };
            let once =
                injected_with(&text, &options).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert_ne!(once.text, text, "{path:?}");
            let twice = injected(&once.text).unwrap();
            assert_eq!(twice.text, once.text, "{path:?}");
            let back = uninject(&once.text).unwrap();
            assert_eq!(back.text, text, "{path:?}");
            let mut warnings: Vec<_> = back.notes.iter().flat_map(|note| &note.warnings).collect();
            // One of the manifests was read from a cluster.
            warnings.retain(|warning| !warning.contains("kubectl replace"));
            assert!(warnings.is_empty(), "{path:?}: {warnings:?}");
            assert_eq!(uninject(&text).unwrap().text, text, "{path:?}");
        }
    }
}

#[test]
fn manifests_injected_by_an_earlier_build_are_uninjected_byte_for_byte_and_injected_as_today() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/");
    let mut count = 0;
    for entry in std::fs::read_dir(format!("{folder}injected")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let original = std::fs::read_to_string(format!("{folder}inject/{name}")).unwrap();
        let earlier = std::fs::read_to_string(&path).unwrap();
        assert_eq!(uninject(&earlier).unwrap().text, original, "{name}");
        let today = injected(&original).unwrap().text;
        assert_eq!(injected(&earlier).unwrap().text, today, "{name}");
        count += 1;
    }
    assert!(count > 5);
}

#[test]
fn objects_other_than_frontends_and_all_comments_are_unchanged() {
    let text = include_str!("../corpus/inject/dynamo.yaml");
    let report = injected(text).unwrap();
    let documents =
        |text: &str| -> Vec<String> { text.split("\n---\n").map(str::to_owned).collect() };
    let (before, after) = (documents(text), documents(&report.text));
    assert_eq!(before.len(), 3);
    assert_eq!((&before[0], &before[2]), (&after[0], &after[2]));
    for kept in [
        "# two, for updates",
        "# kept",
        "# the end of the container",
        "# the end of the pod",
    ] {
        assert!(report.text.contains(kept), "{kept}");
    }
    let changed = |line: &&str| !report.text.lines().any(|other| other == *line);
    let gone: Vec<_> = text.lines().filter(changed).map(str::trim).collect();
    assert_eq!(
        gone,
        [
            "labels: {app: frontend}",
            "terminationGracePeriodSeconds: 60",
            "- python3 -m dynamo.frontend --http-port 8000 --router-mode kv",
            "- containerPort: 8000",
            "name: http",
            "port: http",
            "# ready means models",
            "path: /health",
            "port: 8000",
            "periodSeconds: 5",
            "command: [\"/bin/sh\", \"-c\", \"sleep 10\"]",
        ]
    );
}
