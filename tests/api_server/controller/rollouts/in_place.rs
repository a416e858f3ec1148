//! Workers of both generations in one StatefulSet, LeaderWorkerSet or ModelServing, with fakes of their controllers.

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
/// The minimum number of ready workers of both generations.
const LEAST: usize = 3;
const LWS: &str = "leaderworkerset.sigs.k8s.io";
const SERVING: &str = "modelserving.volcano.sh";

/// The kind of object that has the workers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Set,
    Groups,
    Serving,
}

fn sets() -> ApiResource {
    resource("apps", "v1", "StatefulSet", "statefulsets")
}

fn groups() -> ApiResource {
    let group = "leaderworkerset.x-k8s.io";
    resource(group, "v1", "LeaderWorkerSet", "leaderworkersets")
}

fn servings() -> ApiResource {
    let group = "workload.serving.volcano.sh";
    resource(group, "v1alpha1", "ModelServing", "modelservings")
}

/// A fake controller that creates and replaces the pods of a StatefulSet, LeaderWorkerSet or ModelServing according to its partition.
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
                // Failures are retried in the next round.
                let _ = follow_groups(&of(groups()), &of(sets())).await;
                let _ = reconcile(&of(sets()), &of(pods())).await;
                let _ = reconcile_serving(&of(servings()), &of(pods())).await;
                tokio::time::sleep(POLL).await;
            }
        }))
    }
}

fn generation_of(object: &DynamicObject) -> String {
    let labels = object.metadata.labels.clone().unwrap_or_default();
    labels.get("generation").cloned().unwrap_or_default()
}

/// Does what the LeaderWorkerSet controller does with the StatefulSet of the leaders.
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

/// Does what the StatefulSet controller does: creates missing replicas below the partition with the current revision, and replaces
/// replicas at or above it that have another revision than the update revision, one at a time, starting with the last.
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
            // A group ends with its leader.
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

/// A fake controller of ModelServings with `recoveryPolicy: ServingGroupRecreate`. It deletes a group that lacks a pod. It creates a
/// missing group below the partition with the current revision, and any other with the updated one. It replaces outdated groups at or
/// above the partition one at a time, beginning with the last.
async fn reconcile_serving(
    servings: &Api<DynamicObject>,
    all: &Api<DynamicObject>,
) -> kube::Result<()> {
    let serving = servings.get(SET).await?;
    let spec = &serving.data["spec"];
    let entry = &spec["template"]["roles"][0]["entryTemplate"];
    let update = entry["metadata"]["labels"]["generation"].as_str().unwrap();
    let current = serving.data["status"]["currentRevision"].as_str();
    let current = current.and_then(|current| current.strip_prefix("workers-"));
    let mut current = current.unwrap_or(update).to_owned();
    let update_of = &spec["rolloutStrategy"]["rollingUpdateConfiguration"];
    let partition = update_of["partition"].as_u64().unwrap_or(0);
    let there = all
        .list(&ListParams::default().labels(&format!("{SERVING}/name={SET}")))
        .await?;
    let now = DeleteParams::default().grace_period(0);
    let pods_of = |index: u64| {
        let group = format!("{SET}-{index}");
        ["0", "1"].map(|pod| format!("{group}-main-0-{pod}"))
    };
    let found = |name: &String| {
        let is_it = |pod: &&DynamicObject| pod.metadata.name.as_ref() == Some(name);
        there.items.iter().find(is_it)
    };
    let (mut missing, mut outdated) = (0, None);
    for index in 0..SIZE {
        let group: Vec<&DynamicObject> = pods_of(index).iter().filter_map(found).collect();
        match *group {
            [] => {
                missing += 1;
                let of = if index < partition { &current } else { update };
                for pod in pods_of(index) {
                    let is_entry = pod.ends_with('0');
                    let labels = json!({
                        "app": if is_entry { SET } else { "members" }, "generation": of,
                        format!("{SERVING}/name"): SET, format!("{SERVING}/group-name"): format!("{SET}-{index}"),
                        format!("{SERVING}/revision"): format!("workers-{of}"), format!("{SERVING}/entry"): is_entry.to_string(),
                    });
                    make(all, &pod, SET, labels).await?;
                    let status = json!({"status": {
                        "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
                        "conditions": [{"type": "Ready", "status": "True"}],
                    }});
                    let params = PatchParams::default();
                    all.patch_status(&pod, &params, &Patch::Merge(status))
                        .await?;
                }
            }
            [left] => {
                missing += 1;
                let name = left.metadata.name.as_deref().unwrap();
                all.delete(name, &now).await?;
            }
            [one, ..] => {
                if index >= partition && generation_of(one) != update {
                    outdated = Some(index);
                }
            }
        }
    }
    if let Some(index) = outdated.filter(|_| missing == 0) {
        for pod in pods_of(index) {
            all.delete(&pod, &now).await?;
        }
        missing += 1;
    }
    if missing == 0 && there.items.iter().all(|pod| generation_of(pod) == update) {
        update.clone_into(&mut current);
    }
    let status = json!({"status": {
        "observedGeneration": serving.metadata.generation, "replicas": SIZE - missing, "availableReplicas": SIZE - missing,
        "currentRevision": format!("workers-{current}"), "updateRevision": format!("workers-{update}"),
    }});
    let params = PatchParams::default();
    servings
        .patch_status(SET, &params, &Patch::Merge(status))
        .await?;
    Ok(())
}

