//! Cargo features: an embedder of the layer compiles only what it enables, and `make demo` only what the demo needs.

use std::collections::BTreeSet;
use std::process::Command;

/// The runtime dependencies of the library with these features.
fn crates(features: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--edges=normal", "--prefix=none"])
        .args([
            "--format={lib}",
            "--no-default-features",
            "--features",
            features,
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let crates = String::from_utf8(output.stdout).expect("names are text");
    crates.lines().map(str::to_owned).collect()
}

/// The crates that only one feature needs.
const KUBE: &[&str] = &["kube", "kube_client", "k8s_openapi"];
const OTLP: &[&str] = &["opentelemetry_otlp"];
const TERMINAL: &[&str] = &["ratatui", "crossterm", "clap"];
const MANUAL: &[&str] = &["clap_mangen", "clap_complete"];

fn assert_split(features: &str, with: &[&[&str]], without: &[&[&str]]) {
    let crates = crates(features);
    for name in with.concat() {
        assert!(
            crates.contains(name),
            "{features:?} lacks {name}: {crates:?}"
        );
    }
    for name in without.concat() {
        assert!(!crates.contains(name), "{features:?} compiles {name}");
    }
}

#[test]
fn the_library_alone_has_no_cluster_terminal_manual_or_exporter() {
    assert_split("", &[&["hyper", "rustls"]], &[KUBE, OTLP, TERMINAL, MANUAL]);
}

#[test]
fn each_feature_adds_only_its_own_crates() {
    assert_split("kube", &[KUBE], &[OTLP, TERMINAL, MANUAL]);
    assert_split("otlp", &[OTLP], &[KUBE, TERMINAL, MANUAL]);
    assert_split("demo", &[TERMINAL], &[KUBE, OTLP, MANUAL]);
    assert_split("default", &[KUBE, OTLP, TERMINAL, MANUAL], &[]);
}
