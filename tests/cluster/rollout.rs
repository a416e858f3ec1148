//! An update whose split the controller keeps, in a cluster where all of it runs: what is asserted of it, and how it is hurt.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fixture::{CONTROLLER, Fixture, PATIENCE, UPDATE, within_patience};
use crate::load::{Ended, Load, Shape, share};
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
    /// With so many workers of old and new, and an update with these fields more. Nothing waits for workers to stay ready:
    /// what is measured is the system.
    pub async fn begun(workers: [u32; 2], more: Value) -> Self {
        let fixture = Fixture::with_controller(workers).await;
        let rollout = Self { fixture };
        rollout.update(UPDATE, "new", more);
        rollout
    }

    /// Makes an update of old to the generation of this name.
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

    /// As a person does it.
    pub fn edit(&self, spec: &Value) {
        let patch = json!({"spec": spec}).to_string();
        let args = ["patch", "duc", UPDATE, "--type=merge", "-p", &patch];
        self.fixture.cluster.kubectl(&args);
    }

    pub fn get(&self, name: &str) -> Value {
        self.fixture.cluster.get(&["duc", name])
    }

    /// Waits until an update is so.
    pub async fn until(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        // Old may be deleted a minute after its last client.
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            let update = self.get(name);
            if is_so(&update) {
                return update;
            }
            let (spec, status) = (&update["spec"], &update["status"]);
            assert!(Instant::now() < deadline, "never: {what}: {spec} {status}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the split is exactly this, in the resource and at every sidecar.
    pub async fn splits(&self, old: u32, new: u32) -> Value {
        self.splits_by(UPDATE, old, new).await
    }

    /// The same by the update of this name.
    pub async fn splits_by(&self, name: &str, old: u32, new: u32) -> Value {
        let weights = json!({"old": old, "new": new});
        let is_so = |plan: &Value| plan["weights"] == weights && plan["identity"]["name"] == name;
        let what = format!("{old} : {new} by {name}");
        self.fixture.until_all(&what, is_so).await;
        self.until(name, &what, |update| {
            update["spec"]["weights"] == weights && update["status"]["wanted"]["weights"] == weights
        })
        .await
    }

    /// Waits for an Event about the update.
    pub async fn happens(&self, reason: &str) -> String {
        self.happens_with(reason, "").await
    }

    /// Waits for an Event about the update that says this: all that it says.
    pub async fn happens_with(&self, reason: &str, text: &str) -> String {
        let mut said = None;
        within_patience(reason, async || {
            let events = self.fixture.cluster.get(&["events"]);
            let mut events = events["items"].as_array().expect("a list").iter().rev();
            let uid = &self.get(UPDATE)["metadata"]["uid"];
            let event = events.find(|event| {
                let said = event["message"].as_str().unwrap_or_default();
                let is_about = event["involvedObject"]["uid"] == *uid;
                event["reason"] == reason && is_about && said.contains(text)
            });
            said = event.map(|event| event["message"].to_string());
            said.is_some()
        })
        .await;
        said.expect("it was waited for")
    }

    /// The replicas of the controller: names and addresses of their metrics.
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

    /// Who holds the lease: its pod, and which of its processes.
    pub fn holder(&self) -> String {
        let [namespace, name] = CONTROLLER;
        let lease = self.fixture.cluster.get(&["lease", name, "-n", namespace]);
        let holder = lease["spec"]["holderIdentity"].as_str();
        holder.unwrap_or_default().to_owned()
    }

    /// The pod that holds the lease.
    pub fn leader(&self) -> String {
        let holder = self.holder();
        let pod = holder.split('_').next().unwrap_or_default();
        pod.to_owned()
    }

    /// What the leader counts.
    pub async fn counts(&self) -> Metrics {
        let leader = self.leader();
        let controllers = self.controllers();
        let mut all = controllers.iter();
        let address = all.find(|(name, _)| *name == leader).map(|(_, at)| at);
        let address = address.expect("the leader is one of them");
        let address = address.parse().expect("an address");
        let page = rig::client::get(address, "/metrics").await;
        Metrics::parse(&page.text())
    }
}

/// Asserts that exactly this share of a phase's streams went to new, through so many proxies: each rounds for itself.
pub fn assert_share(ended: &[Ended], phase: usize, weights: [u32; 2], proxies: f64) {
    let (all, new) = share(ended, phase);
    let [to_old, to_new] = weights.map(f64::from);
    let wanted = all as f64 * to_new / (to_old + to_new);
    println!("{to_old} : {to_new}: {new} of {all} streams by new");
    assert!(all >= 100, "phase {phase}: only {all} streams");
    assert!(
        (new as f64 - wanted).abs() <= proxies,
        "phase {phase}: {new} of {all}, not {wanted}"
    );
}

/// A phase of a load: so many streams in it, none of them from before or after.
pub async fn phase(load: &Load, phase: usize, streams: usize) {
    load.enter(phase);
    load.begun(streams).await;
    load.leave().await;
}

/// The processes of this cluster whose arguments and environment hold these texts.
///
/// # Panics
/// If there is none.
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

/// Sends a signal to all of them.
pub fn signal(pids: &[i32], signal: i32) {
    for pid in pids {
        // SAFETY: a signal to a process of this cluster's own process namespace.
        assert_eq!(unsafe { libc::kill(*pid, signal) }, 0, "{pid}");
    }
}

/// The workers of a generation.
pub fn workers(generation: &str) -> Vec<i32> {
    processes(&format!("\0--name\0{generation}\0"), "POD_NAME=")
}

/// The time since, for people.
pub fn since(begun: Instant) -> String {
    format!("{:.1} s", begun.elapsed().as_secs_f64())
}
