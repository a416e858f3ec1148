//! Streams move off old while a controller drains it.

use serde_json::{Value, json};

use super::fixture::Fixture;
use super::live_page::{reader, wait_for_page_event};
use crate::browser::Browser;
use crate::rig::*;

const WORDS: usize = 20;
/// The streams through each of two proxies.
const EACH: u64 = 2;

/// The condition that says why the update is not complete.
fn progressing(update: &Value) -> Value {
    let conditions = update["status"]["conditions"].as_array().cloned();
    let mut conditions = conditions.unwrap_or_default().into_iter();
    let found = conditions.find(|condition| condition["type"] == "Progressing");
    found.unwrap_or_default()
}

/// A frontend that also says that its model is ready.
async fn frontend(server: Counting) -> Upstream {
    let server = server.handler();
    // The update remains after the test, so no other test may get the port that it names.
    Upstream::at(Port::for_good(), move |received| {
        match received.target.as_str() {
            "/v1/models/tiny/ready" => Script::new().json(200, "{}"),
            _ => server(received),
        }
    })
    .await
}

/// The text of a stream of chat.
fn text(response: &Response) -> String {
    let text = response.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let chunks = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let content = |chunk: Value| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned());
    chunks.filter_map(content).collect()
}

#[tokio::test]
async fn streams_that_are_to_move_are_in_the_status_and_on_the_page_until_old_is_empty() {
    let mut fixture = Fixture::start().await;
    fixture.old = frontend(Counting::new("old", WORDS).breaking(5, Script::hang)).await;
    fixture.new = frontend(Counting::new("new", WORDS)).await;
    let moves = json!({
        "failover": {"continuation": {"mode": "AnyGeneration"}},
        "drain": {"moveAfterSeconds": 3600},
    });
    fixture.begin(moves).await;
    fixture.proxy("up").await;
    let mut open = Vec::new();
    for proxy in &fixture.proxies {
        let labels = [("generation", "new"), ("state", "supported")];
        proxy
            .counts("crossfade_continuation_capability", &labels, 1.0)
            .await;
        for _ in 0..EACH {
            let mut client = client::open_chat(proxy.address).await;
            let head = client.head().await;
            open.push((client, head));
        }
    }
    let controller = fixture.controller(&[]).await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 1, 1).await;
    assert_eq!(
        fixture.get("up").await["status"]["old"]["movingStreams"],
        Value::Null
    );
    fixture.delete_old_workers().await;
    let update = fixture
        .until("up", "all streams are to move", |update| {
            update["status"]["old"]["movingStreams"] == 2 * EACH
                && progressing(update)["reason"] == "Moving"
        })
        .await;
    assert_eq!(update["status"]["phase"], "Draining", "{update}");
    let message = update["status"]["message"].to_string();
    assert!(
        message.contains("waiting for 4 streams on old to move to new"),
        "{message}"
    );
    let mut page = reader(&controller).await;
    wait_for_page_event(&mut page, |event| {
        let event = event.to_string();
        event.matches(&format!("\"moving\":{EACH}")).count() >= 2
    })
    .await;
    if let Some(mut browser) = Browser::start().await {
        browser.open(&format!("http://{}/", controller.admin)).await;
        browser
            .until("#alert", |text| text.contains("moves 2 streams off old"))
            .await;
    }
    fixture
        .edit("up", json!({"drain": {"moveAfterSeconds": 0}}))
        .await;
    for (mut client, head) in open {
        let response = client.rest(head).await;
        assert_eq!(response.end, End::Clean, "{}", response.text());
        assert_eq!(text(&response), words(WORDS));
    }
    let update = fixture
        .until("up", "complete", |update| {
            update["status"]["phase"] == "Complete"
        })
        .await;
    assert_eq!(
        update["status"]["old"]["movingStreams"],
        Value::Null,
        "{update}"
    );
    for proxy in &fixture.proxies {
        let moved = [("outcome", "continued"), ("reason", "planned_move")];
        proxy
            .counts("crossfade_continuations_total", &moved, EACH as f64)
            .await;
    }
}
