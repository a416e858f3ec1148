//! `docs/reference.md` is generated from the program: flags, fields of the resources, and metrics. The other documents only name
//! things that exist.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use crossfade::analysis;
use crossfade::cli::Cli;
use crossfade::resource;
use crossfade::split::{Assignment, Generation, Reason};
use crossfade::sse::{Api, Outcome};
use crossfade::telemetry::{Metrics, Observed};
use serde_json::Value;

/// If this variable is set, the file is written instead of compared.
const WRITE: &str = "CROSSFADE_WRITE_REFERENCE";

/// Escapes a text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn flags(out: &mut String) {
    out.push_str(
        "## Command line\n\n\
         A duration (`DURATION`) is a number of seconds, such as `90` or `1.5`, or numbers with the units `d`, `h`, `m`, `s`, and `ms`, \
         from the longest unit to the shortest, such as `2h`, `1m30s`, or `500ms`. A size is a number of bytes without a unit. A flag \
         takes precedence over its variable. The variable of a flag without a value is `true` or `false`. A variable that is set but \
         empty is an error, except for `CROSSFADE_PROXY`, which then contains no address.\n",
    );
    let mut command = Cli::command();
    command.build();
    arguments(&command, "crossfade", out);
    subcommands(&command, "crossfade", out);
}

fn subcommands(command: &clap::Command, name: &str, out: &mut String) {
    let own = command.get_subcommands();
    for sub in own.filter(|sub| sub.get_name() != "help") {
        let name = format!("{name} {}", sub.get_name());
        arguments(sub, &name, out);
        subcommands(sub, &name, out);
    }
}

fn arguments(command: &clap::Command, name: &str, out: &mut String) {
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let _ = writeln!(out, "\n### `{name}`\n\n{}.\n", about.trim_end_matches('.'));
    let own = command.get_arguments();
    let own: Vec<_> = own
        .filter(|argument| !["help", "version"].contains(&argument.get_id().as_str()))
        .collect();
    if own.is_empty() {
        return;
    }
    out.push_str("| argument | variable | default | |\n| --- | --- | --- | --- |\n");
    for argument in own {
        let takes_values = argument.get_action().takes_values();
        let value = argument.get_value_names().filter(|_| takes_values);
        let value = value
            .and_then(|names| names.first())
            .map(ToString::to_string);
        let mut name = match (argument.get_long(), value) {
            (Some(long), Some(value)) => format!("`--{long} {value}`"),
            (Some(long), None) => format!("`--{long}`"),
            (None, _) => format!("`{}`", argument.get_id().to_string().to_uppercase()),
        };
        if let Some(short) = argument.get_short() {
            name = format!("`-{short}`, {name}");
        }
        let variable = argument
            .get_env()
            .map(|name| format!("`{}`", name.display()));
        // A boolean flag is off by default, which is not mentioned.
        let default = argument
            .get_default_values()
            .iter()
            .filter(|value| takes_values && !value.is_empty());
        let mut default: Vec<_> = default
            .map(|value| format!("`{}`", value.display()))
            .collect();
        if argument.is_required_set() {
            default.push("required".to_owned());
        }
        let mut help = argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let possible = argument.get_possible_values();
        if takes_values && !possible.is_empty() {
            let names = possible
                .iter()
                .map(|value| format!("`{}`", value.get_name()));
            let _ = write!(help, ": {}", names.collect::<Vec<_>>().join(", "));
        }
        let (variable, default) = (variable.unwrap_or_default(), default.join(" "));
        let (name, help) = (cell(&name), cell(&help));
        let _ = writeln!(out, "| {name} | {variable} | {default} | {help} |");
    }
}

fn fields(out: &mut String) {
    for (crd, of) in [
        (resource::crd(), ""),
        (resource::rollout_crd(), " of a `DynamoRollout`"),
    ] {
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        for part in ["spec", "status"] {
            let _ = writeln!(
                out,
                "\n## Fields of `{part}`{of}\n\n| field | type | default | |\n| --- | --- | --- | --- |"
            );
            rows(&schema[part], part, out);
        }
    }
}

