//! Random manifests in random styles are injected, are unchanged by a second injection, and are restored by `uninject`.

use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

/// Random choices from a seed, so that failures can be reproduced.
struct Draw(fastrand::Rng);

impl Draw {
    fn chance(&mut self, percent: u8) -> bool {
        self.0.u8(0..100) < percent
    }

    fn pick<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.0.usize(0..of.len())]
    }
}

/// A Deployment of a known server with random other fields.
fn manifest(draw: &mut Draw) -> Value {
    let mut container = json!({"name": "server", "image": "vllm/vllm-openai:v0.11.0"});
    match draw.0.u8(0..6) {
        0 => container["args"] = json!(["--model", "x: y", "--port", "8000"]),
        1 => container["args"] = json!(["--model", "# x"]),
        2 => container["command"] = json!(["sh", "-c", "vllm serve x \\\n  --port=8000\n\n"]),
        3 => {
            container["command"] = json!(["python3", "-m", "dynamo.frontend"]);
            container["env"] = json!([{"name": "DYN_HTTP_PORT", "value": "8000"}]);
        }
        4 => container["env"] = json!([]),
        _ => {}
    }
    let port = if draw.chance(50) {
        json!(8000)
    } else {
        json!("api")
    };
    if draw.chance(70) || port == "api" {
        container["ports"] =
            json!([{"containerPort": 9000}, {"name": "api", "containerPort": 8000}]);
    }
    for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
        if draw.chance(50) {
            container[probe] =
                json!({"httpGet": {"path": "/health", "port": port}, "periodSeconds": 3});
        }
    }
    if draw.chance(40) {
        container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 5}}});
    }
    let mut pod = Map::new();
    for (name, value) in [
        ("terminationGracePeriodSeconds", json!(30)),
        ("volumes", json!([{"name": "v", "emptyDir": {}}])),
        (
            "initContainers",
            json!([{"name": "i", "image": "x", "args": ["|", "a\n\nb\n", "é"]}]),
        ),
        ("nodeSelector", Value::Null),
        ("tolerations", json!([])),
    ] {
        if draw.chance(40) {
            pod.insert(name.into(), value);
        }
    }
    let mut containers = vec![container];
    if draw.chance(30) {
        containers
            .push(json!({"name": "other", "image": "x", "args": ["text\nwith lines\n", "- x"]}));
    }
    pod.insert("containers".into(), containers.into());
    let mut metadata = json!({"labels": {"app": "a"}});
    match draw.0.u8(0..4) {
        0 => metadata["annotations"] = Value::Null,
        1 => metadata["annotations"] = json!({}),
        2 => metadata["annotations"] = json!({"note": "a 'b' \"c\""}),
        _ => {}
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "server"},
        "spec": {
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": metadata, "spec": shuffled(draw, pod)},
        },
    })
}

fn shuffled(draw: &mut Draw, map: Map<String, Value>) -> Value {
    let mut entries: Vec<_> = map.into_iter().collect();
    draw.0.shuffle(&mut entries);
    Value::Object(entries.into_iter().collect())
}

/// Writes YAML in a style that changes from value to value.
struct Writer<'d> {
    draw: &'d mut Draw,
    text: String,
    comments: usize,
    flow: u8,
}

