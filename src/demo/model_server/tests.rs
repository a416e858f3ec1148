//! The model server, on real sockets of this machine.

use super::*;
use hyper::client::conn::http1::{SendRequest, handshake};
use tokio::net::TcpStream;

async fn connect(server: &ModelServer) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let (client, io) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(io);
    client
}

async fn send(server: &ModelServer, path: &str, question: Option<Value>) -> Response<Incoming> {
    let request = match question {
        Some(question) => Request::post(path).body(Full::from(question.to_string())),
        None => Request::get(path).body(Full::default()),
    };
    connect(server)
        .await
        .send_request(request.unwrap())
        .await
        .unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .to_vec(),
    )
    .unwrap()
}

/// The data of each event; the last is not JSON.
fn events(stream: &str) -> (Vec<Value>, &str) {
    let data: Vec<&str> = stream
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").unwrap())
        .collect();
    let (last, events) = data.split_last().unwrap();
    (
        events
            .iter()
            .map(|event| serde_json::from_str(event).unwrap())
            .collect(),
        last,
    )
}

#[tokio::test]
async fn a_chat_stream_is_role_tokens_finish_usage_and_done() {
    let server = ModelServer::start(Generation::New).unwrap();
    let question = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": true, "max_tokens": 3,
        "stream_options": {"include_usage": true},
    });
    let response = send(&server, "/v1/chat/completions", Some(question)).await;
    assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
    let stream = text(response).await;
    let (events, last) = events(&stream);
    assert_eq!(last, "[DONE]");
    assert_eq!(events.len(), 6);
    assert!(
        events
            .iter()
            .all(|event| event["object"] == "chat.completion.chunk"
                && event["id"] == events[0]["id"])
    );
    assert!(
        events
            .iter()
            .all(|event| event["system_fingerprint"] == "demo-new")
    );
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let said: Vec<&str> = events[1..4]
        .iter()
        .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["Hello! ", "The ", "new "]);
    assert_eq!(events[4]["choices"][0]["finish_reason"], "length");
    assert_eq!(
        (
            &events[5]["choices"],
            &events[5]["usage"]["completion_tokens"]
        ),
        (&json!([]), &json!(3))
    );
}

#[tokio::test]
async fn completions_stream_and_both_families_answer_in_one_piece() {
    let server = ModelServer::start(Generation::Old).unwrap();
    let prompt =
        |stream| json!({"model": MODEL, "prompt": "hi", "max_tokens": 2, "stream": stream});
    let stream = text(send(&server, "/v1/completions", Some(prompt(true))).await).await;
    let (events, _) = events(&stream);
    assert_eq!(
        (&events[0]["object"], &events[0]["choices"][0]["text"]),
        (&json!("text_completion"), &json!("Ahoy, "))
    );
    for (path, said) in [
        ("/v1/completions", "/choices/0/text"),
        ("/v1/chat/completions", "/choices/0/message/content"),
    ] {
        let answer: Value =
            serde_json::from_str(&text(send(&server, path, Some(prompt(false))).await).await)
                .unwrap();
        assert_eq!(answer.pointer(said), Some(&json!("Ahoy, this ")), "{path}");
        assert_eq!(answer["usage"]["completion_tokens"], 2);
    }
}

#[tokio::test]
async fn both_generations_can_have_the_same_model_and_unknown_names_are_rejected() {
    for (generation, owner) in [(Generation::Old, "demo-old"), (Generation::New, "demo-new")] {
        let server = ModelServer::start(generation).unwrap();
        let models: Value =
            serde_json::from_str(&text(send(&server, "/v1/models", None).await).await).unwrap();
        assert_eq!(
            (&models["data"][0]["id"], &models["data"][0]["owned_by"]),
            (&json!(MODEL), &json!(owner))
        );
        assert_eq!(
            send(&server, "/health", None).await.status(),
            StatusCode::OK
        );
        assert_eq!(
            send(&server, "/nowhere", None).await.status(),
            StatusCode::NOT_FOUND
        );
        let stranger = send(
            &server,
            "/v1/completions",
            Some(json!({"model": "stranger"})),
        )
        .await;
        assert_eq!(stranger.status(), StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn a_kill_cuts_streams_refuses_connections_and_a_revival_serves_on_the_same_port() {
    let mut server = ModelServer::start(Generation::Old).unwrap();
    let question = json!({"model": MODEL, "messages": [], "stream": true});
    let mut body = send(&server, "/v1/chat/completions", Some(question))
        .await
        .into_body();
    assert!(body.frame().await.unwrap().is_ok());
    server.kill();
    let end = loop {
        match body.frame().await {
            Some(Ok(_)) => {}
            end => break end,
        }
    };
    assert!(end.is_some_and(|end| end.is_err()), "cut, not ended");
    assert_eq!(
        TcpStream::connect(server.address())
            .await
            .unwrap_err()
            .kind(),
        io::ErrorKind::ConnectionRefused
    );
    server.restart().unwrap();
    assert_eq!(
        send(&server, "/health", None).await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_text_is_continued_where_it_ends_and_contradicting_fields_are_refused() {
    let server = ModelServer::start(Generation::Old).unwrap();
    let said: String = crate::demo::transcript::words(Generation::New)
        .take(5)
        .collect();
    let question = |both: bool| {
        json!({
            "model": MODEL, "max_tokens": 3, "stream": true,
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": said}],
            "continue_final_message": true, "add_generation_prompt": both,
        })
    };
    let refused = send(&server, "/v1/chat/completions", Some(question(true))).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert!(text(refused).await.contains("Cannot set both"));
    let response = send(&server, "/v1/chat/completions", Some(question(false))).await;
    let stream = text(response).await;
    let (events, _) = events(&stream);
    let words: Vec<_> = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .filter(|word| !word.is_empty())
        .collect();
    let expected: Vec<_> = crate::demo::transcript::words(Generation::New)
        .skip(5)
        .take(3)
        .collect();
    assert_eq!(words, expected);
}