fn rows(schema: &Value, path: &str, out: &mut String) {
    let required = schema["required"].as_array();
    let required = |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let description = field["description"].as_str().unwrap_or_default();
        let default = match (&field["default"], required(name)) {
            (_, true) => "required".to_owned(),
            (Value::Null | Value::Object(_), _) => String::new(),
            (default, _) => format!("`{default}`"),
        };
        let path = format!("{path}.{name}");
        let (kind, default) = (cell(&kind(field)), cell(&default));
        let _ = writeln!(
            out,
            "| `{path}` | {kind} | {default} | {} |",
            cell(description)
        );
        // Its fields are for the controller only.
        if path != "status.memory" {
            rows(field, &path, out);
            rows(&field["items"], &format!("{path}[]"), out);
        }
    }
}

/// The type of a field, with its limits.
fn kind(field: &Value) -> String {
    let number = |name: &str| field[name].as_number().map(ToString::to_string);
    let mut kind = match (field["type"].as_str(), field["format"].as_str()) {
        (Some("string"), Some("date-time")) => "time".to_owned(),
        (Some("array"), _) => format!("list of {}", self::kind(&field["items"])),
        (Some("object"), _) if field["additionalProperties"].is_object() => {
            format!("map to {}", self::kind(&field["additionalProperties"]))
        }
        (Some(kind), _) => kind.to_owned(),
        (None, _) if field["x-kubernetes-int-or-string"] == true => "integer or string".to_owned(),
        (None, _) => "any".to_owned(),
    };
    let names = field["enum"].as_array().into_iter().flatten();
    let names: Vec<_> = names
        .filter_map(Value::as_str)
        .map(|name| format!("`{name}`"))
        .collect();
    if !names.is_empty() {
        let _ = write!(kind, ": {}", names.join(", "));
    }
    match (number("minimum"), number("maximum")) {
        (Some(least), Some(most)) => kind += &format!(", {least} to {most}"),
        (Some(least), None) => kind += &format!(", {least} or more"),
        (None, Some(most)) => kind += &format!(", {most} or less"),
        (None, None) => {}
    }
    for (name, unit) in [
        ("maxLength", "characters"),
        ("maxItems", "of them"),
        ("maxProperties", "of them"),
    ] {
        if let Some(most) = number(name) {
            let _ = write!(kind, ", at most {most} {unit}");
        }
    }
    kind
}

fn metrics(out: &mut String) {
    let head = "| metric | type | labels | |\n| --- | --- | --- | --- |\n";
    let row = |name: &str, kind: &str, labels: &[String], help: &str| {
        let labels = labels.iter().map(|label| format!("`{label}`"));
        let labels = labels.collect::<Vec<_>>().join(", ");
        format!("| `{name}` | {kind} | {labels} | {} |\n", cell(help))
    };
    let _ = write!(out, "\n## Metrics of a proxy\n\n{head}");
    let metrics = Metrics::default();
    // Families without series are not listed.
    let assignment = Assignment {
        generation: Generation::Old,
        reason: Reason::Weighted,
    };
    metrics.ended(assignment, Api::Chat, Outcome::Completed);
    let observed = Observed {
        verdict: Some(("pass", analysis::Reason::WithinMargins)),
        ..Observed::default()
    };
    let text = String::from_utf8(metrics.render(&observed)).unwrap();
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').unwrap().1;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            *out += &row(name, kind, &labels(&text, name), help);
        }
    }
    let _ = write!(
        out,
        "\n## Metrics of the controller\n\nIn addition to `process_*`, as for a proxy.\n\n{head}"
    );
    let metrics = crossfade::controller::Metrics::default();
    let mut described = metrics.described().to_vec();
    described.sort_by(|one, other| one.name.cmp(&other.name));
    for one in &described {
        *out += &row(&one.name, &one.kind, &one.labels, &one.help);
    }
}

/// The names of the labels of a family's first series.
fn labels(text: &str, name: &str) -> Vec<String> {
    let series = [format!("{name}{{"), format!("{name}_bucket{{")];
    let mut lines = text.lines();
    let labels = lines.find_map(|line| series.iter().find_map(|name| line.strip_prefix(&**name)));
    let labels = labels.and_then(|labels| labels.split_once('}'));
    let labels = labels.map_or("", |(labels, _)| labels).split(',');
    let names = labels.filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
    names.filter(|name| name != "le").collect()
}

#[test]
fn the_reference_is_up_to_date() {
    let mut text = String::from(
        "# Reference\n\nGenerated from the program by `make reference`; do not edit. See the [other pages](README.md) for \
         explanations.\n\n",
    );
    flags(&mut text);
    fields(&mut text);
    metrics(&mut text);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference.md");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "docs/reference.md is outdated: run `make reference`"
    );
}

