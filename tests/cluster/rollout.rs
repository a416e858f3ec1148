//! An update whose split the controller sets: assertions about it, and faults to inject.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fixture::{CONTROLLER, Fixture, PATIENCE, UPDATE, eventually};
use crate::load::{FinishedStream, Load, Shape, share};
use crate::rig;
use crate::rig::proxy::Metrics;

pub const SHAPE: Shape = Shape {
    words: 10,
    each_ms: 100,
};

/// A fixture with the controller and an update from old to new.
pub struct Rollout {
    pub fixture: Fixture,
}

impl Rollout {
    /// Starts with this number of old and new workers, and creates an update with these additional fields. `stableSeconds` is 0, so
    /// that the tests measure the system and not the configured delay.
    pub async fn start(workers: [u32; 2], more: Value) -> Self {
        let fixture = Fixture::with_controller(workers).await;
        let rollout = Self { fixture };
        rollout.update(UPDATE, "new", more);
        rollout
    }

    /// Creates an update from old to the generation with this name.
    pub fn update(&self, name: &str, to: &str, more: Value) {
        let mut spec = json!({
            "newFrontendService": format!("{to}.default.svc.cluster.local:8000"),
            "trafficSplitPercent": 0,
            "sourceDeployment": "dgd-old",
            "targetDeployment": format!("dgd-{to}"),
            "stableSeconds": 0,
        });
        for (field, value) in more.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        let update = json!({
            "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoUpdateConfig", "metadata": {"name": name}, "spec": spec,
        });
        self.fixture.cluster.apply(&update.to_string());
    }

    /// Edits the spec, as a user does.
    pub fn edit(&self, spec: &Value) {
        let patch = json!({"spec": spec}).to_string();
        let args = ["patch", "duc", UPDATE, "--type=merge", "-p", &patch];
        self.fixture.cluster.kubectl(&args);
    }

    pub fn get(&self, name: &str) -> Value {
        self.fixture.cluster.get(&["duc", name])
    }

