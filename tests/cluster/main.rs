//! Runs crossfade in a real cluster: two generations of real Dynamo, the sidecar from `deploy/`, and clients that connect to the
//! address of the Service.
//!
//! The scenarios are ignored tests. The one test that is not ignored starts a cluster and runs them inside it. To use an existing
//! cluster, set CROSSFADE_TEST_IMAGE and CROSSFADE_TEST_DYNAMO_IMAGE, and run
//! `CROSSFADE_TEST_CLUSTER=existing cargo test --test cluster -- --ignored --test-threads=1` from where its Services can be
//! reached.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test may panic"
)]

#[path = "../support/cluster.rs"]
mod cluster;
#[path = "../support/dynamo.rs"]
mod dynamo;
#[path = "../support/helm.rs"]
mod helm;
#[path = "../support/rig.rs"]
mod rig;

mod fixture;
mod load;
mod official_clients;
mod operator;
#[path = "../dynamo/pair.rs"]
#[allow(dead_code, reason = "the scenarios only need the requests")]
mod pair;
#[path = "../dynamo/continuation/streams.rs"]
#[allow(dead_code, reason = "they use their own part")]
mod streams;

mod event_log;
mod rollout;

mod analysis;
mod charts;
mod conflicting_updates;
mod continuation;
mod examples;
mod external_name;
mod frontend_failures;
mod full_update;
mod load_balancing;
mod lost_workers;
mod managed;
mod manual_changes;
mod manual_split;
mod pod_termination;
mod prefill_decode;
mod process_faults;
mod status;
mod three_generations;
mod walkthroughs;
mod without_api_server;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The images that the documents name: those of crossfade, Dynamo, and vLLM. Each generation of vLLM has its own image.
const RELEASED: &str = "registry.example/crossfade";
const DYNAMO: [&str; 5] = [
    fixture::STAND_IN,
    "nvcr.io/nvidia/ai-dynamo/dynamo-frontend:1.6.1",
    "nvcr.io/nvidia/ai-dynamo/dynamo-frontend:1.7.0",
    "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1",
    "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.7.0",
];
const VLLM: [(&str, &str); 2] = [
    ("old", "vllm/vllm-openai:v0.11.0"),
    ("new", "vllm/vllm-openai:v0.12.0"),
];

/// The program under test: `CROSSFADE_BIN`, or the debug build.
fn program() -> PathBuf {
    let named = std::env::var_os("CROSSFADE_BIN").map(PathBuf::from);
    named.unwrap_or_else(|| env!("CARGO_BIN_EXE_crossfade").into())
}

#[test]
fn the_scenarios_hold_in_a_cluster_with_real_dynamo() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let crossfade = directory.join("crossfade-image.tar");
    let names = format!(
        "{},{RELEASED}:{}",
        fixture::IMAGE,
        env!("CARGO_PKG_VERSION")
    );
    cluster::image(&program(), "/crossfade", &names, &crossfade);
    let shell = directory.join("shell-image.tar");
    cluster::image(
        Path::new("/bin/busybox"),
        "/bin/busybox",
        fixture::SHELL,
        &shell,
    );
    let dynamo = stand_in("dynamo", &[], "/usr/bin/python3", &DYNAMO.join(","));
    let mut images = vec![crossfade, shell, dynamo];
    for (generation, image) in VLLM {
        let generation = format!("-DGENERATION=\"{generation}\"");
        images.push(stand_in(
            &image.replace(['/', ':'], "-"),
            &[&generation],
            "/usr/bin/vllm",
            image,
        ));
    }
    cluster::run_scenarios(&images);
}

/// Builds an image with the fake model server.
fn stand_in(file: &str, flags: &[&str], inside: &str, name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = directory.join(format!("{file}-stand-in"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/stand_in.c");
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-static", "-Os", "-Wall", "-Werror"])
        .args(flags)
        .arg("-o");
    let compiled = compiler
        .arg(&program)
        .arg(source)
        .status()
        .expect("a C compiler");
    assert!(compiled.success());
    let image = directory.join(format!("{file}-image.tar"));
    cluster::image(&program, inside, name, &image);
    image
}
