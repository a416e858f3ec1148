//! New is analyzed while its share grows: it passes the first step and fails the second.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::fixture::{Fixture, UPDATE, eventually};
use crate::pair::RequestKind;
use crate::rig::{Client, End, Family};
use crate::rollout::{Rollout, processes, signal, since};

const CHAT: RequestKind = RequestKind {
    family: Family::Chat,
    stream: true,
};
const CLIENTS: usize = 8;
/// How long the test watches that the split does not change.
const WATCHED: Duration = Duration::from_secs(5);

/// Clients that send requests without a pause. While `fails` is set, new fails their requests and old recovers them.
pub struct Clients {
    fails: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<usize>,
}

impl Clients {
    pub fn of(fixture: &Fixture) -> Self {
        let fails = Arc::new(AtomicBool::new(false));
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for _ in 0..CLIENTS {
            let (fails, stop, address) = (Arc::clone(&fails), Arc::clone(&stop), fixture.address);
            tasks.spawn(async move {
                let mut client = Client::connect(address).await;
                let mut requests = 0;
                while !stop.load(Ordering::Relaxed) {
                    let prompt = if fails.load(Ordering::Relaxed) {
                        "<<words=3>> <<for=new words=3 http_error=500>>"
                    } else {
                        "<<words=3>>"
                    };
                    CHAT.send(&mut client, &[], prompt).await;
                    let response = client.response().await;
                    assert_eq!((response.status, response.end), (200, End::Clean));
                    assert!(
                        !response.text().contains("\"error\""),
                        "clients see no error"
                    );
                    requests += 1;
                }
                requests
            });
        }
        Self { fails, stop, tasks }
    }

    /// From now on, new fails all requests.
    pub fn fail(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }

    /// Returns the number of requests.
    pub async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.join_all().await.into_iter().sum()
    }
}

/// Denies every split that gives new nothing, until it is dropped.
struct DenyAllOldPolicy<'a>(&'a Fixture);

impl<'a> DenyAllOldPolicy<'a> {
    async fn new(fixture: &'a Fixture) -> Self {
        let api = "admissionregistration.k8s.io/v1";
        let policy = json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "keeps-new"}, "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": ["nvidia.com"], "apiVersions": ["*"], "operations": ["UPDATE"],
                    "resources": ["dynamoupdateconfigs"],
                }]},
                "validations": [{"expression": "object.spec.trafficSplitPercent != 0"}],
            },
        });
        let binding = json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "keeps-new"},
            "spec": {"policyName": "keeps-new", "validationActions": ["Deny"]},
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]});
        fixture.cluster.apply(&list.to_string());
        let policy = Self(fixture);
        let patch = json!({"spec": {"trafficSplitPercent": 0, "weights": null}}).to_string();
        eventually("all to old is refused", async || {
            let args = ["patch", "duc", UPDATE, "--type=merge", "-p", &patch];
            let args = [&args[..], &["--dry-run=server"]].concat();
            !fixture.cluster.try_kubectl(&args, "").status.success()
        })
        .await;
        policy
    }
}

impl Drop for DenyAllOldPolicy<'_> {
    fn drop(&mut self) {
        for kind in [
            "validatingadmissionpolicybinding",
            "validatingadmissionpolicy",
        ] {
            let args = ["delete", kind, "keeps-new", "--ignore-not-found"];
            self.0.cluster.try_kubectl(&args, "");
        }
    }
}

/// The exit status and the report of `crossfade judge`.
fn analysis_report(fixture: &Fixture) -> (Option<i32>, Value) {
    let mut command = Command::new(crate::program());
    command.args(["judge", UPDATE, "-n", "default", "-o", "json"]);
    if let Some(kubeconfig) = fixture.cluster.kubeconfig() {
        command.env("KUBECONFIG", kubeconfig);
    }
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"));
    (output.status.code(), report)
}

/// Asserts that all requests go to old for the time of [`WATCHED`].
async fn assert_stays_rolled_back(rollout: &Rollout) {
    let begun = Instant::now();
    while begun.elapsed() < WATCHED {
        let update = rollout.get(UPDATE);
        assert_eq!(update["spec"]["weights"], json!({"old": 1, "new": 0}));
        assert_eq!(update["status"]["analysis"]["verdict"], "Fail", "{update}");
        // A poll interval.
        sleep(Duration::from_millis(200)).await;
    }
}

/// Kills the leading controller, and waits until another replica leads.
async fn kill_leader_and_wait(rollout: &Rollout) {
    let killed = rollout.holder();
    let own = format!("POD_NAME={}\0", rollout.leader());
    signal(&processes("\0controller\0", &own), libc::SIGKILL);
    eventually("another replica leads", async || rollout.holder() != killed).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn new_that_fails_at_its_second_step_is_rolled_back_no_matter_what_happens_to_the_controller()
{
    // The latencies on this machine are unknown, so their limits are high.
    let analysis = json!({
        "warmupSeconds": 0, "minSamples": 20, "ttftP95Ratio": 100, "gapP99Ratio": 100, "onFailure": "RollBack",
    });
    let steps = json!([
        {"percent": 5, "holdSeconds": 2}, {"percent": 25, "holdSeconds": 600}, {"percent": 100},
    ]);
    let rollout = Rollout::start([2, 2], json!({"analysis": analysis, "steps": steps})).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        return println!("skipped: no processes of this cluster can be killed");
    }
    rollout.wait_for_split(19, 1).await;
    // Without requests there is no verdict, and no next step.
    let (status, report) = analysis_report(fixture);
    assert_eq!(status, Some(3), "{report:#}");
    let clients = Clients::of(fixture);
    let update = rollout.wait_for_split(3, 1).await;
    assert_eq!(update["status"]["rule"], "Step", "{update}");
    eventually("new passes", async || analysis_report(fixture).0 == Some(0)).await;

    let policy = DenyAllOldPolicy::new(fixture).await;
    clients.fail();
    let begun = Instant::now();
    let update = rollout
        .until(UPDATE, "the failure is recorded", |update| {
            update["status"]["memory"]["trial"]["failure"].is_object()
        })
        .await;
    println!("new fails; recorded {} later", since(begun));
    let weights = &update["spec"]["weights"];
    assert_eq!(*weights, json!({"old": 3, "new": 1}), "not written yet");
    kill_leader_and_wait(&rollout).await;
    clients.fails.store(false, Ordering::Relaxed);
    drop(policy);
    let update = rollout.wait_for_split(1, 0).await;
    let analysis = &update["status"]["analysis"];
    assert_eq!(analysis["verdict"], "Fail", "{analysis}");
    let text = analysis["message"].as_str().expect("a sentence");
    assert!(text.starts_with("New fails "), "{text}");
    assert!(
        text.contains("% of its requests, and old fails 0.0% ("),
        "{text}"
    );
    println!("{}", rollout.wait_for_event("AnalysisFailed").await);
    let (status, report) = analysis_report(fixture);
    assert_eq!(status, Some(1), "{report:#}");
    assert_eq!(report["verdict"], "fail", "{report:#}");

    // The next leader keeps the failure, although new no longer fails.
    kill_leader_and_wait(&rollout).await;
    assert_stays_rolled_back(&rollout).await;
    clients.end().await;
}
