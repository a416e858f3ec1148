//! The layer inside a frontend follows a cluster as the program does. A test of its own: the way to the API server is told
//! by the environment of the process.

#[path = "support/rig.rs"]
mod rig;

use axum::Router;
use axum::routing::post;
use crossfade::config::ClusterSource;
use crossfade::proxy::SplitLayer;
use rig::*;
use serde_json::json;

#[test]
fn the_layer_follows_the_update_of_a_cluster() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let api = runtime.block_on(ApiServer::start());
    for (name, value) in api.env() {
        // SAFETY: the only test of this process, and nothing reads the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    runtime.block_on(follows(&api));
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
        any_target: true,
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
    // Old is this very process: it needs no asking.
    api.delete("u");
    eventually("old serves", async || is("old").await).await;
    api.event("DeletedAllToOld").await;
    // What /plan tells of the program is told here as well.
    eventually("the remark", async || {
        let remarks = status.remarks.load();
        remarks.iter().any(|remark| remark.contains("names 'mine'"))
    })
    .await;
    assert!(status.lost_for().is_zero());
    api.stop().await;
    eventually("the loss", async || !status.lost_for().is_zero()).await;
}
