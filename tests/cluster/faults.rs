//! Generations that fail: what can be saved is.

use crate::fixture::{Fixture, within_patience};
use crate::load::{Load, Shape, assert_all_well, share};

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
    load.begun(150).await;
    let ended = load.finish();
    fixture.scale("new-worker", 1);
    assert_all_well(&ended);
}

/// Kills one frontend of a Dynamo namespace, as the kernel does when memory is short.
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

/// To Kubernetes a pod whose frontend is down is not ready, whatever its sidecar can do: there must be another pod.
#[tokio::test]
#[ignore = "in a cluster"]
async fn when_an_old_frontend_crashes_only_streams_that_it_had_begun_are_cut_and_honestly() {
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
    within_patience("streams of old through both pods", async || {
        let mut both = true;
        for sidecar in fixture.sidecars() {
            let plan = fixture.plan(sidecar).await;
            both &= plan["openStreams"]["old"].as_u64() >= Some(5);
        }
        both
    })
    .await;
    let load = Load::start(fixture.address, 50, SHAPE);
    load.begun(60).await;
    kill_a_frontend("dynamo-v1");
    load.enter(1);
    load.begun(200).await;
    // Whoever comes after the crash does not notice it.
    let after: Vec<_> = load.finish();
    let after: Vec<_> = after.into_iter().filter(|(phase, _)| *phase == 1).collect();
    assert_all_well(&after);
    let open = open.finish();
    let (whole, new) = share(&open, 0);
    println!(
        "{whole} of {} streams whole, {new} of them by new",
        open.len()
    );
    assert!((29..=31).contains(&new), "all that new carried, not {new}");
    assert!(whole > new, "the other pod's streams go on");
    assert!(whole < open.len(), "nothing was cut: did it crash?");
    for error in open.iter().filter_map(|(_, end)| end.as_ref().err()) {
        assert!(error.contains(r#""error""#), "no honest end: {error}");
    }
    fixture.rolled_out("old-frontend");
    fixture.scale("old-frontend", 1);
}
