//! Regression tests for edge cases: clients that disconnect or send wrong lengths, responses that break off, files that change
//! unnoticed.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime};

use crate::rig::frames::*;
use crate::rig::upstream::Step;
use crate::rig::*;
use plan_file::{mostly_new, mostly_old};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BY_USER: [&str; 2] = ["--affinity-body-field", "user"];

fn trailers() -> Step {
    Step::End(vec![("x-took".into(), "5".into())])
}

/// The head of a POST with a chunked body.
fn chunked() -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
}

fn chunk(letter: &str, count: usize) -> String {
    format!("{count:x}\r\n{}\r\n", letter.repeat(count))
}

#[tokio::test]
async fn a_client_that_disconnects_while_its_body_is_read_for_affinity_returns_its_permit() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let flags = ["--max-requests", "3", BY_USER[0], BY_USER[1]];
    let proxy = Proxy::split_with(&old, &new, 50, &flags).await;
    let mut uploads = Vec::new();
    for _ in 0..3 {
        let mut client = Client::connect(proxy.address).await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n");
        client.send(head + "{\"model\":\"tiny\",").await;
        uploads.push(client);
    }
    eventually("all permits are taken", async || {
        proxy.chat().await.status == 503
    })
    .await;
    drop(uploads);
    eventually("the permits are back", async || {
        proxy.chat().await.status == 200
    })
    .await;
    // All permits are back: three more requests are served concurrently.
    let gate = Gate::closed();
    let slow = Upstream::always(Script::new().sse().wait(&gate).events(&chat_text("old"))).await;
    let proxy = Proxy::split_with(&slow, &slow, 50, &flags).await;
    for _ in 0..3 {
        let mut client = Client::connect(proxy.address).await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n");
        client.send(head + "{\"model\":\"tiny\",").await;
    }
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(
            until("a request is let in", async || {
                let mut client = client::open_chat(proxy.address).await;
                let head = client.head().await;
                (head.status == 200).then_some(client)
            })
            .await,
        );
    }
    gate.open();
    for mut client in open {
        assert_eq!(client.body().await, chat_text("old").as_bytes());
    }
}

#[tokio::test]
async fn an_error_names_the_generation_that_failed_and_the_reason_but_no_address() {
    let (old, new) = ("127.0.0.1:9", "127.0.0.1:1");
    for path in [CHAT, MESSAGES, MODELS] {
        let proxy = Proxy::start(&["--old", old, "--new", new, "--split", "50"]).await;
        let answer = match path {
            MODELS => client::get(proxy.address, path).await,
            path => client::post(proxy.address, path, &[], STREAMING).await,
        };
        assert_eq!(answer.status, 502);
        let body = answer.text();
        for word in ["old: ", "new: ", "connection refused"] {
            assert!(body.contains(word), "{body}");
        }
        assert!(
            !body.contains("127.0.0.1") && !body.contains("os error"),
            "{body}"
        );
        let why = proxy.access_line(1).await["why"].to_string();
        assert!(why.contains(old) && why.contains(new), "{why}");
    }
}

#[tokio::test]
async fn the_last_good_plan_is_never_stored_in_a_file_of_another_user() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let victim = directory.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, state.join("last-good-plan.new")).unwrap();
    let flags = ["--state-dir", state.to_str().unwrap()];
    let _proxy = Proxy::planned(&old, &mostly_new(&new, ""), &flags).await;
    let kept = state.join("last-good-plan.json");
    eventually("it is stored", async || kept.exists()).await;
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    assert!(!kept.is_symlink() && !state.join("last-good-plan.new").exists());
    let mode = std::os::unix::fs::PermissionsExt::mode(&kept.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn the_time_that_a_client_takes_to_send_its_body_does_not_count_against_the_model_server() {
    let slow = Script::new().sse().pause(100).events(&chat_text("old"));
    let old = Upstream::always(slow).await;
    let new = Upstream::start(healthy("new")).await;
    let flags = ["--first-event-timeout", "1", BY_USER[0], BY_USER[1]];
    let proxy = Proxy::split_with(&old, &new, 0, &flags).await;
    let mut client = Client::connect(proxy.address).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n",
        200_000
    );
    client.send(head + "{\"model\":\"tiny\",").await;
    // The client takes this long to send its body, longer than the timeout of the model server.
    tokio::time::sleep(Duration::from_millis(1300)).await;
    client.send(" ".repeat(200_000 - 17) + "}").await;
    client.response().await.assert_is(chat_text("old"));
    assert_eq!(new.count(), 0);
}

