//! Workers of both generations in one StatefulSet or LeaderWorkerSet, with a stand-in for what makes their pods.

use std::collections::BTreeMap;

use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::fixture::{Controller, Fixture, PATIENCE, pods, resource};
use super::Managed;
use super::operator::make;
use crate::rig::POLL;

const SET: &str = "workers";
const SIZE: u64 = 4;
/// What both generations must have ready at any time.
const LEAST: usize = 3;
const LWS: &str = "leaderworkerset.sigs.k8s.io";

fn sets() -> ApiResource {
    resource("apps", "v1", "StatefulSet", "statefulsets")
}

fn groups() -> ApiResource {
    let group = "leaderworkerset.x-k8s.io";
    resource(group, "v1", "LeaderWorkerSet", "leaderworkersets")
}

/// Makes and replaces the pods of a StatefulSet or LeaderWorkerSet by its partition, for as long as it lives.
struct SetOperator(JoinHandle<()>);

impl Drop for SetOperator {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl SetOperator {
    fn start(fixture: &Fixture) -> Self {
        let (client, namespace) = (fixture.client.clone(), fixture.namespace.clone());
        Self(tokio::spawn(async move {
            let of = |kind: ApiResource| -> Api<DynamicObject> {
                Api::namespaced_with(client.clone(), &namespace, &kind)
            };
            loop {
                // Whatever is refused is tried again.
                let _ = follow_groups(&of(groups()), &of(sets())).await;
                let _ = reconcile(&of(sets()), &of(pods())).await;
                tokio::time::sleep(POLL).await;
            }
        }))
    }
}

fn generation_of(object: &DynamicObject) -> String {
    let labels = object.metadata.labels.clone().unwrap_or_default();
    labels.get("generation").cloned().unwrap_or_default()
}

/// What the controller of LeaderWorkerSets does with the StatefulSet of the leaders.
async fn follow_groups(groups: &Api<DynamicObject>, sets: &Api<DynamicObject>) -> kube::Result<()> {
    let of_groups = groups.get(SET).await?;
    let spec = &of_groups.data["spec"];
    let template = &spec["leaderWorkerTemplate"]["workerTemplate"];
    let generation = template["metadata"]["labels"]["generation"]
        .as_str()
        .unwrap();
    let partition = &spec["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"];
    let leaders = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": SET, "labels": {
            format!("{LWS}/name"): SET, format!("{LWS}/template-revision-hash"): format!("hash-{generation}"),
        }},
        "spec": {
            "replicas": spec["replicas"], "serviceName": SET, "selector": {"matchLabels": {"app": SET}},
            "template": template,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
        },
    });
    let params = PatchParams::apply("stand-in").force();
    sets.patch(SET, &params, &Patch::Apply(leaders)).await?;
    let status = json!({"status": {"replicas": SIZE, "readyReplicas": SIZE}});
    let params = PatchParams::default();
    groups
        .patch_status(SET, &params, &Patch::Merge(status))
        .await?;
    Ok(())
}

