//! Controllers that are killed during a managed update.

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::*;
use crate::fixture::long_tests_enabled;

/// Resources, with their API groups.
type Resources = &'static [(&'static str, &'static str)];

const STATUS: (&str, &str) = ("nvidia.com", "dynamorollouts/status");
const SIZES: (&str, &str) = ("apps", "deployments/scale");
const SERVICES: (&str, &str) = ("", "services");

/// Denies all updates of some resources until it is dropped.
struct DenyUpdates<'a>(&'a Fixture);

impl<'a> DenyUpdates<'a> {
    async fn of(resources: Resources, fixture: &'a Fixture) -> Self {
        let denied = Self(fixture);
        denied.change(resources).await;
        denied
    }

    /// From now on, denies updates of these resources, and of no others. Waits until this is in force.
    async fn change(&self, resources: Resources) {
        self.apply(resources);
        for resource in resources {
            self.wait_until_denied(*resource).await;
        }
    }

    /// Allows updates of the status until the controller has recorded something.
    async fn allow_record(&self, resources: Resources) {
        let version = || {
            let object = self.0.cluster.get(&["dro", NAME]);
            object["metadata"]["resourceVersion"].clone()
        };
        let before = version();
        let others = resources.iter().filter(|resource| **resource != STATUS);
        self.apply(&others.copied().collect::<Vec<_>>());
        eventually("something is recorded", async || version() != before).await;
        self.change(resources).await;
    }

    fn apply(&self, resources: &[(&str, &str)]) {
        let api = "admissionregistration.k8s.io/v1";
        // There must be a rule.
        let none = ("example.com", "none");
        let rules = resources.iter().chain([&none]).map(|(group, resource)| {
            json!({
                "apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [resource],
            })
        });
        let rules: Vec<_> = rules.collect();
        let policy = json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "denied"}, "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": rules},
                "validations": [{"expression": "false"}],
            },
        });
        let binding = json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "denied"},
            "spec": {"policyName": "denied", "validationActions": ["Deny"]},
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]});
        self.0.cluster.apply(&list.to_string());
    }

    async fn wait_until_denied(&self, resource: (&str, &str)) {
        let (object, change): (&[&str], _) = match resource {
            SERVICES => (
                &["service", "old"],
                json!({"metadata": {"labels": {"a": "b"}}}),
            ),
            SIZES => (
                &["deployment", "old-worker", "--subresource=scale"],
                json!({"spec": {"replicas": 9}}),
            ),
            _ => (
                &["dro", NAME, "--subresource=status"],
                json!({"status": {"message": "a"}}),
            ),
        };
        let change = change.to_string();
        let patch = ["patch", "--dry-run=server", "--type=merge", "-p", &change];
        let patch = [&patch[..], object].concat();
        eventually("updates are denied", async || {
            let output = self.0.cluster.try_kubectl(&patch, "");
            String::from_utf8_lossy(&output.stderr).contains("denied request")
        })
        .await;
    }
}

impl Drop for DenyUpdates<'_> {
    fn drop(&mut self) {
        let kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy";
        let args = ["delete", kinds, "denied", "--ignore-not-found"];
        self.0.cluster.try_kubectl(&args, "");
    }
}

impl Managed {
    /// Waits until another replica than this one leads.
    async fn wait_for_another_than(&self, killed: &str) {
        eventually("another replica leads", async || {
            self.rollout.holder() != killed
        })
        .await;
    }
}

/// The next leader neither loses nor repeats an action that could not be recorded.
#[tokio::test]
#[ignore = "in a cluster"]
async fn controllers_that_are_killed_before_they_record_what_they_did_lose_nothing() {
    if !long_tests_enabled() {
        return;
    }
    let managed = Managed::with_workers(2, 1, 0).await;
    if !managed.fixture().cluster.is_own() {
        return println!("skipped: no processes of this cluster can be killed");
    }
    let load = managed.begin(&json!({})).await;
    let kill = async |managed: &Managed| {
        let denied = DenyUpdates::of(&[STATUS], managed.fixture()).await;
        // Gives the controller time for an action. The status cannot change, so there is no condition to wait for.
        sleep(Duration::from_secs(2)).await;
        let killed = managed.rollout.holder();
        managed.kill_the_leader().await;
        managed.wait_for_another_than(&killed).await;
        // As above, for the new leader.
        sleep(Duration::from_secs(2)).await;
        drop(denied);
    };
    managed.until_with("Complete", kill).await;
    assert_eq!(managed.sizes(), [vec![(0, 0)], vec![(2, 2)]]);
    managed.end(load).await;
}

