//! A person looks at an update: through the API server, with and without the right to ask its proxies.

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
async fn a_status_asks_the_sidecars_through_the_api_server_where_it_may() {
    let fixture = Fixture::ready().await;
    fixture.update(25).await;
    for _ in 0..4 {
        rig::client::chat(fixture.address).await;
    }
    let Some(kubeconfig) = fixture.cluster.kubeconfig() else {
        return eprintln!("SKIPPED: a status: this cluster's rights are not ours to choose");
    };
    let look: Value = serde_json::from_str(&status(&kubeconfig, "json")).expect("JSON");
    assert_eq!(look["origin"], "1 proxy, queried through the API server");
    assert_eq!(look["total"]["plan"]["percent"], 25);
    assert_eq!(look["total"]["plan"]["resource"]["name"], UPDATE);
    let pod = &fixture.old_pods()[0]["metadata"]["name"];
    assert_eq!(&look["proxies"][0]["name"], pod);
    println!("{}", status(&kubeconfig, "text"));

    // Of one who may read updates and nothing else.
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
    std::fs::write(&reader, config.to_string()).expect("it is ours");
    let text = status(&reader, "text");
    let said = "the status of the resource only: cannot list the pods: pods is forbidden";
    assert!(text.contains(said), "{text}");
    assert!(text.contains("wanted     25.0 %"), "{text}");
}
