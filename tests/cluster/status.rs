//! `crossfade status` reads an update through the API server, with and without the permission to query its proxies.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::fixture::{Fixture, UPDATE};
use crate::rig;

fn status(kubeconfig: &Path, form: &str) -> String {
    let mut command = Command::new(crate::program());
    let command = command.args(["status", UPDATE, "-n", "default", "-o", form]);
    let output = command.env("KUBECONFIG", kubeconfig).output();
    let output = output.expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn status_queries_the_sidecars_through_the_api_server() {
    let fixture = Fixture::ready().await;
    fixture.update(25).await;
    for _ in 0..4 {
        rig::client::chat(fixture.address).await;
    }
    let Some(kubeconfig) = fixture.cluster.kubeconfig() else {
        return eprintln!("SKIPPED: status: the permissions in this cluster cannot be changed");
    };
    let report: Value = serde_json::from_str(&status(&kubeconfig, "json")).expect("JSON");
    assert_eq!(report["origin"], "1 proxy, queried through the API server");
    assert_eq!(report["total"]["plan"]["percent"], 25);
    assert_eq!(report["total"]["plan"]["resource"]["name"], UPDATE);
    let pod = &fixture.old_pods()[0]["metadata"]["name"];
    assert_eq!(&report["proxies"][0]["name"], pod);
    println!("{}", status(&kubeconfig, "text"));

    // As a user who may only read updates.
    let config = fixture
        .cluster
        .kubectl(&["config", "view", "--raw", "-o", "json"]);
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    let token = fixture
        .cluster
        .kubectl(&["create", "token", "crossfade-sidecar"]);
    config["users"][0]["user"] = json!({"token": token.trim()});
    let directory = tempfile::tempdir().expect("a directory");
    let reader = directory.path().join("kubeconfig");
    std::fs::write(&reader, config.to_string()).expect("the temporary directory is writable");
    let text = status(&reader, "text");
    let expected = "the status of the resource only: cannot list the pods: pods is forbidden";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("wanted     25.0%"), "{text}");
}
