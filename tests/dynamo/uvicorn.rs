//! A uvicorn whose application responds before it has read the request. The server must never read the missing part of a body from
//! the next request on the connection.

use crate::peers::Uvicorn;
use crate::rig::{Client, End, Proxy};

const IMPLEMENTATIONS: [&str; 2] = ["httptools", "h11"];

/// The number of requests that another client sends through the same proxy. Uvicorn must not read them as part of a body.
const VICTIMS: usize = 12;

/// Requests whose body is not complete when the response arrives: a name, the head, and the part of the body that is sent.
fn unfinished() -> Vec<(&'static str, String, String)> {
    let mut cases = Vec::new();
    // About as long as the requests of the other client.
    for length in [100, 200, 400, 5000] {
        let expect = format!("expect: 100-continue\r\ncontent-length: {length}\r\n");
        cases.push(("a body that waits for 100", expect, String::new()));
    }
    // Too long to be buffered before the head is sent.
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
async fn the_missing_part_of_a_body_is_never_read_from_the_next_request() {
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
        // The server read exactly the requests that were sent.
        let seen = uvicorn.seen().await;
        let requests = unfinished().len() * 2;
        let of = |prefix: &str| seen.iter().filter(|line| line.contains(prefix)).count();
        assert_eq!(of("POST /attacker/"), requests, "{http}: {seen:#?}");
        assert_eq!(of("POST /victim/"), requests * VICTIMS, "{http}: {seen:#?}");
        assert_eq!(seen.len(), requests * (VICTIMS + 1), "{http}: {seen:#?}");
    }
}

/// Asserts that a request of another client gets its own, complete response.
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
async fn an_early_response_of_uvicorn_reaches_a_client_that_is_still_sending() {
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
