//! crossfade in a real cluster: real Dynamo in the pods of two generations, the sidecar added as `deploy/` adds it, a load
//! through the Service's address.
//!
//! The scenarios are ignored tests: they run in a cluster, which the one test that is not ignored puts around them. Against a
//! cluster that exists: `CROSSFADE_TEST_CLUSTER=existing cargo test --test kubernetes -- --ignored --test-threads=1`, from
//! where its Services can be reached, with CROSSFADE_TEST_IMAGE and CROSSFADE_TEST_DYNAMO_IMAGE.

#[path = "support/cluster.rs"]
mod cluster;
#[path = "support/dynamo.rs"]
mod dynamo;
#[path = "support/rig.rs"]
mod rig;

#[path = "kubernetes/load.rs"]
mod load;
#[path = "dynamo/pair.rs"]
#[allow(dead_code, reason = "only a way to ask is of use here")]
mod pair;
#[path = "kubernetes/stage.rs"]
mod stage;

#[path = "kubernetes/chronicle.rs"]
mod chronicle;
#[path = "kubernetes/rollout.rs"]
mod rollout;

#[path = "kubernetes/contest.rs"]
mod contest;
#[path = "kubernetes/ends.rs"]
mod ends;
#[path = "kubernetes/examples.rs"]
mod examples;
#[path = "kubernetes/fade.rs"]
mod fade;
#[path = "kubernetes/faults.rs"]
mod faults;
#[path = "kubernetes/looks.rs"]
mod looks;
#[path = "kubernetes/rollout_fade.rs"]
mod rollout_fade;
#[path = "kubernetes/rollout_faults.rs"]
mod rollout_faults;
#[path = "kubernetes/rollout_halves.rs"]
mod rollout_halves;
#[path = "kubernetes/rollout_hands.rs"]
mod rollout_hands;
#[path = "kubernetes/rollout_losses.rs"]
mod rollout_losses;
#[path = "kubernetes/rollout_three.rs"]
mod rollout_three;
#[path = "kubernetes/spread.rs"]
mod spread;
#[path = "kubernetes/without_api_server.rs"]
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
