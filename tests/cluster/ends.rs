//! Pods that end while streams run through them: deleted, or replaced by an upgrade.

use std::fs;
use std::process::Child;
use std::time::Duration;

use serde_json::{Deserializer, Value};
use tempfile::NamedTempFile;

use crate::fixture::{DRAIN, Fixture, SETTLE, within_patience};
use crate::load::{Load, Shape, assert_all_well};

const SHORT: Shape = Shape {
    words: 5,
    each_ms: 100,
};
/// Far longer than the proxy settles, and than Dynamo lets streams run by default once it is told to end.
const LONG: Shape = Shape {
    words: 100,
    each_ms: 200,
};

async fn until_gone(fixture: &Fixture, pod: &str) {
    within_patience("the pod is gone", async || {
        let args = ["get", "pod", pod, "-o", "name", "--ignore-not-found"];
        fixture.cluster.kubectl(&args).is_empty()
    })
    .await;
}

/// Every state of a pod from now on: who only asks now and then misses the last.
struct Watched {
    watch: Child,
    states: NamedTempFile,
}

impl Watched {
    fn begin(fixture: &Fixture, pod: &str) -> Self {
        let states = NamedTempFile::new().expect("a file");
        let mut command = fixture.cluster.command();
        command.args(["get", "pod", pod, "--watch", "-o", "json"]);
        command.stdout(states.reopen().expect("the same file"));
        Self {
            watch: command.spawn().expect("kubectl starts"),
            states,
        }
    }

    /// The last one of a pod that is gone.
    fn last(mut self) -> Value {
        let _ = self.watch.kill();
        let _ = self.watch.wait();
        let text = fs::read(self.states.path()).expect("it is ours");
        let states = Deserializer::from_slice(&text).into_iter::<Value>();
        states.map_while(Result::ok).last().expect("it was there")
    }
}

fn state<'a>(pod: &'a Value, kind: &str, name: &str) -> &'a Value {
    let containers = pod["status"][kind].as_array().expect("containers");
    let mut containers = containers.iter();
    let container = containers.find(|container| container["name"] == name);
    &container.expect("the container")["state"]
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_deleted_pod_ends_after_its_last_stream_and_the_frontend_before_the_sidecar() {
    let fixture = Fixture::ready().await;
    // As an update ends: new has all by now, and what is long still runs on the old frontend that must not end before it.
    fixture.update(0).await;
    fixture.scale("old-frontend", 2);
    fixture.in_force(0).await;
    let long = Load::once(fixture.address, 40, LONG);
    let pods = fixture.old_pods();
    let pod = pods[0]["metadata"]["name"].as_str().expect("a name");
    let admin = format!(
        "{}:9464",
        pods[0]["status"]["podIP"].as_str().expect("an address")
    );
    let admin = admin.parse().expect("an address");
    within_patience("long streams through the pod", async || {
        let plan = fixture.plan(admin).await;
        plan["openStreams"]["old"].as_u64() >= Some(10)
    })
    .await;
    fixture.patch(100).await;
    let load = Load::start(fixture.address, 20, SHORT);
    let watched = Watched::begin(&fixture, pod);
    let began = tokio::time::Instant::now();
    fixture
        .cluster
        .kubectl(&["delete", "pod", pod, "--wait=false"]);
    until_gone(&fixture, pod).await;
    let took = began.elapsed();
    println!("the pod took {took:?}");
    assert_all_well(&long.finish());
    assert_all_well(&load.finish());
    // Longer than it settles and shorter than its drain limit: the streams decided.
    assert!(took > Duration::from_secs(SETTLE + 6), "{took:?}");
    assert!(took < Duration::from_secs(SETTLE + DRAIN), "{took:?}");
    let last = watched.last();
    let main = &state(&last, "containerStatuses", "main")["terminated"];
    let sidecar = &state(&last, "initContainerStatuses", "crossfade")["terminated"];
    println!("main: {main}\nsidecar: {sidecar}");
    assert_eq!(
        (&main["exitCode"], &sidecar["exitCode"]),
        (&0.into(), &0.into()),
        "{last}"
    );
    let finished = |container: &Value| container["finishedAt"].as_str().map(str::to_owned);
    assert!(
        finished(main).is_some() && finished(main) <= finished(sidecar),
        "{last}"
    );
    fixture.scale("old-frontend", 1);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn an_upgrade_of_crossfade_itself_loses_no_stream() {
    let fixture = Fixture::ready().await;
    fixture.update(50).await;
    let load = Load::start(fixture.address, 50, SHORT);
    let long = Load::once(fixture.address, 20, LONG);
    within_patience("long streams", async || {
        let plan = fixture.only_plan().await;
        plan["openStreams"]["old"].as_u64() >= Some(10)
    })
    .await;
    // Any change of the sidecar's container is an upgrade to Kubernetes.
    let patch = r#"{"spec":{"template":{"spec":{"initContainers":[
        {"name":"crossfade","env":[{"name":"CROSSFADE_LOG","value":"debug"}]}]}}}}"#;
    let args = [
        "patch",
        "deployment",
        "old-frontend",
        "--type=strategic",
        "-p",
        patch,
    ];
    fixture.cluster.kubectl(&args);
    fixture.rolled_out("old-frontend");
    fixture.in_force(50).await;
    assert_all_well(&long.finish());
    assert_all_well(&load.finish());
}