impl Writer<'_> {
    /// Ends a line, with random comments and blank lines.
    fn end_line(&mut self, may_comment: bool) {
        if may_comment && self.draw.chance(15) {
            self.comments += 1;
            self.text += &format!(" # c{}c", self.comments);
        }
        self.text.push('\n');
        if may_comment && self.draw.chance(10) {
            self.comments += 1;
            let indent = " ".repeat(self.draw.0.usize(0..12));
            self.text += &format!("{indent}# c{}c\n", self.comments);
        }
        if may_comment && self.draw.chance(5) {
            self.text.push('\n');
        }
    }

    /// Writes a value after a key or dash in column `column`, with comments if `may`.
    fn value(&mut self, value: &Value, column: usize, of_list: bool, may: bool) {
        let is_empty = value.as_object().is_some_and(Map::is_empty)
            || value.as_array().is_some_and(Vec::is_empty);
        match value {
            Value::Object(map) if !is_empty && !self.draw.chance(self.flow) => {
                let step = if of_list {
                    2
                } else {
                    [2, 4][self.draw.0.usize(0..2)]
                };
                if of_list && self.draw.chance(90) {
                    self.text.push(' ');
                    self.map(map, column + step, true, may);
                } else {
                    self.end_line(may);
                    self.map(map, column + step, false, may);
                }
            }
            Value::Array(items) if !is_empty && !of_list && !self.draw.chance(self.flow) => {
                self.end_line(may);
                let column = column + [0, 2][self.draw.0.usize(0..2)];
                for item in items {
                    self.text += &format!("{}-", " ".repeat(column));
                    self.value(item, column, true, may);
                }
            }
            Value::String(text) if text.contains('\n') && self.draw.chance(60) => {
                self.block_scalar(text, column + 2);
            }
            Value::Null if self.draw.chance(50) => self.end_line(may),
            value => {
                self.text.push(' ');
                let text = self.flow_text(value);
                self.text += &text;
                self.end_line(may);
            }
        }
    }

    fn map(&mut self, map: &Map<String, Value>, column: usize, inline: bool, may: bool) {
        for (index, (key, value)) in map.iter().enumerate() {
            if index > 0 || !inline {
                self.text += &" ".repeat(column);
            }
            self.text += &self
                .draw
                .pick(&["K:", "K:", "\"K\":", "'K':", "K :"])
                .replace('K', key);
            // A value that is replaced as a whole may lose its comments until `uninject`.
            let may = may && !key.ends_with("Probe") && key != "lifecycle";
            self.value(value, column, false, may);
        }
    }

    fn block_scalar(&mut self, text: &str, column: usize) {
        let keep = text.ends_with("\n\n");
        self.text += match (text.ends_with('\n'), keep) {
            (_, true) => " |+\n",
            (true, _) => " |\n",
            _ => " |-\n",
        };
        for line in text.trim_end_matches('\n').split('\n') {
            match line {
                "" => self.text.push('\n'),
                line => self.text += &format!("{}{line}\n", " ".repeat(column)),
            }
        }
        if keep {
            self.text.push('\n');
        }
    }

    fn flow_text(&mut self, value: &Value) -> String {
        let space = self.draw.pick(&["", " "]).to_owned();
        match value {
            Value::Object(map) => {
                let entries: Vec<_> = map
                    .iter()
                    .map(|(key, value)| {
                        format!(
                            "{}: {}",
                            self.draw.pick(&["K", "\"K\""]).replace('K', key),
                            self.flow_text(value)
                        )
                    })
                    .collect();
                format!("{{{space}{}{space}}}", entries.join(", "))
            }
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| self.flow_text(item)).collect();
                format!("[{space}{}{space}]", items.join(", "))
            }
            value => value.to_string(),
        }
    }
}

fn written(seed: u64) -> (String, usize) {
    let mut draw = Draw(fastrand::Rng::with_seed(seed));
    let value = manifest(&mut draw);
    let flow = [0, 10, 40][draw.0.usize(0..3)];
    let mut writer = Writer {
        draw: &mut draw,
        text: String::new(),
        comments: 0,
        flow,
    };
    if let Value::Object(map) = &value {
        writer.map(map, 0, false, true);
    }
    let (mut text, comments) = (writer.text, writer.comments);
    if draw.chance(10) {
        let pretty = draw.chance(50);
        text = if pretty {
            serde_json::to_string_pretty(&value).unwrap()
        } else {
            value.to_string()
        };
        return (text, 0);
    }
    if draw.chance(30) {
        text = format!("# first\n---\na: 1\n---\n{text}---\nb: |\n  x\n");
    }
    if draw.chance(20) {
        text.truncate(text.trim_end().len());
    }
    if draw.chance(20) {
        text = text.replace('\n', "\r\n");
    }
    if draw.chance(10) {
        text.insert(0, '\u{feff}');
    }
    (text, comments)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_manifest_in_every_style_is_injected_and_restored(seed: u64) {
        let (text, comments) = written(seed);
        let once = injected(&text).map_err(|error| TestCaseError::fail(format!("{text}\n{error}")))?;
        for comment in 1..=comments {
            let comment = format!("# c{comment}c");
            prop_assert!(once.text.contains(&comment) || !text.contains(&comment), "{comment} is lost in\n{}", once.text);
        }
        prop_assert_eq!(&injected(&once.text).unwrap().text, &once.text);
        prop_assert_eq!(&uninject(&once.text).unwrap().text, &text);
    }

    #[test]
    fn no_text_causes_a_panic_and_none_without_a_frontend_is_changed(text in "(apiVersion: apps/v1\nkind: Deployment\n|spec:|containers:|[a-c:,{}\\[\\]&*!?|>'\"#%@-]|\\PC|  |: |- |\n){0,60}") {
        if let Ok(report) = injected(&text) {
            prop_assert_eq!(uninject(&report.text).unwrap().text, text.clone());
        }
        if let Ok(report) = uninject(&text) {
            prop_assert_eq!(report.text, text);
        }
    }
}
