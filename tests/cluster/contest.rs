//! Two resources for one deployment.

use crate::stage::{Stage, UPDATE, within_patience};

const YOUNGER: &str = "younger-update";

#[tokio::test]
#[ignore = "in a cluster"]
async fn of_two_resources_the_older_rules_until_the_younger_supersedes_it() {
    let stage = Stage::ready().await;
    stage.update(25).await;
    stage.cluster.apply(&format!(
        "apiVersion: nvidia.com/v1alpha1
kind: DynamoUpdateConfig
metadata: {{name: {YOUNGER}}}
spec:
  newFrontendService: new.default.svc.cluster.local:8000
  trafficSplitPercent: 75
  sourceDeployment: dgd-old
"
    ));
    within_patience("the conflict is told", async || {
        let events = stage.cluster.get(&["events"]);
        let events = events["items"].as_array().expect("a list");
        events.iter().any(|event| {
            event["reason"] == "Conflict" && event["involvedObject"]["name"] == YOUNGER
        })
    })
    .await;
    let plan = stage.only_plan().await;
    assert_eq!(plan["trafficSplitPercent"], 25, "{plan}");
    assert!(plan["remarks"].to_string().contains(YOUNGER), "{plan}");

    let patch = format!(r#"{{"spec":{{"supersedes":"{UPDATE}"}}}}"#);
    let args = ["patch", "duc", YOUNGER, "--type=merge", "-p", &patch];
    stage.cluster.kubectl(&args);
    stage.in_force(75).await;
}