#[tokio::test]
async fn no_deadline_of_a_model_server_runs_while_the_proxy_waits_for_the_body() {
    // A shorter body of a known length is collected before the request is sent.
    let rest = " ".repeat(99_999);
    for (protocol, limit) in [
        ("http1", "--first-event-timeout"),
        ("http1", "--upstream-head-timeout"),
        ("http2", "--first-event-timeout"),
        ("http2", "--upstream-head-timeout"),
    ] {
        let events = Script::new().sse().events(&chat_text("old"));
        let old = Upstream::always(events).await;
        let flags = [limit, "0.3", "--upstream-protocol", protocol];
        let proxy = Proxy::before(&old, &flags).await;
        let clients = [
            ("content-length: 100000", "{".to_owned(), rest.clone()),
            (
                "transfer-encoding: chunked",
                "1\r\n{\r\n".to_owned(),
                format!("{:x}\r\n{rest}\r\n0\r\n\r\n", rest.len()),
            ),
        ]
        .map(async |(framing, first, last)| {
            let mut client = Client::connect(proxy.address).await;
            let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n");
            client.send(head + &first).await;
            (client, last)
        });
        let mut open = Vec::new();
        for client in clients {
            open.push(client.await);
        }
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.request(1, 0, "POST", CHAT).await;
        frames.send(DATA, 0, 1, b"{").await;
        tokio::time::sleep(Duration::from_millis(900)).await;
        frames.send(DATA, END_STREAM, 1, b"}").await;
        for (mut client, last) in open {
            client.send(last).await;
            client.response().await.assert_is(chat_text("old"));
        }
        let (body, _) = frames.end_of(1).await;
        assert_eq!(body, chat_text("old").as_bytes(), "{protocol} {limit}");
        assert_eq!(old.count(), 3);
        proxy.outcomes("completed", 3).await;
    }
}

#[tokio::test]
async fn the_deadline_of_the_first_event_continues_once_the_body_has_arrived() {
    for (protocol, is_silent) in [
        ("http1", false),
        ("http1", true),
        ("http2", false),
        ("http2", true),
    ] {
        let gate = Gate::closed();
        // The server sends its head, and then waits for the body.
        let early = Script::new().sse().wait(&gate);
        let early = early.events(&chat_text("old")).leaving_the_body();
        let old = Upstream::always(early).await;
        let flags = ["--first-event-timeout", "0.3"];
        let flags = [&flags[..], &["--upstream-protocol", protocol]].concat();
        let proxy = Proxy::before(&old, &flags).await;
        let mut client = Client::connect(proxy.address).await;
        let start =
            format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
        client.send(start + "1\r\n{\r\n").await;
        let head = client.head().await;
        assert_eq!(head.status, 200);
        tokio::time::sleep(Duration::from_millis(900)).await;
        client.send("1\r\n}\r\n0\r\n\r\n").await;
        if is_silent {
            proxy.outcomes("truncated", 1).await;
            let why = proxy.access_line(1).await["why"].to_string();
            assert!(why.contains("no first event in time"), "{why}");
        } else {
            gate.open();
            client.rest(head).await.assert_is(chat_text("old"));
        }
    }
}

#[tokio::test]
async fn nothing_is_forwarded_after_the_missing_part_of_a_body_that_is_too_large() {
    for more in [&[][..], &BY_USER] {
        let old = Upstream::start(healthy("old")).await;
        let new = Upstream::start(healthy("new")).await;
        let mut flags = vec!["--max-body-bytes", "1000"];
        flags.extend(more);
        let proxy = Proxy::split_with(&old, &new, 50, &flags).await;
        for at_once in [true, false] {
            let mut client = Client::connect(proxy.address).await;
            let parts = [
                chunked(),
                chunk("a", 100),
                chunk("b", 2000),
                chunk("c", 100),
            ];
            let end = "0\r\n\r\n".to_owned();
            if at_once {
                client.send(parts.concat() + &end).await;
            } else {
                for part in parts.iter().chain([&end]) {
                    client.send(part).await;
                }
            }
            let response = client.response().await;
            assert_eq!(response.status, 413, "{more:?}: {}", response.text());
            response.own_error();
        }
        proxy.counts("crossfade_open_streams", &[], 0.0).await;
        for request in old.requests().iter().chain(&new.requests()) {
            eventually("it is cancelled", async || request.is_gone()).await;
            assert!(!request.is_complete(), "{more:?}");
            assert!(!request.body().contains(&b'c'), "{more:?}");
        }
    }
}

