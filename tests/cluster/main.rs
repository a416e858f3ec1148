//! crossfade in a real cluster: real Dynamo in the pods of two generations, the sidecar added as `deploy/` adds it, a load
//! through the Service's address.
//!
//! The scenarios are ignored tests: they run in a cluster, which the one test that is not ignored puts around them. Against a
//! cluster that exists: `CROSSFADE_TEST_CLUSTER=existing cargo test --test cluster -- --ignored --test-threads=1`, from
//! where its Services can be reached, with CROSSFADE_TEST_IMAGE and CROSSFADE_TEST_DYNAMO_IMAGE.

#[path = "../support/cluster.rs"]
mod cluster;
#[path = "../support/dynamo.rs"]
mod dynamo;
#[path = "../support/rig.rs"]
mod rig;

mod load;
#[path = "../dynamo/pair.rs"]
#[allow(dead_code, reason = "only a way to ask is of use here")]
mod pair;
mod stage;

mod chronicle;
mod rollout;

mod alias;
mod contest;
mod ends;
mod examples;
mod fade;
mod faults;
mod looks;
mod rollout_fade;
mod rollout_faults;
mod rollout_halves;
mod rollout_hands;
mod rollout_losses;
mod rollout_three;
mod spread;
mod without_api_server;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program under test: `make test` names the release build.
fn program() -> PathBuf {
    let named = std::env::var_os("CROSSFADE_BIN").map(PathBuf::from);
    named.unwrap_or_else(|| env!("CARGO_BIN_EXE_crossfade").into())
}

#[test]
fn the_scenarios_hold_in_a_cluster_with_real_dynamo() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let crossfade = directory.join("crossfade-image.tar");
    cluster::image(&program(), "/crossfade", stage::IMAGE, &crossfade);
    let shell = directory.join("shell-image.tar");
    cluster::image(
        Path::new("/bin/busybox"),
        "/bin/busybox",
        stage::SHELL,
        &shell,
    );
    let stand_in = directory.join("dynamo-stand-in");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/stand_in.c");
    let mut compiler = Command::new("gcc");
    let compiler = compiler.args(["-static", "-Os", "-o"]).arg(&stand_in);
    let compiled = compiler.arg(source).status().expect("a C compiler");
    assert!(compiled.success());
    let dynamo = directory.join("dynamo-image.tar");
    cluster::image(&stand_in, "/usr/bin/python3", stage::STAND_IN, &dynamo);
    cluster::run_scenarios(&[crossfade, shell, dynamo]);
}
