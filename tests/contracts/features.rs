//! What is compiled by whom: an embedder of the layer gets what it asks for, and `make demo` what the demo shows.

use std::collections::BTreeSet;
use std::process::Command;

/// The crates that the library needs with these features, at run time.
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

/// What only one feature needs.
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
fn each_feature_brings_its_own_crates_and_those_of_no_other() {
    assert_split("kube", &[KUBE], &[OTLP, TERMINAL, MANUAL]);
    assert_split("otlp", &[OTLP], &[KUBE, TERMINAL, MANUAL]);
    assert_split("demo", &[TERMINAL], &[KUBE, OTLP, MANUAL]);
    assert_split("default", &[KUBE, OTLP, TERMINAL, MANUAL], &[]);
}
