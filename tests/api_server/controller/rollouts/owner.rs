//! What the owner of a rollout gives it: quotas.

use serde_json::{Value, json};

use super::Managed;
use super::operator::deployments;
use crate::controller::fixture::resource;

fn is_refused(status: &Value, why: &str) -> bool {
    let message = status["message"].as_str().unwrap_or_default();
    status["phase"] == "Refused" && message.contains(why)
}

#[tokio::test]
async fn a_quota_that_does_not_admit_a_new_worker_is_reported_before_the_first_write() {
    let mut managed = Managed::set(4).await;
    let container =
        json!({"name": "main", "image": "any", "resources": {"limits": {"example.com/nic": "2"}}});
    let template = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
    managed.patch(&deployments(), "v2", template).await;
    let quotas = resource("", "v1", "ResourceQuota", "resourcequotas");
    let hard = json!({"requests.example.com/nic": "9"});
    let quota = json!({"spec": {"hard": hard}});
    managed.fixture.create(&quotas, "nics", quota).await;
    let used = |used: &str| json!({"hard": hard, "used": {"requests.example.com/nic": used}});
    managed.fixture.status(&quotas, "nics", used("8")).await;
    managed.begin(json!({})).await;
    let _controller = managed.controller().await;
    let why = "2 more of requests.example.com/nic: the quota of the namespace has 1 left";
    managed.until(why, |status| is_refused(status, why)).await;
    assert_eq!(managed.sizes().await.1, 0);
    managed.fixture.status(&quotas, "nics", used("0")).await;
    managed.waits_for("clients to be routed").await;
}