#[tokio::test]
async fn an_http2_request_without_exactly_one_authority_is_rejected() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let stream = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let get = || http::Request::get("http://real.example/health");
    let connect = http::Request::builder()
        .method("CONNECT")
        .uri("real.example:80");
    let cases = [
        (
            400,
            get()
                .header("host", "real.example")
                .header("host", "real.example"),
        ),
        (
            400,
            get().header("host", "real.example").header("host", "other"),
        ),
        (400, get().header("host", "other")),
        (501, connect),
        (200, get().header("host", "real.example")),
        (200, get()),
    ];
    for (wanted, request) in cases {
        let before = old.count();
        let request = request.body(()).unwrap();
        let what = format!("{request:?}");
        let mut sender = sender.clone().ready().await.unwrap();
        let is_end = request.method() != "CONNECT";
        let (response, _body) = sender.send_request(request, is_end).unwrap();
        let response = within("an answer", response).await.unwrap();
        assert_eq!(response.status(), wanted, "{what}");
        let forwarded = usize::from(wanted == 200);
        assert_eq!(old.count() - before, forwarded, "{what}");
    }
    connection.abort();
}

#[tokio::test]
async fn uploads_that_are_too_large_or_break_off_do_not_eject_the_endpoint() {
    let old = Upstream::start(healthy("old")).await;
    for protocol in ["http1", "http2"] {
        for breaks_off in [false, true] {
            let flags = ["--max-body-bytes", "1000", "--upstream-protocol", protocol];
            let proxy = Proxy::before(&old, &flags).await;
            for round in 0..10 {
                let before = old.count();
                let mut client = Client::connect(proxy.address).await;
                client.send(chunked() + &chunk("a", 100)).await;
                // The request must have started at the endpoint before the client fails.
                let request = old.request(before + 1).await;
                if breaks_off {
                    drop(client);
                } else {
                    client.send(chunk("b", 2000)).await;
                    assert_eq!(client.response().await.status, 413, "{round}");
                }
                eventually("it is cancelled", async || request.is_gone()).await;
            }
            let plan = proxy.plan().await;
            assert!(plan.contains(&old.url()), "{plan}");
            assert!(!plan.contains("\"healthy\": false"), "{plan}");
            assert!(plan.contains("\"healthy\": true"), "{plan}");
            proxy.chat().await.assert_is(chat_text("old"));
        }
    }
}

#[tokio::test]
async fn a_server_that_disconnects_a_client_whose_upload_stalls_is_not_ejected() {
    let stalls = Script::new().leaving_the_body().pause(1200).reset();
    let old = Upstream::start(move |request| match request.header("x-stalls") {
        Some(_) => stalls.clone(),
        None => healthy("old")(request),
    })
    .await;
    for protocol in ["http1", "http2"] {
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let mut clients = Vec::new();
        for _ in 0..12 {
            let mut client = Client::connect(proxy.address).await;
            let head = chunked().replace("\r\n\r\n", "\r\nx-stalls: 1\r\n\r\n");
            client.send(head + &chunk("a", 100)).await;
            clients.push(client);
        }
        for client in &mut clients {
            assert_eq!(client.response().await.status, 502);
        }
        let plan = proxy.plan().await;
        assert!(!plan.contains("\"healthy\": false"), "{plan}");
        proxy.chat().await.assert_is(chat_text("old"));
    }
}

#[tokio::test]
async fn a_response_that_ends_with_trailers_is_completed() {
    let headers = [("content-type", "application/json")];
    let script = Script::new()
        .head(200, &headers)
        .chunk("{}")
        .step(trailers());
    let old = Upstream::always(script).await;
    for protocol in ["http1", "http2"] {
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let response = client::post(proxy.address, CHAT, &[], UNARY).await;
        response.assert_is("{}");
        proxy.outcomes("completed", 1).await;
        assert_eq!(proxy.access_line(1).await["outcome"], "completed");
    }
}

#[tokio::test]
async fn a_stream_that_ends_with_trailers_before_any_content_is_recovered() {
    for protocol in ["http1", "http2"] {
        let new = Upstream::always(stream_of(&role("new")).step(trailers())).await;
        let old = Upstream::start(healthy("old")).await;
        let flags = ["--upstream-protocol", protocol];
        let proxy = Proxy::planned(&old, &mostly_new(&new, ""), &flags).await;
        proxy.chat().await.assert_is(chat_text("old"));
        assert_eq!((old.count(), new.count()), (1, 1));
        proxy.recovers(&[], 1.0).await;
        proxy.outcomes("completed", 1).await;
    }
}

