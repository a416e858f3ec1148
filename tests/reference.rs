//! `docs/reference.md` is what the program says of itself: its flags, the fields of the resource, its metrics. The other documents
//! name what exists.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use crossfade::cli::Cli;
use crossfade::resource;
use crossfade::split::{Assignment, Generation, Reason};
use crossfade::sse::{Api, Outcome};
use crossfade::telemetry::{Metrics, Observed};
use serde_json::Value;

/// Set it to write the file anew.
const WRITE: &str = "CROSSFADE_WRITE_REFERENCE";

/// For a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn flags(out: &mut String) {
    out.push_str("## Command line\n");
    let mut command = Cli::command();
    command.build();
    for sub in command.get_subcommands() {
        if sub.get_name() == "help" {
            continue;
        }
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(out, "\n### `crossfade {}`\n\n{about}.\n", sub.get_name());
        out.push_str("| argument | variable | default | |\n| --- | --- | --- | --- |\n");
        for argument in sub.get_arguments() {
            if argument.get_id() == "help" {
                continue;
            }
            let value = argument
                .get_value_names()
                .filter(|_| argument.get_action().takes_values());
            let value = value
                .and_then(|names| names.first())
                .map(ToString::to_string);
            let name = match (argument.get_long(), value) {
                (Some(long), Some(value)) => format!("--{long} {value}"),
                (Some(long), None) => format!("--{long}"),
                (None, _) => argument.get_id().to_string().to_uppercase(),
            };
            let variable = argument
                .get_env()
                .map(|name| format!("`{}`", name.display()));
            // A switch is off by default, which needs no words.
            let default = argument
                .get_default_values()
                .iter()
                .filter(|value| argument.get_action().takes_values() && !value.is_empty());
            let default: Vec<_> = default
                .map(|value| format!("`{}`", value.display()))
                .collect();
            let help = argument
                .get_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let _ = writeln!(
                out,
                "| `{name}` | {} | {} | {} |",
                variable.unwrap_or_default(),
                default.join(" "),
                cell(&help)
            );
        }
    }
}

fn fields(out: &mut String) {
    let crd = resource::crd();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    for part in ["spec", "status"] {
        let _ = writeln!(
            out,
            "\n## Fields of `{part}`\n\n| field | type | |\n| --- | --- | --- |"
        );
        rows(&schema[part], part, out);
    }
}

fn rows(schema: &Value, path: &str, out: &mut String) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let kind = field["type"].as_str().unwrap_or("any");
        let said = field["description"].as_str().unwrap_or_default();
        let _ = writeln!(out, "| `{path}` | {kind} | {} |", cell(said));
        rows(field, &path, out);
        rows(&field["items"], &format!("{path}[]"), out);
    }
}

fn metrics(out: &mut String) {
    out.push_str("\n## Metrics\n\n| metric | type | |\n| --- | --- | --- |\n");
    let metrics = Metrics::default();
    // A family without series is not shown.
    let assignment = Assignment {
        generation: Generation::Old,
        reason: Reason::Weighted,
    };
    metrics.ended(assignment, Api::Chat, Outcome::Completed);
    let text = String::from_utf8(metrics.render(&Observed::default())).unwrap();
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').unwrap().1;
        } else if let Some(rest) = line.strip_prefix("# TYPE crossfade_") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let _ = writeln!(out, "| `crossfade_{name}` | {kind} | {} |", cell(help));
        }
    }
}

#[test]
fn the_reference_is_what_the_program_says() {
    let mut text = String::from(
        "# Reference\n\nMade from the program itself by `make reference`; do not edit. The prose is in the [README](../README.md).\n\n",
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
        "docs/reference.md has drifted: `make reference` writes it anew"
    );
}

/// The documents for people, with their texts.
fn documents() -> Vec<(PathBuf, String)> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["", "docs", "deploy"].map(|folder| package.join(folder));
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
fn every_link_of_the_documents_leads_somewhere() {
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
fn the_operations_page_names_metrics_and_alerts_that_exist_and_no_alert_is_without_advice() {
    let page = include_str!("../docs/operations.md");
    let words = || page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let reference = include_str!("../docs/reference.md");
    for metric in words().filter(|word| word.starts_with("crossfade_")) {
        assert!(reference.contains(&format!("| `{metric}` |")), "{metric}");
    }
    let rules = include_str!("../deploy/monitoring/rules.yaml");
    let alerts = rules
        .lines()
        .filter_map(|line| line.split_once("- alert: "));
    let alerts: BTreeSet<&str> = alerts.map(|(_, alert)| alert).collect();
    let named = words().filter(|word| word.starts_with("Crossfade"));
    assert_eq!(named.collect::<BTreeSet<_>>(), alerts);
}
