//! Manifests that another tool has rewritten in another style since the injection, as clusters, kubectl, yq, and helm do: they are
//! restored and injected again with the same meaning.

use serde_json::{Map, json};

use super::*;

/// A style, and how a tool writes a value in it.
type Style = (&'static str, fn(&Value) -> String);

const STYLES: [Style; 7] = [
    ("compact JSON", Value::to_string),
    ("pretty JSON with CRLF", |value| {
        pretty(value).replace('\n', "\r\n")
    }),
    ("YAML in flow style", |value| format!("{}\n", flow(value))),
    ("sorted YAML", |value| {
        serde_saphyr::to_string(&sorted(value)).unwrap()
    }),
    ("indented YAML", |value| {
        let options = serde_saphyr::ser_options! { indent_step: 4, compact_list_indent: false };
        serde_saphyr::to_string_with_options(value, options).unwrap()
    }),
    ("narrow YAML", |value| {
        let options = serde_saphyr::ser_options! { folded_wrap_chars: 20 };
        serde_saphyr::to_string_with_options(value, options).unwrap()
    }),
    ("quoted YAML with CRLF", |value| {
        let options = serde_saphyr::ser_options! { quote_all: true };
        let text = serde_saphyr::to_string_with_options(value, options).unwrap();
        text.replace('\n', "\r\n")
    }),
];

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap()
}

/// On one line, with plain keys and texts.
fn flow(value: &Value) -> String {
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-/.".contains(c))
            && !words.contains(&text)
    };
    match value {
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                format!("{}: {}", flow(&key.as_str().into()), flow(value))
            };
            let entries: Vec<_> = map.iter().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::String(text) if is_plain(text) => text.clone(),
        value => value.to_string(),
    }
}

/// With its keys in alphabetical order, as the API server returns them.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries = entries
                .into_iter()
                .map(|(key, value)| (key.clone(), sorted(value)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        value => value.clone(),
    }
}

fn read(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The manifest without the record, which keeps the style of the original, and without what is empty.
fn without_record(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| *key != ANNOTATION);
            let kept = kept.map(|(key, value)| (key.clone(), without_record(value)));
            Value::Object(kept.collect())
        }
        Value::Array(items) => items.iter().map(without_record).collect(),
        value => value.clone(),
    }
}

fn samples() -> Vec<Value> {
    let probe =
        |port: &Value| json!({"httpGet": {"path": "/health", "port": port}, "periodSeconds": 7});
    let port = |name: &str| json!([{"name": name, "containerPort": 8000, "hostPort": 8000}]);
    let script = "set -e\n# The port is 8000.\nexec vllm serve 'a b' \\\n  --host 0.0.0.0 --port 8000 \\\n  --x\n";
    let long = "exec vllm serve Qwen/Qwen3-0.6B --max-model-len 8192 --gpu-memory-utilization 0.9 --host 0.0.0.0 --port 8000 --x";
    let pod = |container: &Value| json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}});
    let object = |kind: &str, container: Value| {
        json!({
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": "server"},
            "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": pod(&container)},
        })
    };
    let vllm = "vllm/vllm-openai:v0.11.0";
    let plain = object(
        "Deployment",
        json!({
            "name": "server", "image": vllm, "args": ["--model", "m"], "ports": port("http"),
            "readinessProbe": probe(&json!("http")), "livenessProbe": probe(&json!(8000)),
            "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sleep 10"]}}},
        }),
    );
    let mut nothing = object(
        "Deployment",
        json!({
            "name": "server", "image": vllm, "args": [], "ports": null, "env": null, "lifecycle": {},
            "readinessProbe": {"exec": {"command": ["sh", "-c", "curl \"localhost:8000/health\" | grep 'a: b' # x"]}},
        }),
    );
    nothing["spec"]["template"]["metadata"]["annotations"] = Value::Null;
    nothing["spec"]["template"]["spec"]["volumes"] = json!([]);
    nothing["spec"]["template"]["spec"]["initContainers"] = Value::Null;
    let of_script = |script: &str| {
        object(
            "StatefulSet",
            json!({
                "name": "server", "image": "registry.example/vllm", "command": ["bash", "-c", script],
                "readinessProbe": probe(&json!(8000)),
            }),
        )
    };
    let component =
        json!({"name": "main", "image": "dynamo-frontend:1", "args": ["--router-mode", "kv"]});
    let graph = |version: &str, spec: Value| {
        json!({
            "apiVersion": format!("nvidia.com/{version}"),
            "kind": "DynamoGraphDeployment",
            "metadata": {"name": "graph"},
            "spec": spec,
        })
    };
    vec![
        json!({"apiVersion": "v1", "kind": "List", "items": [plain, of_script(script)]}),
        plain,
        nothing,
        of_script(script),
        of_script(long),
        graph(
            "v1alpha1",
            json!({"services": {"Frontend": {
                "componentType": "frontend", "replicas": 1, "envs": [{"name": "DYN_HTTP_PORT", "value": "8000"}],
                "readinessProbe": probe(&json!(8000)), "livenessProbe": probe(&json!("http")),
                "extraPodSpec": {"mainContainer": component},
            }}}),
        ),
        graph(
            "v1alpha1",
            json!({"services": {"Frontend": {"componentType": "frontend"}}}),
        ),
        graph(
            "v1beta1",
            json!({"components": [{"name": "Frontend", "type": "frontend", "podTemplate": {"spec": {"containers": [component]}}}]}),
        ),
    ]
}

#[test]
fn a_manifest_that_comes_back_in_another_style_is_restored_and_injected_again() {
    let samples = samples();
    std::thread::scope(|scope| {
        for original in &samples {
            scope.spawn(move || {
                for (style, written) in STYLES {
                    assert_returns(style, &written(original), original);
                }
            });
        }
    });
}

/// Injects a manifest, and has other tools rewrite it in every style.
fn assert_returns(style: &str, text: &str, original: &Value) {
    let other = Options {
        drain: Some(600),
        ..Options::default()
    };
    let once = injected(text).unwrap_or_else(|error| panic!("{style}: {error}\n{text}"));
    assert_eq!(uninject(&once.text).unwrap().text, text, "{style}");
    let value = read(&once.text);
    let with_other = without_record(&read(&injected_with(text, &other).unwrap().text));
    for (second, written) in STYLES {
        let returned = written(&value);
        let context = format!("from {style} to {second}:\n{text}\n{returned}");
        let expect =
            |result: Result<_, Error>| result.unwrap_or_else(|error| panic!("{error} {context}"));
        let back = expect(uninject(&returned));
        let again = expect(injected(&returned));
        let changed = expect(injected_with(&returned, &other));
        if second.contains("JSON") {
            for text in [&back.text, &again.text, &changed.text] {
                let read = serde_json::from_str::<Value>(text);
                assert!(read.is_ok(), "{read:?} {text} {context}");
            }
        }
        assert_eq!(read(&back.text), *original, "{context}");
        let warnings: Vec<_> = back.notes.iter().flat_map(|note| &note.warnings).collect();
        assert!(warnings.is_empty(), "{warnings:?} {context}");
        assert_eq!(read(&again.text), value, "{context}");
        assert_eq!(
            without_record(&read(&changed.text)),
            with_other,
            "{context}"
        );
        let restored = uninject(&changed.text).unwrap().text;
        assert_eq!(read(&restored), *original, "{context}");
    }
}
