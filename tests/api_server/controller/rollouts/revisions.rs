//! Three generations in sequence, and an undo to any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::api::{Api, DynamicObject, ListParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::super::fixture::{pods, resource, updates};
use super::operator::deployments;
use super::{Managed, frontends, services};

/// Continuously checks that no more than two generations have workers, that there are never too many workers, and that no
/// generation loses its workers before its requests.
pub struct Watched {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Watched {
    pub fn begin(managed: &Managed) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (sizes, updates) = (
            managed.fixture.api(&deployments()),
            managed.fixture.api(&updates()),
        );
        let task = tokio::spawn({
            let is_over = Arc::clone(&is_over);
            async move {
                while !is_over.load(Ordering::Relaxed) {
                    check(&sizes, &updates).await;
                    // A poll interval.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
        Self { is_over, task }
    }

    pub async fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

async fn check(deployments: &Api<DynamicObject>, updates: &Api<DynamicObject>) {
    // Read the split first: requests leave before workers are removed, and arrive after workers are added.
    let update = updates.get("chat").await.unwrap();
    let all = deployments.list(&ListParams::default()).await.unwrap();
    let size = |name: &str| {
        let mut all = all.iter();
        let found = all.find(|object| object.metadata.name.as_deref() == Some(name));
        found.map_or(0, |found| found.data["spec"]["replicas"].as_u64().unwrap())
    };
    let sizes = ["v1", "v2", "v3"].map(size);
    assert!(sizes.contains(&0), "three generations at once: {sizes:?}");
    assert!(sizes.iter().sum::<u64>() <= 5, "{sizes:?}");
    let spec = &update.data["spec"];
    for generation in ["old", "new"] {
        let name = spec["workers"][generation]["name"].as_str().unwrap();
        let has_requests = spec["weights"][generation] != 0;
        // A new rollout of other generations may have started since.
        let now = updates.get("chat").await.unwrap();
        if has_requests && now.data["spec"] == *spec {
            assert!(size(name) > 0, "{name} has requests: {sizes:?} {spec}");
        }
    }
}

impl Managed {
    /// The second of three generations has all workers and clients. The first has none, and the third is ready to be rolled
    /// out.
    async fn at_the_second() -> Self {
        let mut managed = Self::with_rollout(json!({"handover": {"clients": "Automatic"}})).await;
        let _controller = managed.controller().await;
        managed.phase("Complete").await;
        managed.follow_clients().await;
        managed.deployment("v3", 0).await;
        let labels = frontends("third");
        managed
            .fixture
            .pod("third-frontend-0", labels, json!([]))
            .await;
        let status = json!({
            "phase": "Running", "podIP": "10.9.0.3", "podIPs": [{"ip": "10.9.0.3"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        });
        managed
            .fixture
            .status(&pods(), "third-frontend-0", status)
            .await;
        // From now on, the Service of new is that of the third generation.
        let selector = json!({"spec": {"selector": frontends("third")}});
        managed.patch(&services(), "localhost", selector).await;
        managed
    }

    /// Rolls out the third generation. From now on, the frontends of the second have a proxy.
    async fn goes_to_the_third(&mut self, partition: u32) {
        let mut frontends = self.spec(json!({}))["frontends"].clone();
        frontends["source"] = json!("new");
        frontends["target"] = json!("third");
        self.edit(json!({
            "source": {"name": "v2"}, "target": {"name": "v3"}, "frontends": frontends,
            "strategy": {"partition": partition},
        }))
        .await;
        self.until("accepted", |status| {
            status["accepted"]["target"]["frontends"] == "third"
        })
        .await;
        self.fixture.proxy_of("new", "chat").await;
        self.fixture.delete(&pods(), "new-frontend-0").await;
    }

    async fn sizes_of_all(&self) -> [u64; 3] {
        let mut sizes = [0; 3];
        for (index, name) in ["v1", "v2", "v3"].into_iter().enumerate() {
            if let Some(found) = self
                .fixture
                .api(&deployments())
                .get_opt(name)
                .await
                .unwrap()
            {
                sizes[index] = found.data["spec"]["replicas"].as_u64().unwrap();
            }
        }
        sizes
    }

    async fn clients_reach(&self) -> Value {
        let service = self.fixture.api(&services()).get("clients").await.unwrap();
        service.data["spec"]["selector"].clone()
    }

    async fn kept(&self) -> Vec<i64> {
        let kind = resource("apps", "v1", "ControllerRevision", "controllerrevisions");
        let all = self.fixture.api(&kind).list(&ListParams::default()).await;
        let numbers = all.unwrap().items.into_iter();
        let numbers = numbers.map(|object| object.data["revision"].as_i64().unwrap());
        let mut numbers: Vec<_> = numbers.collect();
        numbers.sort_unstable();
        numbers
    }

    /// Waits until the status has observed the edit and is in this phase.
    async fn seen_in(&self, phase: &str) -> Value {
        let generation = self.rollout().await["metadata"]["generation"].clone();
        self.until(phase, |status| {
            status["observedGeneration"] == generation && status["phase"] == phase
        })
        .await
    }
}

#[tokio::test]
async fn an_undo_goes_to_any_retained_revision_and_forward_again() {
    let mut managed = Managed::at_the_second().await;
    let _controller = managed.controller().await;
    managed.goes_to_the_third(0).await;
    let object = managed.seen_in("Complete").await;
    assert_eq!(managed.sizes_of_all().await, [0, 0, 4]);
    assert_eq!(managed.kept().await, [1, 2, 3]);
    let revisions = &object["status"]["revisions"];
    let revisions: Vec<_> = { revisions.as_array().unwrap().iter() }
        .map(|known| (&known["revision"], &known["workers"], &known["exists"]))
        .collect();
    let (yes, names) = (
        json!(true),
        ["Deployment v1", "Deployment v2", "Deployment v3"],
    );
    let names = names.map(|name| json!(name));
    let numbers = [1, 2, 3].map(|number| json!(number));
    let expected: Vec<_> = { numbers.iter().zip(&names) }
        .map(|(number, name)| (number, name, &yes))
        .collect();
    assert_eq!(revisions, expected);

    // Undo by two generations, clients included.
    let watched = Watched::begin(&managed);
    managed.edit(json!({"undoTo": 1})).await;
    let object = managed.seen_in("RolledBack").await;
    assert_eq!(managed.sizes_of_all().await, [4, 0, 0]);
    assert_eq!(managed.clients_reach().await, frontends("old"));
    let accepted = &object["status"]["accepted"];
    assert_eq!(accepted["undoTo"], 1);
    assert_eq!(accepted["source"]["roles"]["worker"]["replicas"], 4);
    managed
        .wait_for_event("Accepted", "to go back to revision 1")
        .await;

    // Forward again, to the target in the spec.
    managed.edit(json!({"undoTo": null})).await;
    managed.seen_in("Complete").await;
    assert_eq!(managed.sizes_of_all().await, [0, 0, 4]);
    assert_eq!(managed.clients_reach().await, frontends("third"));
    watched.end().await;

    // Missing objects are reported before anything is written.
    managed.edit(json!({"undoTo": 9})).await;
    let object = managed.seen_in("Stalled").await;
    let message = object["status"]["message"].as_str().unwrap();
    let expected = "undoTo is 9, but only these revisions are kept: 1, 2, 3";
    assert_eq!(message, expected);
    managed.fixture.delete(&deployments(), "v2").await;
    managed.edit(json!({"undoTo": 2})).await;
    let object = managed.seen_in("Stalled").await;
    let message = object["status"]["message"].as_str().unwrap();
    let expected = "undoTo cannot go back to revision 2: there is no Deployment v2";
    assert_eq!(message, expected);
    assert_eq!(managed.sizes_of_all().await, [0, 0, 4]);
    managed
        .edit(json!({"undoTo": 0, "revisionHistoryLimit": 0}))
        .await;
    managed.seen_in("Complete").await;
    crate::rig::eventually("the second is forgotten", async || {
        managed.kept().await == [1, 3]
    })
    .await;
}

#[tokio::test]
async fn an_undo_in_the_middle_of_a_rollout_rolls_back_the_new_generation_first() {
    let mut managed = Managed::at_the_second().await;
    let _controller = managed.controller().await;
    managed.goes_to_the_third(2).await;
    managed.seen_in("Partition").await;
    assert_eq!(managed.sizes_of_all().await, [0, 2, 2]);
    let watched = Watched::begin(&managed);
    managed.edit(json!({"undoTo": 1})).await;
    managed
        .until("at the first", |status| {
            status["phase"] == "RolledBack" && status["accepted"]["undoTo"] == 1
        })
        .await;
    assert_eq!(managed.sizes_of_all().await, [4, 0, 0]);
    assert_eq!(managed.clients_reach().await, frontends("old"));
    watched.end().await;
}
