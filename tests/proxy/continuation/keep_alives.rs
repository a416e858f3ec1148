//! Some servers send events that say nothing, to keep a connection alive. They pass, and change nothing about a continuation.

use super::*;

#[tokio::test]
async fn keep_alives_of_both_servers_pass_and_their_stream_is_continued() {
    for (index, keep_alive) in [
        "data:\n\n",
        "data: \n\n",
        "data: {}\n\n",
        "data: null\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "data: {\"id\":\"k\",\"object\":\"keepalive\",\"created\":7,\"model\":\"k\"}\n\n",
    ]
    .into_iter()
    .enumerate()
    {
        for (path, body) in [(CHAT, asking(json!({}))), (COMPLETIONS, prompting())] {
            let mut old = Counting::new("old", 20).breaking(5, Script::reset);
            let mut new = Counting::new("new", 20);
            (old.keep_alive, new.keep_alive) = (keep_alive, keep_alive);
            let old = Upstream::start(old.handler()).await;
            let new = Upstream::start(new.handler()).await;
            let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
            proven(&proxy, 2).await;
            let response = client::post(proxy.address, path, &[], &body).await;
            let what = format!("{path} {index}");
            let seen = assert_one(&response, 20, &what);
            assert_eq!(
                seen.comments,
                ["crossfade continued (old → new, connection)"],
                "{what}"
            );
            // Those of the second server before its first content are dropped.
            let data = keep_alive.lines().find(|line| line.starts_with("data"));
            let data = data.unwrap().trim_end();
            let text = response.text();
            let kept = text.lines().filter(|line| line.trim_end() == data);
            let (of_old, of_new) = (2 + 5, 15);
            match index {
                // It gets the IDs of the first part.
                5 => assert_eq!(kept.count(), of_old, "{what}"),
                _ => assert_eq!(kept.count(), of_old + of_new, "{what}: {text}"),
            }
        }
    }
}
