//! crossfade in a real cluster: real Dynamo in the pods of two generations, the sidecar added as `deploy/` adds it, a load
//! through the Service's address.
//!
//! The scenarios are ignored tests: they run in a cluster, which the one test that is not ignored puts around them. Against a
//! cluster that exists: `CROSSFADE_TEST_CLUSTER=existing cargo test --test cluster -- --ignored --test-threads=1`, from
//! where its Services can be reached, with CROSSFADE_TEST_IMAGE and CROSSFADE_TEST_DYNAMO_IMAGE.

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
mod operator;
#[path = "../dynamo/pair.rs"]
#[allow(dead_code, reason = "only a way to ask is of use here")]
mod pair;
#[path = "../dynamo/continuation/streams.rs"]
#[allow(dead_code, reason = "the official client is not in the cluster")]
mod streams;

mod chronicle;
mod rollout;

mod alias;
mod charts;
mod contest;
mod continuation;
mod ends;
mod examples;
mod fade;
mod faults;
mod looks;
mod managed;
mod rollout_fade;
mod rollout_faults;
mod rollout_halves;
mod rollout_hands;
mod rollout_losses;
mod rollout_three;
mod spread;
mod verdict;
mod walkthroughs;
mod without_api_server;

use std::path::{Path, PathBuf};
use std::process::Command;

/// As the documents name the images: of crossfade, of Dynamo, and of vLLM, where each generation has its own.
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

/// The program under test: a release build, if one is given.
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

/// An image with the program that stands in for model servers.
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