/// The roles of a ModelServing with pods of this generation.
fn roles(generation: &str) -> Value {
    let template = json!({
        "metadata": {"labels": {"app": SET, "generation": generation}}, "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    json!([{
        "name": "main", "replicas": 1, "workerReplicas": 1, "entryTemplate": template, "workerTemplate": template,
    }])
}

/// A StatefulSet, LeaderWorkerSet or ModelServing and its rollout.
struct InPlace {
    managed: Managed,
    kind: Kind,
    _operator: SetOperator,
}

impl InPlace {
    /// A complete StatefulSet of the first generation, without a rollout.
    async fn start() -> Self {
        Self::of(Kind::Set).await
    }

    async fn of(kind: Kind) -> Self {
        let managed = Managed::start(0).await;
        let labels = json!({"app": SET, "generation": "1"});
        let template = json!({
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "any"}]},
        });
        let update = json!({"partition": SIZE});
        let spec = match kind {
            Kind::Groups => json!({
                "replicas": SIZE, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template},
                "rolloutStrategy": {"rollingUpdateConfiguration": update},
            }),
            Kind::Serving => json!({
                "replicas": SIZE, "template": {"roles": roles("1")}, "recoveryPolicy": "ServingGroupRecreate",
                "rolloutStrategy": {"rollingUpdateConfiguration": update},
            }),
            Kind::Set => json!({
                "replicas": SIZE, "serviceName": SET, "selector": {"matchLabels": {"app": SET}}, "template": template,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": update},
            }),
        };
        let in_place = Self {
            _operator: SetOperator::start(&managed.fixture),
            managed,
            kind,
        };
        let fixture = &in_place.managed.fixture;
        fixture
            .create(&in_place.kind(), SET, json!({"spec": spec}))
            .await;
        in_place.holds([4, 0]).await;
        in_place
    }

    fn kind(&self) -> ApiResource {
        match self.kind {
            Kind::Set => sets(),
            Kind::Groups => groups(),
            Kind::Serving => servings(),
        }
    }

    /// Writes the spec of the workers, as a user does.
    async fn write(&self, spec: Value) {
        let patch = json!({"spec": spec});
        self.managed.patch(&self.kind(), SET, patch).await;
    }

    /// Edits their template, as a user does.
    async fn edit_template(&self, generation: &str) {
        let template = json!({"metadata": {"labels": {"generation": generation}}});
        let spec = match self.kind {
            Kind::Groups => json!({"leaderWorkerTemplate": {"workerTemplate": template}}),
            Kind::Serving => json!({"template": {"roles": roles(generation)}}),
            Kind::Set => json!({"template": template}),
        };
        self.write(spec).await;
    }

    /// Applies the rollout, as a user does.
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

    /// Like [`Self::begin`], with exactly the permissions in `deploy/`.
    async fn begin_with_own_rights(&mut self, partition: u32) -> Controller {
        self.apply(partition).await;
        let name = format!("in-place-{}", self.kind().plural);
        let controller = self.managed.controller_with_own_rights(&name).await;
        self.managed.fixture.proxy("chat").await;
        controller
    }

    /// The generation of each pod. Groups count by their leader.
    async fn generations(&self) -> Vec<String> {
        let api = self.managed.fixture.api(&pods());
        let found = api.list(&ListParams::default().labels("app=workers")).await;
        found.unwrap().items.iter().map(generation_of).collect()
    }

    /// The number of pods of the first and of the second generation.
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
        match self.kind {
            Kind::Groups | Kind::Serving => {
                spec["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"].clone()
            }
            Kind::Set => spec["updateStrategy"]["rollingUpdate"]["partition"].clone(),
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

    /// Waits until `condition` holds for the status, and checks the limits meanwhile.
    async fn until(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            let pods = self.generations().await;
            let enough = LEAST..=SIZE as usize;
            assert!(enough.contains(&pods.len()), "{pods:?}");
            let object = self.managed.rollout().await;
            if condition(&object["status"]) {
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

    async fn wait_for_message(&self, what: &str) -> Value {
        self.until(what, |status| {
            let message = status["message"].as_str().unwrap_or_default();
            message.contains(what)
        })
        .await
    }
}

#[tokio::test]
async fn one_stateful_set_is_replaced_pod_by_pod_up_to_the_hand_over() {
    let mut set = InPlace::start().await;
    set.apply(0).await;
    let _controller = set.managed.fixture.controller(&["--rollouts"]).await;
    // Nothing happens until there is a second generation.
    let object = set
        .wait_for_message("has only one revision, workers-1: edit the pod template")
        .await;
    assert_eq!(object["status"]["phase"], "Refused");
    set.edit_template("2").await;
    set.managed.fixture.proxy("chat").await;
    let object = set.wait_for_message("clients to be routed").await;
    set.holds([0, 4]).await;
    assert_eq!(set.partition().await, 0);
    set.managed.fixture.wait_for_split("chat", 0, 1).await;
    let status = &object["status"];
    let accepted = &status["accepted"];
    let revision = |generation: &str| accepted[generation]["roles"]["worker"]["revision"].clone();
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
    // The StatefulSet no longer has its first revision.
    set.managed.edit(json!({"intent": "Abort"})).await;
    set.wait_for_message("creates workers of revision workers-2 instead of workers-1")
        .await;
    assert_eq!(set.partition().await, 0);
    set.managed.edit(json!({"intent": "Run"})).await;
    set.phase("Complete").await;
}

#[tokio::test]
async fn one_stateful_set_is_rolled_back_and_forward_again() {
    assert_rolls_back_and_forward(InPlace::start().await).await;
}

#[tokio::test]
async fn one_leader_worker_set_is_rolled_back_and_forward_again() {
    assert_rolls_back_and_forward(InPlace::of(Kind::Groups).await).await;
}

#[tokio::test]
async fn one_model_serving_is_rolled_back_and_forward_again() {
    assert_rolls_back_and_forward(InPlace::of(Kind::Serving).await).await;
}

#[tokio::test]
async fn a_model_serving_that_could_not_be_rolled_back_is_refused() {
    let mut set = InPlace::of(Kind::Serving).await;
    set.write(json!({"recoveryPolicy": "RoleRecreate"})).await;
    set.edit_template("2").await;
    set.apply(0).await;
    let _controller = set.managed.fixture.controller(&["--rollouts"]).await;
    let object = set
        .wait_for_message("has recoveryPolicy RoleRecreate: set it to ServingGroupRecreate")
        .await;
    assert_eq!(object["status"]["phase"], "Refused");
    assert_eq!(set.partition().await, SIZE);
    set.write(json!({"recoveryPolicy": "ServingGroupRecreate"}))
        .await;
    set.managed.fixture.proxy("chat").await;
    set.wait_for_message("clients to be routed").await;
    set.holds([0, 4]).await;
}

async fn assert_rolls_back_and_forward(mut set: InPlace) {
    set.edit_template("2").await;
    let controller = set.begin_with_own_rights(2).await;
    set.phase("Partition").await;
    set.holds([2, 2]).await;
    assert_eq!(set.partition().await, 2);
    set.managed.fixture.wait_for_split("chat", 1, 1).await;
    set.managed.edit(json!({"intent": "Abort"})).await;
    set.phase("RolledBack").await;
    set.holds([4, 0]).await;
    assert_eq!(set.partition().await, 4);
    set.managed.fixture.wait_for_split("chat", 1, 0).await;
    set.managed
        .wait_for_event("PodsReplaced", "replacing workers-")
        .await;
    // A controller that restarts does not mistake its own writes for those of others.
    drop(controller);
    let _controller = set.managed.controller().await;
    let all = json!({"intent": "Run", "strategy": {"partition": 0}});
    set.managed.edit(all).await;
    set.wait_for_message("clients to be routed").await;
    set.holds([0, 4]).await;
    assert_eq!(set.partition().await, 0);
}

#[tokio::test]
async fn another_partition_size_or_template_stops_a_rollout_within_one_object() {
    let mut set = InPlace::start().await;
    set.edit_template("2").await;
    let _controller = set.begin(2).await;
    set.phase("Partition").await;
    let partition =
        |partition: u32| json!({"updateStrategy": {"rollingUpdate": {"partition": partition}}});
    set.write(partition(3)).await;
    set.wait_for_message("another client to stop scaling: it scaled old's workers from 2 to 3")
        .await;
    set.write(partition(2)).await;
    set.phase("Partition").await;
    set.write(json!({"replicas": 3})).await;
    let object = set
        .wait_for_message(
            "the number of replicas to be 4 again, as accepted: another client has set 3",
        )
        .await;
    assert_eq!(object["status"]["phase"], "Contested");
    set.write(json!({"replicas": 4})).await;
    set.phase("Partition").await;
    // The StatefulSet itself creates pods of a third generation as far as the partition allows.
    set.edit_template("3").await;
    set.wait_for_message("creates workers of revision workers-3 instead of workers-2")
        .await;
}
