//! The new Service is of type `ExternalName`, which cluster DNS resolves to a CNAME.

use crate::fixture::{Fixture, UPDATE, eventually};
use crate::rig::{self, CHAT};

/// A namespace without a relation to the update.
const ELSEWHERE: &str = "elsewhere";
const PROMPT: &str = r#"{"model":"tiny","max_tokens":50,"messages":[{"role":"user","content":"secret <<words=3>>"}]}"#;

/// Creates the ExternalName Service `alias` in the namespace of the update.
fn alias_of(fixture: &Fixture, name: &str) {
    fixture.apply(&format!(
        "apiVersion: v1
kind: Service
metadata: {{name: alias}}
spec: {{type: ExternalName, externalName: {name}}}
"
    ));
}

/// Creates a Service in another namespace whose only endpoint is the frontend of new, so that it responds to every request.
fn create_service_elsewhere(fixture: &Fixture) {
    let pods = fixture.cluster.get(&["pods", "-l", "app=new-frontend"]);
    let ip = pods["items"][0]["status"]["podIP"].as_str().unwrap();
    fixture.apply(&format!(
        "apiVersion: v1
kind: Namespace
metadata: {{name: {ELSEWHERE}}}
---
apiVersion: v1
kind: Service
metadata: {{name: catcher, namespace: {ELSEWHERE}}}
spec: {{ports: [{{name: http, port: 8000}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: catcher, namespace: {ELSEWHERE}, labels: {{kubernetes.io/service-name: catcher}}}}
addressType: IPv4
ports: [{{name: http, port: 8000}}]
endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]
"
    ));
}

async fn generation(fixture: &Fixture) -> String {
    let response = rig::client::post(fixture.address, CHAT, &[], PROMPT).await;
    assert_eq!(response.status, 200, "{}", response.text());
    response.generation().to_owned()
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn an_alias_that_leads_out_of_the_namespace_gets_no_prompt_and_one_within_it_does() {
    let fixture = Fixture::ready().await;
    create_service_elsewhere(&fixture);
    alias_of(&fixture, &format!("catcher.{ELSEWHERE}.svc.cluster.local"));
    fixture.cluster.apply(&format!(
        "apiVersion: nvidia.com/v1alpha1
kind: DynamoUpdateConfig
metadata: {{name: {UPDATE}}}
spec:
  newFrontendService: alias:8000
  trafficSplitPercent: 100
  sourceDeployment: dgd-old
"
    ));
    fixture.in_force(100).await;
    let logs = ["logs", "deployment/old-frontend", "-c", "crossfade"];
    eventually("the proxy says why it is not used", async || {
        let output = fixture.cluster.kubectl(&logs);
        output.contains("is an alias of catcher.elsewhere.svc.cluster.local")
            && output.contains("outside its namespace")
    })
    .await;
    for _ in 0..20 {
        assert_eq!(generation(&fixture).await, "old");
    }
    // The alias is used once it resolves to a Service in the same namespace.
    alias_of(&fixture, "new.default.svc.cluster.local");
    eventually("new serves", async || generation(&fixture).await == "new").await;
    fixture
        .cluster
        .kubectl(&["delete", "duc", UPDATE, "--ignore-not-found"]);
    let namespace = ["delete", "namespace", ELSEWHERE, "--wait=false"];
    fixture.cluster.kubectl(&namespace);
    fixture.cluster.kubectl(&["delete", "service", "alias"]);
}