#[tokio::test]
async fn the_trailers_of_a_recovered_stream_are_those_of_the_second_server() {
    let ends = |by: &str| Step::End(vec![("x-by".into(), by.into())]);
    for protocol in ["http1", "http2"] {
        for hold in ["5", "0"] {
            let gate = Gate::closed();
            let begun = stream_of(&role("new")).wait(&gate).step(ends("new"));
            let new = Upstream::always(begun).await;
            let old = Upstream::always(stream_of(&chat_text("old")).step(ends("old"))).await;
            let lines = format!("failover: {{holdSeconds: {hold}}}");
            let flags = ["--upstream-protocol", protocol];
            let proxy = Proxy::planned(&old, &mostly_new(&new, &lines), &flags).await;
            let mut client = client::open_chat(proxy.address).await;
            let head = client.head().await;
            if hold == "0" {
                client.until(&role("new")).await;
            }
            gate.open();
            let response = client.rest(head).await;
            assert_eq!(response.end, End::Clean, "{protocol}, {hold}");
            assert!(response.text().ends_with(DONE), "{}", response.text());
            let wanted = [("x-by".to_owned(), "old".to_owned())];
            assert_eq!(response.trailers.0, wanted, "{protocol}, {hold}");
            assert_eq!((old.count(), new.count()), (1, 1));
        }
    }
}

#[tokio::test]
async fn the_list_of_models_is_served_while_one_generation_hangs() {
    let answering = Upstream::always(models(&["a"])).await;
    let hanging = Upstream::always(Script::new().hang()).await;
    let one = Proxy::split(&answering, &hanging, 50).await;
    let other = Proxy::split(&hanging, &answering, 50).await;
    let begun = Instant::now();
    let (one, other) = tokio::join!(
        client::get(one.address, MODELS),
        client::get(other.address, MODELS)
    );
    assert!(begun.elapsed() < Duration::from_secs(5));
    for response in [one, other] {
        assert_eq!(response.status, 200);
        assert_eq!(response.json()["data"][0]["id"], "a");
    }
}

#[tokio::test]
async fn only_recovered_requests_count_as_recovered() {
    for body in [STREAMING, UNARY] {
        let old = Upstream::always(status(503)).await;
        let new = Upstream::always(status(503)).await;
        for plan in [mostly_new(&new, ""), mostly_old(&new, "")] {
            let proxy = Proxy::planned(&old, &plan, &[]).await;
            let response = client::post(proxy.address, CHAT, &[], body).await;
            assert_eq!(response.status, 503);
            assert_eq!(proxy.access_line(1).await["attempts"], 2);
            assert_eq!(proxy.recovered(&[]).await, 0.0);
        }
    }
}

#[tokio::test]
async fn a_404_that_breaks_off_is_recovered_or_becomes_a_bad_gateway() {
    let headers = [
        ("content-type", "application/json"),
        ("content-length", "100"),
    ];
    let half = || Script::new().head(404, &headers).chunk("{\"message\":");
    for script in [half().eof(), half().reset()] {
        let failing = Upstream::always(script).await;
        let healthy = Upstream::start(healthy("other")).await;
        let proxy = Proxy::planned(&healthy, &mostly_new(&failing, ""), &[]).await;
        proxy.chat().await.assert_is(chat_text("other"));
        proxy.recovers(&[], 1.0).await;
        let proxy = Proxy::planned(&failing, &mostly_old(&healthy, ""), &[]).await;
        proxy.chat().await.assert_is(chat_text("other"));

        let proxy = Proxy::before(&failing, &[]).await;
        let response = proxy.chat().await;
        assert_eq!((response.status, response.end), (502, End::Clean));
        response.own_error();
        assert_ne!(proxy.access_line(1).await["outcome"], "completed");
    }
}

#[tokio::test]
async fn a_plan_replaced_by_one_with_the_same_length_and_time_is_noticed() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let text = |old, new_share| manifest(&new.url(), old, new_share, "");
    let file = PlanFile::new(&text(1, 0));
    assert_eq!(text(1, 0).len(), text(0, 1).len());
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proxy.serves("old").await;
    for (by, text) in [("new", text(0, 1)), ("old", text(1, 0))] {
        let modified = std::fs::metadata(file.path()).unwrap().modified().unwrap();
        let other = file.directory().join("other");
        let mut writer = std::fs::File::create(&other).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        writer.set_modified(modified).unwrap();
        drop(writer);
        std::fs::rename(other, file.path()).unwrap();
        proxy.serves(by).await;
    }
}

