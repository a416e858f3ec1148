//! Pods of the old frontends are deleted, or replaced by an upgrade, while streams are open.

use std::fs;
use std::process::Child;
use std::time::Duration;

use serde_json::{Deserializer, Value};
use tempfile::NamedTempFile;

use crate::fixture::{DRAIN, Fixture, SETTLE, eventually};
use crate::load::{Load, Shape, assert_none_failed};

const SHORT: Shape = Shape {
    words: 5,
    each_ms: 100,
};
/// Much longer than the proxy settles, and than Dynamo by default lets streams continue after SIGTERM.
const LONG: Shape = Shape {
    words: 100,
    each_ms: 200,
};

async fn until_gone(fixture: &Fixture, pod: &str) {
    eventually("the pod is gone", async || {
        let args = ["get", "pod", pod, "-o", "name", "--ignore-not-found"];
        fixture.cluster.kubectl(&args).is_empty()
    })
    .await;
}

/// Records every state of a pod. Polling would miss the last one.
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

    /// The last state of a pod that has been deleted.
    fn last(mut self) -> Value {
        let _ = self.watch.kill();
        let _ = self.watch.wait();
        let text = fs::read(self.states.path()).expect("the file exists");
        let states = Deserializer::from_slice(&text).into_iter::<Value>();
        states
            .map_while(Result::ok)
            .last()
            .expect("the pod existed")
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
    // As at the end of an update: all requests go to new, and long streams are still open on the old frontend, which must not end
    // before them.
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
    eventually("long streams through the pod", async || {
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
    assert_none_failed(&long.finish());
    assert_none_failed(&load.finish());
    // Longer than the settle time and shorter than the drain limit: the pod waited for the streams.
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
    eventually("long streams", async || {
        let plan = fixture.only_plan().await;
        plan["openStreams"]["old"].as_u64() >= Some(10)
    })
    .await;
    // To Kubernetes, any change of the sidecar's container is an upgrade.
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
    assert_none_failed(&long.finish());
    assert_none_failed(&load.finish());
}
