//! `crossfade check`: the plan files to check, and the form of the report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::manifest_file::{decode, read_bytes};
use super::output::print;
use crate::files::explain;
use crate::printable::{printable, write_json_pretty};
use crate::resource::{self, MAX_BYTES, Problems, ValidationReport};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crossfade check plan.yaml
  kubectl get duc my-update -o yaml | crossfade check -
  crossfade check plans/*.yaml -o json")]
pub struct CheckArgs {
    /// Manifests of `DynamoUpdateConfig`s and `DynamoRollout`s; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: CheckFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CheckFormat {
    Text,
    Json,
}

/// A document of a file.
struct Checked<'a> {
    path: &'a Path,
    /// Counted from 1.
    number: usize,
    is_only: bool,
    /// The result, or why the file cannot be read.
    report: Result<ValidationReport, Problems>,
}

impl CheckArgs {
    /// Checks every document of every file, and prints the problems.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let checked: Vec<_> = self.files.iter().flat_map(|path| check(path)).collect();
        if self.output == CheckFormat::Text {
            for Checked { path, report, .. } in &checked {
                if let Err(error) = report {
                    explain(format_args!("{}: {error}", printable(path.display())));
                }
            }
        }
        let text = match self.output {
            CheckFormat::Text => checked.iter().map(text).collect::<String>().into_bytes(),
            CheckFormat::Json => {
                let files: Vec<_> = checked.iter().map(json).collect();
                let mut text = Vec::new();
                write_json_pretty(&mut text, &json!({ "files": files }))
                    .expect("writing to a Vec does not fail");
                text.push(b'\n');
                text
            }
        };
        let is_good = |report: &ValidationReport| report.summary.is_some();
        let all_good = { checked.iter() }.all(|checked| checked.report.as_ref().is_ok_and(is_good));
        print(&text, ExitCode::from(u8::from(!all_good)), 1)
    }
}

fn check(path: &Path) -> Vec<Checked<'_>> {
    let text = read_bytes(path, MAX_BYTES).and_then(decode);
    let reports = match text {
        Ok(text) => resource::check(&text).into_iter().map(Ok).collect(),
        Err(message) => vec![Err(Problems::one("", message))],
    };
    let is_only = reports.len() == 1;
    let reports = reports.into_iter().zip(1..);
    let checked = reports.map(|(report, number)| Checked {
        path,
        number,
        is_only,
        report,
    });
    checked.collect()
}

fn text(checked: &Checked<'_>) -> String {
    let Ok(report) = &checked.report else {
        return String::new();
    };
    let file = printable(checked.path.display());
    let name = match checked.is_only {
        true => file.to_string(),
        false => format!("{file}: document {}", checked.number),
    };
    let problems = report.problems.iter().map(|problem| {
        // As `inject` names a place: "document 2, line 7".
        let joint = match !checked.is_only && problem.line.is_some() {
            true => ",",
            false => ":",
        };
        format!("{name}{joint} {problem}\n")
    });
    let notes = report.notes.iter();
    let notes = notes.map(|note| format!("{name}: note: {}\n", printable(note)));
    let summary = report.summary.iter();
    let summary = summary.map(|summary| format!("{name}: ok: {}\n", printable(summary)));
    problems.chain(notes).chain(summary).collect()
}

fn json(checked: &Checked<'_>) -> serde_json::Value {
    let (problems, report) = match &checked.report {
        Ok(report) => (&report.problems, Some(report)),
        Err(problems) => (problems, None),
    };
    let problems = problems.iter().map(
        |problem| json!({"path": problem.path, "line": problem.line, "message": problem.message}),
    );
    let summary = report.and_then(|report| report.summary.as_ref());
    json!({
        "file": checked.path.display().to_string(),
        "document": checked.number,
        "valid": summary.is_some(),
        "summary": summary,
        "problems": problems.collect::<Vec<_>>(),
        "notes": report.map_or(&[][..], |report| &report.notes),
    })
}