/// The rules in `alerts.yaml` as a PrometheusRule of the Prometheus operator.
fn prometheus_rule(alerts: &str) -> String {
    let head = "# Generated from alerts.yaml by `make reference`. Do not edit.\napiVersion: monitoring.coreos.com/v1\n\
                kind: PrometheusRule\nmetadata:\n  name: crossfade\nspec:\n";
    let (_, groups) = alerts.split_once("\ngroups:\n").unwrap();
    let lines = groups.lines().map(|line| format!("  {line}\n"));
    format!("{head}  groups:\n{}", lines.collect::<String>())
}

#[test]
fn the_prometheus_rule_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring");
    let alerts = std::fs::read_to_string(folder.join("alerts.yaml")).unwrap();
    let (made, path) = (prometheus_rule(&alerts), folder.join("rules.yaml"));
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "rules.yaml is outdated: run `make reference`");
}

/// The documents and their texts.
fn documents() -> Vec<(PathBuf, String)> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "",
        "docs",
        "docs/walkthroughs",
        "deploy",
        "deploy/examples/plain",
        "deploy/helm/crossfade",
        "deploy/helm/crossfade-crds",
    ];
    let folders = folders.map(|folder| package.join(folder));
    let files = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = files.map(|entry| entry.unwrap().path());
    let documents = files.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    let documents: Vec<_> = documents
        .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
        .collect();
    assert!(documents.len() > 8, "{documents:?}");
    documents
}

#[test]
fn every_link_in_the_documents_resolves() {
    for (path, text) in documents() {
        for rest in text.split("](").skip(1) {
            let target = rest.split([')', '#']).next().unwrap();
            let is_here = !target.is_empty() && !target.contains("://");
            let there = path.parent().unwrap().join(target);
            assert!(!is_here || there.exists(), "{}: {target}", path.display());
        }
    }
}

#[test]
fn every_reason_that_the_controller_reports_is_explained() {
    // Every CamelCase reason of a condition or an Event in the sources, except for those that report success.
    let sources = [
        include_str!("../../src/rollout/conditions.rs"),
        include_str!("../../src/rollout/rules.rs"),
        include_str!("../../src/rollout/end.rs"),
        include_str!("../../src/controller/reconcile.rs"),
        include_str!("../../src/controller/status.rs"),
        include_str!("../../src/discovery/source/cluster/follower.rs"),
        include_str!("../../src/discovery/source/cluster/follower/withdrawal.rs"),
    ];
    let well = [
        "Accepted",
        "AsExpected",
        "NotPaused",
        "Serving",
        "True",
        "False",
        "Degraded",
        "NewFrontendReady",
    ];
    let is_reason = |text: &&str| {
        let mut letters = text.chars();
        let begins = letters
            .next()
            .is_some_and(|first| first.is_ascii_uppercase());
        begins && text.len() > 2 && letters.all(|letter| letter.is_ascii_alphanumeric())
    };
    let reasons: BTreeSet<&str> = sources
        .iter()
        .flat_map(|source| {
            source
                .split("#[cfg(test)]")
                .next()
                .unwrap()
                .split('"')
                .skip(1)
                .step_by(2)
        })
        .filter(is_reason)
        .filter(|reason| !well.contains(reason))
        .collect();
    assert!(reasons.len() > 15, "{reasons:?}");
    let pages = [
        include_str!("../../docs/operations.md"),
        include_str!("../../docs/controller.md"),
    ];
    let explained: BTreeSet<&str> = pages
        .iter()
        .flat_map(|page| page.split('`').skip(1).step_by(2))
        .collect();
    let silent: Vec<_> = reasons.difference(&explained).collect();
    assert!(silent.is_empty(), "neither page explains {silent:?}");
}

#[test]
fn the_operations_page_names_only_existing_metrics_and_has_advice_for_every_alert() {
    let page = include_str!("../../docs/operations.md");
    let words = || page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let reference = include_str!("../../docs/reference.md");
    for metric in words().filter(|word| word.starts_with("crossfade_")) {
        assert!(reference.contains(&format!("\n| `{metric}` |")), "{metric}");
    }
    let rules = include_str!("../../deploy/monitoring/alerts.yaml");
    let alerts = rules
        .lines()
        .filter_map(|line| line.split_once("- alert: "));
    let alerts: BTreeSet<&str> = alerts.map(|(_, alert)| alert).collect();
    let named = words().filter(|word| word.starts_with("Crossfade"));
    assert_eq!(named.collect::<BTreeSet<_>>(), alerts);
}
