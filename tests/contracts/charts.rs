//! The charts in `deploy/helm` link to the files in `deploy/` instead of copying them, and their README and schema list every value.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// If this variable is set, the README is written instead of compared.
const WRITE: &str = "CROSSFADE_WRITE_REFERENCE";
const MARK: &str = "<!-- Made from values.yaml by `make reference`. Do not edit. -->\n";
const CHARTS: [&str; 2] = ["crossfade-crds", "crossfade"];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn read(path: &str) -> String {
    fs::read_to_string(deploy().join("helm").join(path)).unwrap()
}

#[test]
fn the_files_of_the_charts_are_those_of_deploy() {
    let mut targets = BTreeSet::new();
    for chart in CHARTS {
        let files = deploy().join("helm").join(chart).join("files");
        for entry in fs::read_dir(files).unwrap() {
            let path = entry.unwrap().path();
            assert!(path.is_symlink(), "{path:?} is a copy: make it a link");
            let target = path.canonicalize().unwrap();
            let target = target.strip_prefix(deploy().canonicalize().unwrap());
            let target = target.unwrap().to_str().unwrap().to_owned();
            assert!(!target.starts_with("helm"), "{target}");
            targets.insert(target);
        }
    }
    let wanted = [
        "base/rbac.yaml",
        "controller/rbac.yaml",
        "crd/crd.yaml",
        "monitoring/alerts.yaml",
        "monitoring/dashboard.json",
        "monitoring/podmonitor.yaml",
        "network-policy/admin.yaml",
        "people/rbac.yaml",
        "rollout/namespace.yaml",
        "rollout/reader.yaml",
    ];
    assert_eq!(targets, wanted.map(str::to_owned).into());
}

#[test]
fn the_charts_have_the_version_of_the_program() {
    for chart in CHARTS {
        let text = read(&format!("{chart}/Chart.yaml"));
        let version = env!("CARGO_PKG_VERSION");
        for line in [
            format!("version: {version}\n"),
            format!("appVersion: \"{version}\"\n"),
        ] {
            assert!(text.contains(&format!("\n{line}")), "{chart} has no {line}");
        }
    }
}

/// A value of the chart: its name, default and description.
struct Setting {
    path: String,
    default: String,
    about: String,
}

/// The settings in `values.yaml`. A comment that starts with `--` describes the next one.
fn settings() -> Vec<Setting> {
    let text = read("crossfade/values.yaml");
    let mut settings: Vec<Setting> = Vec::new();
    let (mut above, mut about) = (Vec::<(usize, String)>::new(), String::new());
    // The depth of the described value. Deeper lines are its default.
    let mut described = None;
    for line in text.lines() {
        let content = line.trim_start();
        let depth = line.len() - content.len();
        if let Some(comment) = content.strip_prefix("# ") {
            match comment.strip_prefix("-- ") {
                Some(begin) => about = begin.to_owned(),
                None => about = format!("{about} {comment}"),
            }
            continue;
        }
        if described.is_some_and(|outer| depth > outer) {
            let default = &mut settings.last_mut().unwrap().default;
            let joint = if default.is_empty() { "{" } else { ", " };
            *default += &format!("{joint}{content}");
            continue;
        }
        let (name, value) = content.split_once(':').unwrap_or_else(|| panic!("{line}"));
        above.retain(|(level, _)| *level < depth);
        above.push((depth, name.to_owned()));
        described = None;
        if about.is_empty() {
            assert!(value.is_empty(), "no description of {line}");
            continue;
        }
        let names: Vec<&str> = above.iter().map(|(_, name)| &**name).collect();
        settings.push(Setting {
            path: names.join("."),
            default: value.trim().to_owned(),
            about: std::mem::take(&mut about),
        });
        described = value.is_empty().then_some(depth);
    }
    for setting in &mut settings {
        let count = |brace| setting.default.matches(brace).count();
        if count('{') > count('}') {
            setting.default.push('}');
        }
    }
    assert!(settings.len() > 20);
    settings
}

#[test]
fn the_readme_of_the_chart_lists_its_values() {
    let mut table = "\n| value | default | |\n| --- | --- | --- |\n".to_owned();
    for Setting {
        path,
        default,
        about,
    } in settings()
    {
        table += &format!("| `{path}` | `{default}` | {about} |\n");
    }
    let path = deploy().join("helm/crossfade/README.md");
    let kept = fs::read_to_string(&path).unwrap();
    let (text, _) = kept.split_once(MARK).unwrap();
    let made = format!("{text}{MARK}{table}");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &made).unwrap();
        return;
    }
    assert!(kept == made, "{path:?} is outdated: run `make reference`");
}

/// The paths of all leaf values in a schema, with their other properties.
fn described(schema: &Value, path: &str, paths: &mut BTreeMap<String, Value>) {
    match schema["properties"].as_object() {
        Some(fields) => {
            assert_eq!(
                schema["additionalProperties"], false,
                "{path} takes anything"
            );
            for (name, inner) in fields {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                described(inner, &path, paths);
            }
        }
        None => {
            paths.insert(path.to_owned(), schema.clone());
        }
    }
}

#[test]
fn the_schema_of_the_chart_knows_its_values_and_no_others() {
    let schema: Value = serde_json::from_str(&read("crossfade/values.schema.json")).unwrap();
    let mut paths = BTreeMap::new();
    described(&schema, "", &mut paths);
    // Helm provides it to every chart.
    paths.remove("global");
    let known: Vec<_> = paths.keys().cloned().collect();
    let mut settings: Vec<_> = settings().into_iter().map(|setting| setting.path).collect();
    settings.sort();
    assert_eq!(known, settings);
}
