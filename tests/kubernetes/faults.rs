//! Generations that fail: what can be saved is.

use crate::load::{Load, Shape, assert_all_well, share, stream};
use crate::stage::{Stage, within_patience};

const SHAPE: Shape = Shape {
    words: 10,
    each_ms: 100,
};

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_new_frontend_that_is_ready_but_has_no_model_costs_no_request() {
    let stage = Stage::ready().await;
    stage.scale("new-worker", 0);
    stage.update(50).await;
    let load = Load::start(stage.address, 50, SHAPE);
    load.begun(150).await;
    let ended = load.finish();
    stage.scale("new-worker", 1);
    assert_all_well(&ended);
}

/// Kills the first process of the frontends of a Dynamo namespace, as the kernel does when memory is short.
fn kill_frontend(namespace: &str) {
    let wanted = format!("dynamo.frontend\0--namespace\0{namespace}");
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc").expect("Linux") {
        let path = entry.expect("an entry").path();
        let Ok(command) = std::fs::read(path.join("cmdline")) else {
            continue;
        };
        if String::from_utf8_lossy(&command).contains(&wanted) {
            let pid = path.file_name().expect("a name").to_string_lossy();
            let pid = pid.parse().expect("a number");
            // SAFETY: a signal to a process of this cluster's own process namespace.
            killed += i32::from(unsafe { libc::kill(pid, libc::SIGKILL) } == 0);
        }
    }
    assert!(killed > 0, "no frontend of {namespace} runs");
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn when_the_old_frontend_crashes_new_answers_all_that_had_no_content_yet() {
    let stage = Stage::ready().await;
    if !stage.cluster.is_own() {
        println!("skipped: no processes of this cluster can be killed");
        return;
    }
    stage.update(50).await;
    let long = Shape {
        words: 100,
        ..SHAPE
    };
    let open = Load::once(stage.address, 40, long);
    within_patience("streams of both", async || {
        let plan = stage.only_plan().await;
        let open = |side: &str| plan["openStreams"][side].as_u64();
        open("old") == Some(20) && open("new") == Some(20)
    })
    .await;
    kill_frontend("dynamo-v1");
    // From now on nobody may notice.
    let load = Load::start(stage.address, 50, SHAPE);
    load.begun(150).await;
    assert_all_well(&load.finish());
    let open = open.finish();
    assert_eq!(share(&open, 0), (20, 20), "only new's streams, all of them");
    for error in open.iter().filter_map(|(_, end)| end.as_ref().err()) {
        assert!(error.contains(r#""error""#), "no honest end: {error}");
    }
    stage.rolled_out("old-frontend");
    within_patience("old serves again", async || {
        stream(stage.address, SHAPE).await.as_deref() == Ok("old")
    })
    .await;
}
