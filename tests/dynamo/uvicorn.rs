//! A uvicorn whose application answers before it has read the request. What was not sent of a body must never be taken from the
//! next request on the connection.

use crate::peers::Uvicorn;
use crate::rig::{Client, End, Proxy};

const IMPLEMENTATIONS: [&str; 2] = ["httptools", "h11"];

/// What another client sends through the same proxy. Inside a body it would be a request of its own.
const VICTIMS: usize = 12;

/// Requests whose body has not been sent to its end when the answer comes: the head, and what follows at once.
fn unfinished() -> Vec<(&'static str, String, String)> {
    let mut cases = Vec::new();
    // About as long as the requests of others.
    for length in [100, 200, 400, 5000] {
        let expect = format!("expect: 100-continue\r\ncontent-length: {length}\r\n");
        cases.push(("a body that waits for 100", expect, String::new()));
    }
    // Too long to be gathered before its head is sent.
    for length in [70_000, 300_000] {
        let half = format!("content-length: {length}\r\n");
        cases.push(("half a body", half, "x".repeat(length / 2)));
    }
    let chunked = "transfer-encoding: chunked\r\n";
    let expect = format!("expect: 100-continue\r\n{chunked}");
    cases.push(("chunks that wait for 100", expect, String::new()));
    cases.push(("half a chunk", chunked.into(), "64\r\nxxxx".into()));
    cases
}

#[tokio::test]
async fn a_body_that_uvicorn_did_not_get_is_never_taken_from_the_next_request() {
    for http in IMPLEMENTATIONS {
        let uvicorn = Uvicorn::start(http).await;
        for client_protocol in ["http1", "http2"] {
            let proxy = Proxy::before_url(&uvicorn.address.to_string(), &[]).await;
            for (number, (what, fields, body)) in unfinished().into_iter().enumerate() {
                let what = format!("{http}, {client_protocol}: {what}, {number}");
                let mut attacker = Client::connect(proxy.address).await;
                let target = format!("/attacker/{client_protocol}/{number}");
                attacker
                    .send(format!(
                        "POST {target} HTTP/1.1\r\nhost: a\r\n{fields}\r\n{body}"
                    ))
                    .await;
                let head = attacker.head().await;
                assert_eq!(head.status, 401, "{what}");
                for victim in 0..VICTIMS {
                    assert_served(&proxy, client_protocol, &format!("/{number}/{victim}")).await;
                }
                drop(attacker);
            }
        }
        // The server read the requests that were sent, and no others.
        let seen = uvicorn.seen().await;
        let requests = unfinished().len() * 2;
        let of = |prefix: &str| seen.iter().filter(|line| line.contains(prefix)).count();
        assert_eq!(of("POST /attacker/"), requests, "{http}: {seen:#?}");
        assert_eq!(of("POST /victim/"), requests * VICTIMS, "{http}: {seen:#?}");
        assert_eq!(seen.len(), requests * (VICTIMS + 1), "{http}: {seen:#?}");
    }
}

/// A request of another client is answered as it is, whole.
async fn assert_served(proxy: &Proxy, protocol: &str, target: &str) {
    let target = format!("/victim/{protocol}{target}");
    let headers = [("authorization", "me")];
    let response = if protocol == "http2" {
        let client = crate::rig::client::http2::Client::connect(proxy.address).await;
        client
            .post(&target, &headers, "four")
            .await
            .response()
            .await
    } else {
        crate::rig::client::post(proxy.address, &target, &headers, "four").await
    };
    let expected = (200, End::Clean, format!("POST {target} 4"));
    assert_eq!((response.status, response.end, response.text()), expected);
}

#[tokio::test]
async fn an_early_answer_of_uvicorn_reaches_the_client_whole_while_it_still_sends() {
    for http in IMPLEMENTATIONS {
        let uvicorn = Uvicorn::start(http).await;
        let proxy = Proxy::before_url(&uvicorn.address.to_string(), &[]).await;
        for length in [1_000, 100_000, 4_000_000] {
            let mut client = Client::connect(proxy.address).await;
            let body = "x".repeat(length);
            client.post("/early", &[], &body).await;
            let response = client.response().await;
            assert_eq!(
                (response.status, response.end),
                (401, End::Clean),
                "{length}"
            );
            assert_eq!(response.text(), "who are you?");
        }
    }
}
