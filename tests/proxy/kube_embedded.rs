//! The layer inside a frontend follows an update in a cluster, like the program.

use std::process::Command;

use crate::rig::*;
use axum::Router;
use axum::routing::post;
use crossfade::config::ClusterSource;
use crossfade::proxy::SplitLayer;
use serde_json::json;

/// Set in the separate process in which the test runs.
const ALONE: &str = "CROSSFADE_TEST_ALONE";

/// The layer finds the API server through the environment of the process, which must not be changed while other threads run. So
/// the test runs itself again in a separate process with another environment.
#[tokio::test]
async fn the_layer_follows_the_update_of_a_cluster() {
    if std::env::var_os(ALONE).is_some() {
        let api = ApiServer::start().await;
        for (name, found) in api.env() {
            assert_eq!(name, "KUBECONFIG");
            std::fs::copy(found, std::env::var_os(name).unwrap()).unwrap();
        }
        return follows(&api).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let this = concat!(
        module_path!(),
        "::the_layer_follows_the_update_of_a_cluster"
    );
    let (_, this) = this.split_once("::").unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", this, "--nocapture"])
        .env(ALONE, "1")
        .env("KUBECONFIG", &kubeconfig)
        .status();
    assert!(status.unwrap().success());
    assert!(kubeconfig.exists(), "no test is called {this}");
}

async fn follows(api: &ApiServer) {
    let new = Upstream::start(healthy("new")).await;
    let to_new = |percent: u8| {
        json!({
            "newFrontendService": new.url(), "trafficSplitPercent": percent, "sourceDeployment": "mine",
        })
    };
    api.apply("u", to_new(0));
    let embedded = SplitLayer::builder().cluster(ClusterSource {
        namespace: Some("default".into()),
        allow_any_target: true,
        ..ClusterSource::of(["mine"])
    });
    let embedded = embedded.start().await.unwrap();
    tokio::spawn(embedded.follow);
    let status = embedded.handle.status;
    let old = post(async || ([("content-type", "text/event-stream")], chat_text("old")));
    let router = Router::new()
        .route("/v1/chat/completions", old)
        .layer(embedded.layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let is = async |name: &str| client::chat(address).await.text() == chat_text(name);
    assert!(is("old").await);
    api.apply("u", to_new(100));
    eventually("new serves", async || is("new").await).await;
    // Old is this process, so it is not queried.
    api.delete("u");
    eventually("old serves", async || is("old").await).await;
    api.event("DeletedAllToOld").await;
    // The embedding frontend gets the same information as `/plan` shows.
    eventually("the remark", async || {
        let remarks = status.remarks.load();
        remarks.iter().any(|remark| remark.contains("names 'mine'"))
    })
    .await;
    assert!(status.lost_for().is_zero());
    api.stop().await;
    eventually("the loss", async || !status.lost_for().is_zero()).await;
}
