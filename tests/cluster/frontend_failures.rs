//! A frontend has no model or crashes: requests fail over, and only streams with content are cut.

use crate::fixture::{Fixture, eventually};
use crate::load::{Load, Shape, assert_none_failed, share};

const SHAPE: Shape = Shape {
    words: 10,
    each_ms: 100,
};

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_new_frontend_that_is_ready_but_has_no_model_costs_no_request() {
    let fixture = Fixture::ready().await;
    fixture.scale("new-worker", 0);
    fixture.without_model("new").await;
    fixture.update(50).await;
    let load = Load::start(fixture.address, 50, SHAPE);
    load.wait_for_started(150).await;
    let ended = load.finish();
    fixture.scale("new-worker", 1);
    assert_none_failed(&ended);
}

/// Kills one frontend of a Dynamo namespace, as the kernel does when it is out of memory.
fn kill_a_frontend(namespace: &str) {
    let wanted = format!("dynamo.frontend\0--namespace\0{namespace}\0");
    let processes = std::fs::read_dir("/proc").expect("Linux");
    let mut paths = processes.map(|entry| entry.expect("an entry").path());
    let path = paths.find(|path| {
        let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(&wanted)
    });
    let path = path.unwrap_or_else(|| panic!("no frontend of {namespace} runs"));
    let pid = path.file_name().expect("a name").to_string_lossy();
    let pid = pid.parse().expect("a number");
    // SAFETY: a signal to a process of this cluster's own process namespace.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

/// A pod whose frontend is down is not ready, even if its sidecar could serve. So there must be another pod.
#[tokio::test]
#[ignore = "in a cluster"]
async fn when_an_old_frontend_crashes_only_its_started_streams_are_cut_and_get_an_error_event() {
    let fixture = Fixture::ready().await;
    if !fixture.cluster.is_own() {
        println!("skipped: no processes of this cluster can be killed");
        return;
    }
    fixture.scale("old-frontend", 2);
    fixture.update(50).await;
    let long = Shape {
        words: 100,
        ..SHAPE
    };
    let open = Load::once(fixture.address, 60, long);
    eventually("streams of old through both pods", async || {
        let mut both = true;
        for sidecar in fixture.sidecars() {
            let plan = fixture.plan(sidecar).await;
            both &= plan["openStreams"]["old"].as_u64() >= Some(5);
        }
        both
    })
    .await;
    let load = Load::start(fixture.address, 50, SHAPE);
    load.wait_for_started(60).await;
    kill_a_frontend("dynamo-v1");
    load.enter_phase(1);
    load.wait_for_started(200).await;
    // Requests that start after the crash are not affected.
    let after: Vec<_> = load.finish();
    let after: Vec<_> = after.into_iter().filter(|(phase, _)| *phase == 1).collect();
    assert_none_failed(&after);
    let open = open.finish();
    let (whole, new) = share(&open, 0);
    println!(
        "{whole} of {} streams complete, {new} of them from new",
        open.len()
    );
    assert!((29..=31).contains(&new), "not all streams of new: {new}");
    assert!(whole > new, "the streams of the other pod were cut");
    assert!(
        whole < open.len(),
        "no stream was cut: did the frontend crash?"
    );
    for error in open.iter().filter_map(|(_, end)| end.as_ref().err()) {
        assert!(error.contains(r#""error""#), "no error event: {error}");
    }
    fixture.rolled_out("old-frontend");
    fixture.scale("old-frontend", 1);
}
