//! Realistic manifests of frontends, and how tests inject them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};

use crossfade::inject::{Error, Options, Report, inject};

pub const IMAGE: &str = "registry.example/crossfade:0.1.0";

pub fn corpus() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/inject");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.extend(
        [
            "dgd-new.yaml",
            "plain/frontend.yaml",
            "plain/new/frontend.yaml",
        ]
        .map(|name| {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("deploy/examples")
                .join(name)
        }),
    );
    files.sort();
    assert!(files.len() > 15, "{files:?}");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path, text)
    };
    files.into_iter().map(read).collect()
}

pub fn injected(text: &str) -> Result<Report, Error> {
    injected_with(text, &Options::default())
}

pub fn injected_with(text: &str, options: &Options) -> Result<Report, Error> {
    inject(text, options, Some(IMAGE))
}

/// A Deployment with one container. `container` holds its fields, indented by eight columns.
pub fn deployment(container: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: server}}\nspec:\n  selector: {{matchLabels: {{app: a}}}}\n  \
         template:\n    metadata: {{labels: {{app: a}}}}\n    spec:\n      containers:\n      - name: server\n{container}"
    )
}

/// The lines of `text` without indentation, so that a test can search for a piece of YAML at any depth.
pub fn flat(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}