/// What the controller of StatefulSets does: a replica below the partition that is missing is made by the current revision; one at
/// or above it that is of another revision than the update is replaced, from the last, one at a time.
async fn reconcile(sets: &Api<DynamicObject>, all: &Api<DynamicObject>) -> kube::Result<()> {
    let set = sets.get(SET).await?;
    let is_of_groups = set.metadata.labels.iter().flatten().next().is_some();
    let spec = &set.data["spec"];
    let update = &spec["template"]["metadata"]["labels"]["generation"];
    let update = update.as_str().unwrap().to_owned();
    let current = set.data["status"]["currentRevision"].as_str();
    let current = current.and_then(|current| current.strip_prefix("workers-"));
    let mut current = current.unwrap_or(&update).to_owned();
    let partition = spec["updateStrategy"]["rollingUpdate"]["partition"].as_u64();
    let partition = partition.unwrap_or(0);
    let wanted = spec["replicas"].as_u64().unwrap();
    let there = all
        .list(&ListParams::default().labels("app=workers"))
        .await?;
    let there: BTreeMap<String, DynamicObject> = { there.items.into_iter() }
        .map(|pod| (pod.metadata.name.clone().unwrap(), pod))
        .collect();
    let now = DeleteParams::default().grace_period(0);
    let mut missing = 0;
    for index in 0..wanted {
        let name = format!("{SET}-{index}");
        if there.contains_key(&name) {
            continue;
        }
        missing += 1;
        let of = if index < partition { &current } else { &update };
        let member = format!("{name}-1");
        if is_of_groups {
            // A group has ended with its leader.
            let _ = all.delete(&member, &now).await;
        }
        for pod in [&name, &member]
            .into_iter()
            .take(if is_of_groups { 2 } else { 1 })
        {
            let mut labels = json!({
                "app": SET, "generation": of, "controller-revision-hash": format!("workers-{of}"),
            });
            if is_of_groups {
                labels[format!("{LWS}/name")] = json!(SET);
                labels[format!("{LWS}/group-index")] = json!(index.to_string());
                labels[format!("{LWS}/group-key")] = json!(name);
                labels[format!("{LWS}/template-revision-hash")] = json!(format!("hash-{of}"));
                let worker = if *pod == name { "0" } else { "1" };
                labels[format!("{LWS}/worker-index")] = json!(worker);
            }
            if *pod == member {
                labels["app"] = json!("members");
                labels["controller-revision-hash"] = json!("of-members");
            }
            make(all, pod, SET, labels).await?;
            let params = PatchParams::default();
            let size = json!({"metadata": {"annotations": {format!("{LWS}/size"): "2"}}});
            all.patch(pod, &params, &Patch::Merge(size)).await?;
            let status = json!({"status": {
                "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            }});
            all.patch_status(pod, &params, &Patch::Merge(status))
                .await?;
        }
    }
    let outdated = (partition..wanted).rev().find(|index| {
        let pod = there.get(&format!("{SET}-{index}"));
        pod.is_some_and(|pod| generation_of(pod) != update)
    });
    if let Some(index) = outdated.filter(|_| missing == 0) {
        let leader = format!("{SET}-{index}");
        all.delete(&leader, &now).await?;
    }
    if there.len() as u64 == wanted && there.values().all(|pod| generation_of(pod) == update) {
        current.clone_from(&update);
    }
    let status = json!({"status": {
        "observedGeneration": set.metadata.generation, "replicas": there.len(), "readyReplicas": there.len(),
        "currentRevision": format!("workers-{current}"), "updateRevision": format!("workers-{update}"),
    }});
    let params = PatchParams::default();
    sets.patch_status(SET, &params, &Patch::Merge(status))
        .await?;
    Ok(())
}

/// A StatefulSet or LeaderWorkerSet beside a rollout.
struct InPlace {
    managed: Managed,
    of_groups: bool,
    _operator: SetOperator,
}

impl InPlace {
    /// A whole StatefulSet of the first generation, and no rollout.
    async fn set() -> Self {
        Self::of(false).await
    }

    async fn of(of_groups: bool) -> Self {
        let managed = Managed::set(0).await;
        let labels = json!({"app": SET, "generation": "1"});
        let template = json!({
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "any"}]},
        });
        let update = json!({"partition": SIZE});
        let spec = match of_groups {
            true => json!({
                "replicas": SIZE, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template},
                "rolloutStrategy": {"rollingUpdateConfiguration": update},
            }),
            false => json!({
                "replicas": SIZE, "serviceName": SET, "selector": {"matchLabels": {"app": SET}}, "template": template,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": update},
            }),
        };
        let in_place = Self {
            _operator: SetOperator::start(&managed.fixture),
            managed,
            of_groups,
        };
        let fixture = &in_place.managed.fixture;
        fixture
            .create(&in_place.kind(), SET, json!({"spec": spec}))
            .await;
        in_place.holds([4, 0]).await;
        in_place
    }

    fn kind(&self) -> ApiResource {
        if self.of_groups { groups() } else { sets() }
    }

    /// A person writes the spec of the workers.
    async fn write(&self, spec: Value) {
        let patch = json!({"spec": spec});
        self.managed.patch(&self.kind(), SET, patch).await;
    }

    /// A person edits their template.
    async fn edit_template(&self, generation: &str) {
        let template = json!({"metadata": {"labels": {"generation": generation}}});
        let spec = match self.of_groups {
            true => json!({"leaderWorkerTemplate": {"workerTemplate": template}}),
            false => json!({"template": template}),
        };
        self.write(spec).await;
    }

    /// The rollout, as a person applies it.
    async fn apply(&mut self, partition: u32) {
        let one = json!({"kind": self.kind().kind, "name": SET});
        let strategy = json!({"maxSurge": 0, "maxUnavailable": 1, "partition": partition});
        let spec = json!({"source": one, "target": one, "strategy": strategy});
        self.managed.begin(spec).await;
    }

    async fn begin(&mut self, partition: u32) -> Controller {
        self.apply(partition).await;
        self.managed.controller().await
    }

    /// The same with what `deploy/` permits.
    async fn begin_with_own_rights(&mut self, partition: u32) -> Controller {
        self.apply(partition).await;
        let name = format!("in-place-{}", self.kind().plural);
        let controller = self.managed.controller_with_own_rights(&name).await;
        self.managed.fixture.proxy("chat").await;
        controller
    }

    /// The pods of each generation there is. Of a group, its leader.
    async fn generations(&self) -> Vec<String> {
        let api = self.managed.fixture.api(&pods());
        let found = api.list(&ListParams::default().labels("app=workers")).await;
        found.unwrap().items.iter().map(generation_of).collect()
    }

    /// The pods of the first and of the second generation.
    async fn pods(&self) -> [usize; 2] {
        let pods = self.generations().await;
        ["1", "2"].map(|wanted| pods.iter().filter(|of| *of == wanted).count())
    }

    async fn partition(&self) -> Value {
        let object = self
            .managed
            .fixture
            .api(&self.kind())
            .get(SET)
            .await
            .unwrap();
        let spec = &object.data["spec"];
        assert_eq!(spec["replicas"], SIZE, "the size is never written");
        match self.of_groups {
            true => spec["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"].clone(),
            false => spec["updateStrategy"]["rollingUpdate"]["partition"].clone(),
        }
    }

    async fn holds(&self, wanted: [usize; 2]) {
        let deadline = Instant::now() + PATIENCE;
        while self.pods().await != wanted {
            let pods = self.pods().await;
            assert!(Instant::now() < deadline, "{pods:?}, and never {wanted:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the status is so. Enough workers are there meanwhile, and never one too many.
    async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            let pods = self.generations().await;
            let enough = LEAST..=SIZE as usize;
            assert!(enough.contains(&pods.len()), "{pods:?}");
            let object = self.managed.rollout().await;
            if is_so(&object["status"]) {
                return object;
            }
            let status = &object["status"];
            assert!(
                Instant::now() < deadline,
                "never {what}: {pods:?}; {status:#}"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    async fn phase(&self, phase: &str) -> Value {
        self.until(phase, |status| status["phase"] == phase).await
    }

    async fn says(&self, what: &str) -> Value {
        self.until(what, |status| {
            let message = status["message"].as_str().unwrap_or_default();
            message.contains(what)
        })
        .await
    }
}

#[tokio::test]
async fn one_stateful_set_goes_pod_by_pod_to_the_hand_over() {
    let mut set = InPlace::set().await;
    set.apply(0).await;
    let _controller = set.managed.fixture.controller(&["--rollouts"]).await;
    // Nothing begins before there is a second generation.
    let object = set
        .says("has one revision, workers-1: edit its pod template")
        .await;
    assert_eq!(object["status"]["phase"], "Refused");
    set.edit_template("2").await;
    set.managed.fixture.proxy("chat").await;
    let object = set.says("clients to be routed").await;
    set.holds([0, 4]).await;
    assert_eq!(set.partition().await, 0);
    set.managed.fixture.splits("chat", 0, 1).await;
    let status = &object["status"];
    let accepted = &status["accepted"];
    let revision = |side: &str| accepted[side]["roles"]["worker"]["revision"].clone();
    assert_eq!(
        (revision("source"), revision("target")),
        (json!("workers-1"), json!("workers-2"))
    );
    assert_eq!(
        (&status["source"]["workers"], &status["target"]["workers"]),
        (&json!("0/0"), &json!("4/4"))
    );
    let update = set.managed.fixture.get("chat").await;
    let workers = &update["spec"]["workers"];
    assert_eq!(workers["old"]["revision"], "workers-1");
    assert_eq!(workers["new"]["revision"], "workers-2");
    set.managed.move_clients().await;
    set.phase("Complete").await;
    // The set has forgotten its first revision.
    set.managed.edit(json!({"intent": "Abort"})).await;
    set.says("creates workers of revision workers-2, and no longer of workers-1")
        .await;
    assert_eq!(set.partition().await, 0);
    set.managed.edit(json!({"intent": "Run"})).await;
    set.phase("Complete").await;
}

#[tokio::test]
async fn one_stateful_set_goes_back_and_forth() {
    goes_back_and_forth(InPlace::set().await).await;
}

#[tokio::test]
async fn one_leader_worker_set_goes_back_and_forth() {
    goes_back_and_forth(InPlace::of(true).await).await;
}

async fn goes_back_and_forth(mut set: InPlace) {
    set.edit_template("2").await;
    let controller = set.begin_with_own_rights(2).await;
    set.phase("Partition").await;
    set.holds([2, 2]).await;
    assert_eq!(set.partition().await, 2);
    set.managed.fixture.splits("chat", 1, 1).await;
    set.managed.edit(json!({"intent": "Abort"})).await;
    set.phase("RolledBack").await;
    set.holds([4, 0]).await;
    assert_eq!(set.partition().await, 4);
    set.managed.fixture.splits("chat", 1, 0).await;
    set.managed
        .happens("PodsReplaced", "replaces workers-")
        .await;
    // A controller that starts anew takes nothing for somebody else's.
    drop(controller);
    let _controller = set.managed.controller().await;
    let all = json!({"intent": "Run", "strategy": {"partition": 0}});
    set.managed.edit(all).await;
    set.says("clients to be routed").await;
    set.holds([0, 4]).await;
    assert_eq!(set.partition().await, 0);
}

#[tokio::test]
async fn another_partition_size_or_template_stops_a_rollout_within_one_object() {
    let mut set = InPlace::set().await;
    set.edit_template("2").await;
    let _controller = set.begin(2).await;
    set.phase("Partition").await;
    let partition =
        |partition: u32| json!({"updateStrategy": {"rollingUpdate": {"partition": partition}}});
    set.write(partition(3)).await;
    set.says("old's worker workers were scaled to 3 from 2 by another client")
        .await;
    set.write(partition(2)).await;
    set.phase("Partition").await;
    set.write(json!({"replicas": 3})).await;
    let object = set
        .says("the replicas to be 4 again, as accepted: another client has set 3")
        .await;
    assert_eq!(object["status"]["phase"], "Contested");
    set.write(json!({"replicas": 4})).await;
    set.phase("Partition").await;
    // A third generation is made by the set itself, wherever the partition lets it.
    set.edit_template("3").await;
    set.says("creates workers of revision workers-3, and no longer of workers-2")
        .await;
}
