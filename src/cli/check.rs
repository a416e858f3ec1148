//! `crossfade check`: the plan files to check, and the form of the report.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::output::print;
use crate::discovery::read_text;
use crate::printable::{printable, write_json_pretty};
use crate::resource::{self, MAX_BYTES, Problems, Report};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crossfade check plan.yaml
  kubectl get duc my-update -o yaml | crossfade check -
  crossfade check plans/*.yaml -o json")]
pub struct CheckArgs {
    /// Manifests, each of a `DynamoUpdateConfig` or a `DynamoRollout`; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: CheckForm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CheckForm {
    Text,
    Json,
}

impl CheckArgs {
    /// Checks every file, and prints its problems.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let checked: Vec<_> = self.files.iter().map(|path| (path, check(path))).collect();
        if self.output == CheckForm::Text {
            for (path, report) in &checked {
                if let Err(error) = report {
                    eprintln!("{}: {error}", printable(path.display()));
                }
            }
        }
        let text = match self.output {
            CheckForm::Text => {
                let texts = checked.iter().map(|(path, report)| text(path, report));
                texts.collect::<String>().into_bytes()
            }
            CheckForm::Json => {
                let files: Vec<_> = checked
                    .iter()
                    .map(|(path, report)| json(path, report))
                    .collect();
                let mut text = Vec::new();
                write_json_pretty(&mut text, &json!({ "files": files }))
                    .expect("a Vec takes every write");
                text.push(b'\n');
                text
            }
        };
        let all_good = checked
            .iter()
            .all(|(_, report)| report.as_ref().is_ok_and(|report| report.summary.is_some()));
        print(&text, ExitCode::from(u8::from(!all_good)), 1)
    }
}

/// The result for a file, or why it cannot be read.
fn check(path: &Path) -> Result<Report, Problems> {
    let text = match path == Path::new("-") {
        true => standard_input(),
        false => read_text(path),
    };
    text.map(|text| resource::check(&text))
}

fn standard_input() -> Result<String, Problems> {
    let mut bytes = Vec::new();
    // One byte more than allowed, so that the size is reported as for a file.
    let limited = io::stdin().lock().take(MAX_BYTES as u64 + 1);
    let read = { limited }.read_to_end(&mut bytes);
    read.map_err(|error| Problems::one("", format!("cannot be read: {error}")))?;
    String::from_utf8(bytes).map_err(|_| Problems::one("", "is not UTF-8 text"))
}

fn text(path: &Path, report: &Result<Report, Problems>) -> String {
    let name = printable(path.display());
    let Ok(report) = report else {
        return String::new();
    };
    let problems = report
        .problems
        .iter()
        .map(|problem| format!("{name}: {problem}\n"));
    let notes = report.notes.iter();
    let notes = notes.map(|note| format!("{name}: note: {}\n", printable(note)));
    let summary = report.summary.iter();
    let summary = summary.map(|summary| format!("{name}: ok: {}\n", printable(summary)));
    problems.chain(notes).chain(summary).collect()
}

fn json(path: &Path, report: &Result<Report, Problems>) -> serde_json::Value {
    let (problems, report) = match report {
        Ok(report) => (&report.problems, Some(report)),
        Err(problems) => (problems, None),
    };
    let problems = problems.iter().map(
        |problem| json!({"path": problem.path, "line": problem.line, "message": problem.message}),
    );
    let summary = report.and_then(|report| report.summary.as_ref());
    json!({
        "file": path.display().to_string(),
        "valid": summary.is_some(),
        "summary": summary,
        "problems": problems.collect::<Vec<_>>(),
        "notes": report.map_or(&[][..], |report| &report.notes),
    })
}
