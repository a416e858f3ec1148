//! `GET /v1/models` and `/v1/models/{id}`: the models of both generations while both serve.

use crate::rig::*;

fn ids(response: &Response) -> Vec<String> {
    let json = response.json();
    let list = json["data"].as_array().unwrap();
    let mut ids: Vec<_> = list
        .iter()
        .map(|model| model["id"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids
}

/// A server that knows these models, each also by its own path.
async fn knowing(ids: &'static [&'static str], name: &'static str) -> Upstream {
    Upstream::start(move |received| {
        let Some(rest) = received.target.strip_prefix("/v1/models") else {
            return status(500);
        };
        match rest.strip_prefix('/') {
            None => models(ids),
            Some(id) if ids.contains(&id.trim_end_matches("/ready")) => {
                Script::new().json(200, &format!(r#"{{"id":"{id}","by":"{name}"}}"#))
            }
            Some(_) => model_not_found(),
        }
    })
    .await
}

#[tokio::test]
async fn the_list_is_the_union_by_id_while_new_has_a_share() {
    let old = knowing(&["both", "only-old"], "old").await;
    let new = knowing(&["both", "only-new"], "new").await;
    for percent in [1, 50, 100] {
        let proxy = Proxy::split(&old, &new, percent).await;
        let response = client::get(proxy.address, MODELS).await;
        assert_eq!((response.status, response.end), (200, End::Clean));
        assert_eq!(ids(&response), ["both", "only-new", "only-old"]);
        assert_eq!(response.json()["object"], "list");
    }
}

#[tokio::test]
async fn once_old_drains_only_new_is_queried_for_models() {
    let old = knowing(&["only-old"], "old").await;
    let new = knowing(&["only-new"], "new").await;
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, "oldDraining: true"));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let response = client::get(proxy.address, MODELS).await;
    assert_eq!(ids(&response), ["only-new"]);
    assert_eq!(response.generation(), "new");
    let one = client::get(proxy.address, &format!("{MODELS}/only-old")).await;
    assert_eq!(one.status, 404);
    assert_eq!(old.count(), 0);
}

#[tokio::test]
async fn the_list_is_that_of_old_byte_for_byte_while_new_has_no_share() {
    let body = r#"{ "object":"list" , "data":[{"id":"a","x":[1, 2]}]}"#;
    let old = Upstream::always(Script::new().json(200, body)).await;
    let new = knowing(&["b"], "new").await;
    let proxy = Proxy::split(&old, &new, 0).await;
    client::get(proxy.address, MODELS).await.assert_is(body);
    assert_eq!(new.count(), 0);
}

#[tokio::test]
async fn the_union_is_neither_conditional_nor_described_by_fields_of_one_list() {
    let list = |id: &'static str| {
        Upstream::start(move |received| {
            for name in [
                "if-match",
                "if-none-match",
                "range",
                "accept-encoding",
                "upgrade",
                "connection",
            ] {
                assert_eq!(received.header(name), None, "{name}");
            }
            let body = format!(r#"{{"object":"list","data":[{{"id":"{id}"}}]}}"#);
            let length = body.len().to_string();
            let fields = [
                ("content-type", "application/json"),
                ("content-length", &length),
                ("etag", "\"1\""),
                ("last-modified", "Sun, 29 Nov 2026 08:00:00 GMT"),
                ("accept-ranges", "bytes"),
                ("content-digest", "sha-256=:AA==:"),
                ("age", "7"),
                ("x-by", id),
            ];
            Script::new().head(200, &fields).raw(body)
        })
    };
    let (old, new) = (list("only-old").await, list("only-new").await);
    let proxy = Proxy::split(&old, &new, 50).await;
    let mut client = client::Client::connect(proxy.address).await;
    let conditional = [
        ("if-match", "\"2\""),
        ("if-none-match", "\"1\""),
        ("range", "bytes=0-3"),
        ("accept-encoding", "gzip"),
        ("upgrade", "websocket"),
        ("connection", "close, upgrade"),
    ];
    client.get(MODELS, &conditional).await;
    let response = client.response().await;
    assert_eq!(response.status, 200);
    assert_eq!(ids(&response), ["only-new", "only-old"]);
    for name in [
        "etag",
        "last-modified",
        "accept-ranges",
        "content-digest",
        "age",
    ] {
        assert_eq!(response.header(name), None, "{name}");
    }
    assert_eq!(response.header("x-by"), Some("only-old"));
}

#[tokio::test]
async fn if_one_generation_fails_the_list_is_that_of_the_other() {
    for failing in [
        status(503),
        empty_404(),
        Script::new().reset(),
        Script::new().json(200, "no JSON"),
    ] {
        let old = knowing(&["a"], "old").await;
        let new = Upstream::always(failing.clone()).await;
        let proxy = Proxy::split(&old, &new, 50).await;
        assert_eq!(ids(&client::get(proxy.address, MODELS).await), ["a"]);
        let new = knowing(&["b"], "new").await;
        let old = Upstream::always(failing).await;
        let proxy = Proxy::split(&old, &new, 50).await;
        let response = client::get(proxy.address, MODELS).await;
        assert_eq!(response.status, 200);
        assert!(
            response.text() == "no JSON" || ids(&response) == ["b"],
            "{}",
            response.text()
        );
    }
}

#[tokio::test]
async fn both_generations_failing_is_an_error_that_names_them() {
    let (old, new) = (
        Upstream::always(Script::new().reset()).await,
        Upstream::nobody(),
    );
    let (old, new) = (old.url(), new.to_string());
    let proxy = Proxy::start(&["--old", &old, "--new", &new, "--split", "50"]).await;
    let response = client::get(proxy.address, MODELS).await;
    assert_eq!(response.status, 502);
    let message = response.own_error()["message"].to_string();
    assert!(
        message.contains("old") && message.contains("new"),
        "{message}"
    );
}

#[tokio::test]
async fn a_model_is_described_by_the_generation_that_has_it() {
    let old = knowing(&["both", "only-old"], "old").await;
    let new = knowing(&["both", "only-new"], "new").await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for (path, by) in [
        ("/v1/models/only-old", "old"),
        ("/v1/models/only-new", "new"),
        ("/v1/models/only-new/ready", "new"),
    ] {
        let response = client::get(proxy.address, path).await;
        assert_eq!(response.json()["by"], by, "{path}");
    }
    let response = client::get(proxy.address, "/v1/models/both").await;
    assert_eq!(response.status, 200);
    let response = client::get(proxy.address, "/v1/models/none").await;
    assert_eq!(
        (response.status, response.text().as_str()),
        (404, MODEL_NOT_FOUND)
    );
}