/// A kind of write.
struct Write {
    /// The action, as a label of the metric.
    action: &'static str,
    /// What the controller may not write before it is killed: what comes next, and the status, in which it would record the write.
    denied: Resources,
    /// Whether the first write of this kind is there.
    is_done: fn(&Managed) -> bool,
}

/// In the order in which the first of each comes.
const WRITES: [Write; 7] = [
    Write {
        action: "grow",
        denied: &[STATUS],
        is_done: |managed| managed.get("deployment", "new-worker")["spec"]["replicas"] == 1,
    },
    Write {
        action: "split",
        // The mark and the shrinking may follow at once.
        denied: &[SIZES, STATUS],
        is_done: |managed| managed.get("duc", NAME)["spec"]["trafficSplitPercent"] != 0,
    },
    Write {
        action: "mark",
        denied: &[SIZES, STATUS],
        is_done: |managed| {
            let pods = managed.get("pods", "--selector=app=old-worker");
            pods.to_string().contains("pod-deletion-cost")
        },
    },
    Write {
        action: "shrink",
        denied: &[STATUS],
        is_done: |managed| managed.get("deployment", "old-worker")["spec"]["replicas"] != 2,
    },
    // This is a write of the status.
    Write {
        action: "save_selector",
        denied: &[SERVICES],
        is_done: |managed| managed.get("dro", NAME)["status"]["previousSelector"].is_object(),
    },
    Write {
        action: "move_clients",
        denied: &[STATUS],
        is_done: |managed| managed.client_selector() == "new-frontend",
    },
    Write {
        action: "retire",
        denied: &[STATUS],
        is_done: |managed| !managed.is_there("old-worker") || !managed.is_there("old-frontend"),
    },
];

impl Managed {
    fn get(&self, kind: &str, name: &str) -> Value {
        self.fixture().cluster.get(&[kind, name])
    }

    /// Waits until the first write of a kind is there.
    async fn wait_for(&self, write: &Write, denied: &DenyUpdates<'_>) {
        let begun = Instant::now();
        let mut denied_since = begun;
        while !(write.is_done)(self) {
            assert!(begun.elapsed() < LONGEST, "never: {}", write.action);
            if write.action != "retire" {
                self.assert_limits(&self.get("dro", NAME)["status"]);
            }
            // What came before may have to be recorded first.
            let is_denied = write.denied.contains(&STATUS);
            if is_denied && denied_since.elapsed() > Duration::from_secs(15) {
                println!(
                    "{:>7} {}: not yet: {}",
                    since(begun),
                    write.action,
                    self.get("dro", NAME)["status"]["message"]
                );
                denied.allow_record(write.denied).await;
                denied_since = Instant::now();
            }
            sleep(Duration::from_millis(50)).await;
        }
        println!("{:>7} {}", since(begun), write.action);
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn controllers_that_are_killed_after_each_kind_of_write_lose_nothing() {
    if !long_tests_enabled() {
        return;
    }
    let managed = Managed::with_workers(2, 1, 0).await;
    if !managed.fixture().cluster.is_own() {
        return println!("skipped: no processes of this cluster can be killed");
    }
    let handover = json!({"clients": "Automatic", "retire": "Delete"});
    let load = managed
        .begin(&json!({"intent": "Hold", "handover": handover}))
        .await;
    managed.until("Held").await;
    let denied = DenyUpdates::of(WRITES[0].denied, managed.fixture()).await;
    managed.edit(json!({"intent": "Run"}));
    for (index, write) in WRITES.iter().enumerate() {
        managed.wait_for(write, &denied).await;
        let killed = managed.rollout.holder();
        managed.kill_the_leader().await;
        // Before another replica leads.
        if let Some(next) = WRITES.get(index + 1) {
            denied.change(next.denied).await;
        }
        managed.wait_for_another_than(&killed).await;
    }
    drop(denied);
    eventually("old is deleted", async || {
        !managed.is_there("old-worker") && !managed.is_there("old-frontend")
    })
    .await;
    let mut object = Value::Null;
    eventually("the rollout is complete", async || {
        object = managed.get("dro", NAME);
        object["status"]["phase"] == "Complete"
    })
    .await;
    let worker = managed.get("deployment", "new-worker");
    assert_eq!(worker["status"]["readyReplicas"], 2, "{worker:#}");
    assert!(managed.is_there("new-frontend"));
    managed.end(load).await;
}
