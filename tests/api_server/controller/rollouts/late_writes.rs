//! A leader is killed right after it has sent a write, and the API server carries that out only later.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::super::fixture::Controller;
use super::operator::deployments;
use super::{Managed, rollouts};

const LATE: &str = "a write of an earlier leader";

impl Managed {
    /// Makes the status look as if the leader had been killed after announcing a write, and aborts the rollout.
    async fn is_killed_and_aborted(&mut self, controller: Controller, memory: Value) -> Controller {
        drop(controller);
        let status = Patch::Merge(json!({"status": {"memory": memory}}));
        let api = self.fixture.api(&rollouts());
        let params = PatchParams::default();
        api.patch_status("chat", &params, &status).await.unwrap();
        self.edit(json!({"intent": "Abort"})).await;
        self.controller().await
    }

    /// Checks that the controller waits for the write, and leaves everything as it is while it observes repeatedly.
    async fn waits_for_the_late_write(&self, controller: &Controller, sizes: (u64, u64, u64)) {
        let object = self.waits_for(LATE).await;
        let status = &object["status"];
        assert_eq!(status["phase"], "RollingBack", "{status:#}");
        assert!(
            status["message"].as_str().unwrap().contains(LATE),
            "{status:#}"
        );
        let before = self.fixture.get("chat").await["spec"]["weights"].clone();
        let observations = async || {
            let metrics = controller.metrics().await;
            metrics.sum("crossfade_controller_reconciles_total", &[])
        };
        let first = observations().await;
        crate::rig::eventually("it observes repeatedly", async || {
            assert_eq!(self.sizes().await, sizes);
            assert_eq!(self.fixture.get("chat").await["spec"]["weights"], before);
            observations().await >= first + 3.0
        })
        .await;
    }
}

#[tokio::test]
async fn an_abort_waits_for_a_size_that_an_earlier_leader_may_have_sent() {
    let mut managed = Managed::with_rollout(json!({"strategy": {"partition": 2}})).await;
    let controller = managed.controller().await;
    managed.phase("Partition").await;
    managed.rests_at(2, 2).await;
    managed.fixture.wait_for_split("chat", 1, 1).await;
    let resizing = json!({"generation": "old", "sizes": {"worker": 0}});
    let controller = managed
        .is_killed_and_aborted(controller, json!({"resizing": resizing}))
        .await;
    managed
        .waits_for_the_late_write(&controller, (2, 2, 4))
        .await;
    // It arrives.
    let scaled = Patch::Merge(json!({"spec": {"replicas": 0}}));
    let api = managed.fixture.api(&deployments());
    let params = PatchParams::default();
    api.patch_scale("v1", &params, &scaled).await.unwrap();
    managed.phase("RolledBack").await;
    managed.rests_at(4, 0).await;
    managed.fixture.wait_for_split("chat", 1, 0).await;
}

#[tokio::test]
async fn an_abort_waits_for_a_retirement_that_an_earlier_leader_may_have_sent() {
    let mut managed = Managed::with_rollout(json!({})).await;
    let controller = managed.controller().await;
    managed.waits_for("clients to be routed").await;
    managed.move_clients().await;
    managed.phase("Complete").await;
    managed.rests_at(0, 4).await;
    let controller = managed
        .is_killed_and_aborted(controller, json!({"retiring": true}))
        .await;
    managed
        .waits_for_the_late_write(&controller, (0, 4, 4))
        .await;
}
