//! Two updates of the same deployment.

use crate::fixture::{Fixture, UPDATE, eventually};

const YOUNGER: &str = "younger-update";

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_older_of_two_resources_controls_until_the_younger_supersedes_it() {
    let fixture = Fixture::ready().await;
    fixture.update(25).await;
    fixture.cluster.apply(&format!(
        "apiVersion: nvidia.com/v1alpha1
kind: DynamoUpdateConfig
metadata: {{name: {YOUNGER}}}
spec:
  newFrontendService: new.default.svc.cluster.local:8000
  trafficSplitPercent: 75
  sourceDeployment: dgd-old
"
    ));
    eventually("the conflict is reported", async || {
        let events = fixture.cluster.get(&["events"]);
        let events = events["items"].as_array().expect("a list");
        events.iter().any(|event| {
            event["reason"] == "Conflict" && event["involvedObject"]["name"] == YOUNGER
        })
    })
    .await;
    let plan = fixture.only_plan().await;
    assert_eq!(plan["trafficSplitPercent"], 25, "{plan}");
    assert!(plan["remarks"].to_string().contains(YOUNGER), "{plan}");

    let patch = format!(r#"{{"spec":{{"supersedes":"{UPDATE}"}}}}"#);
    let args = ["patch", "duc", YOUNGER, "--type=merge", "-p", &patch];
    fixture.cluster.kubectl(&args);
    fixture.in_force(75).await;
}
