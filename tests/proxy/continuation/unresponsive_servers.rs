//! Servers accept a continuation request and then send nothing.

use std::sync::Arc;
use std::time::Duration;

use super::*;

/// The limit on the silence of a server, and some time for a busy machine.
const LONGEST: Duration = Duration::from_secs(90);

/// One of two old servers starts a stream and breaks it off, and the other one does `how` when it is asked to continue.
async fn assert_the_next_one_continues(how: How, what: &str) {
    let server = || {
        let mut server = Counting::new("old", 20).breaking(5, Script::reset);
        server.breaks_again = Some((0, Arc::new(how)));
        Upstream::start(server.handler())
    };
    let pair = [server().await, server().await];
    let new = Upstream::start(Counting::new("new", 20).handler()).await;
    let old = format!("{},{}", pair[0].url(), pair[1].url());
    let plan = mostly_old(&new, ANY);
    let proxy = Proxy::start(&["--old", &old, "--plan", &plan.as_str()]).await;
    for (generation, count) in [("old", 2.0), ("new", 1.0)] {
        let labels = [("generation", generation), ("state", "supported")];
        proxy
            .counts("crossfade_continuation_capability", &labels, count)
            .await;
    }
    let mut client = Client::connect(proxy.address).await;
    client.post(CHAT, &[], asking(json!({}))).await;
    eventually("the other one is asked", async || {
        request_count(&pair[0]) + request_count(&pair[1]) == 2
    })
    .await;
    let next = async {
        while request_count(&new) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let next = tokio::time::timeout(LONGEST, next).await;
    assert!(next.is_ok(), "{what}: the next one is never asked");
    let seen = assert_one(&client.response().await, 20, what);
    assert_eq!(
        seen.comments,
        ["crossfade continued (old → new, connection)"],
        "{what}"
    );
    // The unresponsive servers are not ejected, because they may only have been slow.
    assert!(
        !proxy
            .lines()
            .iter()
            .any(|line| line.contains("endpoint ejected")),
        "{what}"
    );
}

#[tokio::test]
async fn an_unresponsive_server_delays_a_stream_for_at_most_a_minute() {
    let comments: How = |script| {
        let comments = std::iter::repeat_n(": still here\n\n", 1000).collect::<String>();
        script.chunk(comments).hang()
    };
    tokio::join!(
        assert_the_next_one_continues(|_| Script::new().hang(), "no head"),
        assert_the_next_one_continues(Script::hang, "a head and a role"),
        assert_the_next_one_continues(comments, "comments"),
    );
}

#[tokio::test]
async fn a_stream_that_the_end_of_the_process_finds_between_servers_is_truncated() {
    let old = Upstream::start(
        Counting::new("old", 20)
            .breaking(5, Script::reset)
            .handler(),
    )
    .await;
    let mut server = Counting::new("new", 20);
    server.breaks_again = Some((0, Arc::new(|_| Script::new().hang())));
    let new = Upstream::start(server.handler()).await;
    let plan = mostly_old(&new, ANY);
    let mut proxy = Proxy::planned(&old, &plan, &["--drain", "0.1"]).await;
    let labels = [("generation", "new"), ("state", "supported")];
    proxy
        .counts("crossfade_continuation_capability", &labels, 1.0)
        .await;
    let mut client = Client::connect(proxy.address).await;
    client.post(CHAT, &[], asking(json!({}))).await;
    eventually("the other one is asked", async || request_count(&new) == 1).await;
    proxy.terminate();
    assert_ended(&client.response().await, 5, "the end of the process");
    assert_eq!(proxy.end().await, Some(3));
    let line = proxy.access_line(1).await;
    assert_eq!(line["outcome"], "truncated");
    assert_eq!(line["why"], "the proxy is shutting down");
    assert_eq!(line["not_continued"], "attempts_failed");
}