#[tokio::test]
async fn a_half_written_plan_is_not_read_when_another_file_in_its_directory_is_closed() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let text = |old, new_share| manifest(&new.url(), old, new_share, "");
    let file = PlanFile::new(&text(0, 1));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proxy.serves("new").await;
    let mut writer = std::fs::File::create(file.path()).unwrap();
    writer.write_all(text(1, 0).as_bytes()).unwrap();
    for _ in 0..30 {
        // The file changes too often to be considered stable.
        writer.set_modified(SystemTime::now()).unwrap();
        std::fs::write(file.directory().join("neighbour"), "x").unwrap();
        assert_eq!(proxy.chat().await.generation(), "new");
    }
    assert!(proxy.plan().await.contains("\"epoch\": 1"));
    drop(writer);
    proxy.serves("old").await;
}

#[tokio::test]
async fn an_unrequested_switch_of_protocols_is_a_bad_gateway() {
    let head =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let old = Upstream::always(Script::new().raw(head).step(Step::Echo)).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    for _ in 0..2 {
        client.get("/health", &[]).await;
        assert_eq!(client.response().await.status, 502);
    }
    let response = client::post(proxy.address, CHAT, &[], UNARY).await;
    assert_eq!(response.status, 502);
    response.own_error();
    eventually("no tunnel is left", async || old.open() == 0).await;
}

#[tokio::test]
async fn a_chunked_response_is_forwarded_without_its_content_length() {
    for fields in [
        "transfer-encoding: chunked\r\ncontent-length: 5",
        "content-length: 1\r\ntransfer-encoding: chunked",
    ] {
        let raw = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{fields}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
        );
        let old = Upstream::always(Script::new().raw(raw)).await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = Client::connect(proxy.address).await;
        for _ in 0..2 {
            client.post(CHAT, &[], UNARY).await;
            let response = client.response().await;
            response.assert_is("{}");
            assert_eq!(response.header("content-length"), None);
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_during_a_stalled_upload_cancels_it() {
    // A model server that accepts the connection and reads nothing.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let proxy = Proxy::before_url(&address, &[]).await;
    let mut client = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 200000000\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![b'x'; 65_536];
    client.write_all(&piece).await.unwrap();
    let (mut upstream, _) = within("a connection", listener.accept()).await.unwrap();
    let patience = Duration::from_millis(300);
    while let Ok(sent) = tokio::time::timeout(patience, client.write(&piece)).await {
        sent.unwrap();
    }
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    let left = Instant::now();
    proxy.outcomes("cancelled", 1).await;
    assert!(left.elapsed() < Duration::from_secs(3));
    proxy.counts("crossfade_open_streams", &[], 0.0).await;
    let mut rest = Vec::new();
    let _ = within("the upstream's end", upstream.read_to_end(&mut rest)).await;
}

#[tokio::test]
async fn it_is_ready_only_once_a_model_server_listens() {
    let nobody = Upstream::nobody();
    let old = nobody.to_string();
    let proxy = Proxy::before_url(&old, &[]).await;
    for _ in 0..3 {
        assert_eq!(proxy.admin("/readyz").await.status, 503);
    }
    let _old = Upstream::at(nobody, healthy("old")).await;
    eventually("ready", async || proxy.admin("/readyz").await.status == 200).await;
    assert_eq!(proxy.chat().await.status, 200);
}
#[tokio::test]
async fn at_the_drain_limit_a_stream_that_is_being_recovered_ends_with_an_error_event() {
    let gate = Gate::closed();
    let new = Upstream::always(stream_of(&role("new")).wait(&gate).reset()).await;
    let old = Upstream::always(Script::new().hang()).await;
    let flags = ["--drain", "0.2"];
    let mut proxy = Proxy::planned(&old, &mostly_new(&new, ""), &flags).await;
    let mut client = client::open_chat(proxy.address).await;
    assert_eq!(client.head().await.status, 200);
    gate.open();
    old.request(1).await;
    proxy.terminate();
    let rest = String::from_utf8(client.body().await).unwrap();
    assert!(client.end.unwrap().is_unclean());
    assert!(rest.contains("data: {\"error\":{"), "{rest:?}");
    assert!(!rest.contains("[DONE]"), "{rest:?}");
    assert_eq!(proxy.end().await, Some(3));
}