    /// Waits until `condition` holds for an update.
    pub async fn until(&self, name: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        // Old may be deleted a minute after its last client.
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            let update = self.get(name);
            if condition(&update) {
                return update;
            }
            let (spec, status) = (&update["spec"], &update["status"]);
            assert!(Instant::now() < deadline, "never: {what}: {spec} {status}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the resource and every sidecar have exactly this split.
    pub async fn wait_for_split(&self, old: u32, new: u32) -> Value {
        self.wait_for_split_by(UPDATE, old, new).await
    }

    /// Like [`Self::wait_for_split`], for the update with this name.
    pub async fn wait_for_split_by(&self, name: &str, old: u32, new: u32) -> Value {
        let weights = json!({"old": old, "new": new});
        let condition =
            |plan: &Value| plan["weights"] == weights && plan["identity"]["name"] == name;
        let what = format!("{old} : {new} by {name}");
        self.fixture.until_all(&what, condition).await;
        self.until(name, &what, |update| {
            update["spec"]["weights"] == weights && update["status"]["wanted"]["weights"] == weights
        })
        .await
    }

    /// Waits for an Event about the update.
    pub async fn wait_for_event(&self, reason: &str) -> String {
        self.wait_for_event_with(reason, "").await
    }

    /// Waits for an Event about the update that contains this text, and returns its message.
    pub async fn wait_for_event_with(&self, reason: &str, text: &str) -> String {
        let mut message = None;
        eventually(reason, async || {
            let events = self.fixture.cluster.get(&["events"]);
            let mut events = events["items"].as_array().expect("a list").iter().rev();
            let uid = &self.get(UPDATE)["metadata"]["uid"];
            let event = events.find(|event| {
                let message = event["message"].as_str().unwrap_or_default();
                let is_about = event["involvedObject"]["uid"] == *uid;
                event["reason"] == reason && is_about && message.contains(text)
            });
            message = event.map(|event| event["message"].to_string());
            message.is_some()
        })
        .await;
        message.expect("the Event was found")
    }

    /// The replicas of the controller: their pods and the addresses of their metrics.
    pub fn controllers(&self) -> Vec<(String, String)> {
        let [namespace, name] = CONTROLLER;
        let label = format!("app.kubernetes.io/name={name}");
        let list = self
            .fixture
            .cluster
            .get(&["pods", "-n", namespace, "-l", &label]);
        let pods = list["items"].as_array().expect("a list").iter();
        let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        pods.filter(stays)
            .filter_map(|pod| {
                let name = pod["metadata"]["name"].as_str()?.to_owned();
                let ip = pod["status"]["podIP"].as_str()?;
                Some((name, format!("{ip}:9465")))
            })
            .collect()
    }

    /// The holder of the Lease: the pod and an ID of its process.
    pub fn holder(&self) -> String {
        let [namespace, name] = CONTROLLER;
        let lease = self.fixture.cluster.get(&["lease", name, "-n", namespace]);
        let holder = lease["spec"]["holderIdentity"].as_str();
        holder.unwrap_or_default().to_owned()
    }

    /// The pod that holds the Lease.
    pub fn leader(&self) -> String {
        let holder = self.holder();
        let pod = holder.split('_').next().unwrap_or_default();
        pod.to_owned()
    }

    /// The metrics of the leader.
    pub async fn counts(&self) -> Metrics {
        let leader = self.leader();
        let controllers = self.controllers();
        let mut all = controllers.iter();
        let address = all.find(|(name, _)| *name == leader).map(|(_, at)| at);
        let address = address.expect("the leader is one of the replicas");
        let address = address.parse().expect("an address");
        let page = rig::client::get(address, "/metrics").await;
        Metrics::parse(&page.text())
    }
}

/// Asserts that exactly this share of the streams of a phase went to new. Each proxy may be off by one stream, because it rounds on
/// its own.
pub fn assert_share(ended: &[FinishedStream], phase: usize, weights: [u32; 2], proxies: f64) {
    let (all, new) = share(ended, phase);
    let [to_old, to_new] = weights.map(f64::from);
    let wanted = all as f64 * to_new / (to_old + to_new);
    println!("{to_old} : {to_new}: new served {new} of {all} streams");
    assert!(all >= 100, "phase {phase}: only {all} streams");
    assert!(
        (new as f64 - wanted).abs() <= proxies,
        "phase {phase}: {new} of {all}, not {wanted}"
    );
}

/// Runs a phase in which this number of streams starts. Streams that start before or after do not belong to it.
pub async fn phase(load: &Load, phase: usize, streams: usize) {
    load.enter_phase(phase);
    load.wait_for_started(streams).await;
    load.leave_phase().await;
}

/// The processes of this cluster whose arguments and environment contain these texts.
///
/// # Panics
/// If there are none.
pub fn processes(argument: &str, variable: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("Linux");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let holds = |path: &std::path::Path, file: &str, text: &str| {
        let bytes = std::fs::read(path.join(file)).unwrap_or_default();
        format!("\0{}", String::from_utf8_lossy(&bytes)).contains(text)
    };
    let meant = paths.filter(|path| {
        holds(path, "cmdline", argument) && holds(path, "environ", &format!("\0{variable}"))
    });
    let pids: Vec<i32> = meant
        .filter_map(|path| path.file_name()?.to_str()?.parse().ok())
        .collect();
    assert!(
        !pids.is_empty(),
        "nothing runs with {argument:?} and {variable:?}"
    );
    pids
}

/// Sends a signal to all these processes.
pub fn signal(pids: &[i32], signal: i32) {
    for pid in pids {
        // SAFETY: a signal to a process of this cluster's own process namespace.
        assert_eq!(unsafe { libc::kill(*pid, signal) }, 0, "{pid}");
    }
}

/// The worker processes of a generation.
pub fn workers(generation: &str) -> Vec<i32> {
    processes(&format!("\0--name\0{generation}\0"), "POD_NAME=")
}

/// Formats the time since `begun`.
pub fn since(begun: Instant) -> String {
    format!("{:.1} s", begun.elapsed().as_secs_f64())
}
