//! Moving the streams of clients that do not read.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::rig::client::http2::Client as Http2;
use crate::rig::upstream::Step;

const OPEN: &str = "crossfade_open_streams";

/// A server of old that sends four words, then comments until crossfade takes no more of them.
async fn flooding(sent: &Arc<AtomicU64>) -> Upstream {
    let comment = format!(": {}\n\n", "x".repeat(16 * 1024));
    let flood = Step::Flood(comment.into(), 10_000, sent.clone());
    let how = move |script: Script| script.step(flood.clone()).hang();
    let server = counting::Counting::new("old", WORDS).breaking(4, how);
    Upstream::start(server.handler()).await
}

/// Asserts that the stream has left old, while its client still does not read.
async fn assert_moved(proxy: &Proxy, old: &Upstream) {
    let moved = [("outcome", "continued"), ("reason", "planned_move")];
    proxy.counts(MOVED, &moved, 1.0).await;
    proxy.counts(MOVING, &[], 0.0).await;
    proxy.counts(OPEN, &[("generation", "old")], 0.0).await;
    proxy.counts(OPEN, &[("generation", "new")], 1.0).await;
    let requests = old.requests();
    let stream = requests
        .iter()
        .find(|request| request.header("x-crossfade-probe").is_none() && request.target == CHAT)
        .unwrap();
    eventually("old's request is cancelled", async || stream.is_gone()).await;
}

#[tokio::test]
async fn a_stream_moves_although_its_client_does_not_read() {
    for http2 in [false, true] {
        let sent = Arc::default();
        let old = flooding(&sent).await;
        let new = Upstream::start(counting::Counting::new("new", WORDS).handler()).await;
        let file = PlanFile::new(&plan(&new, [1, 0], "moveAfterSeconds: 0"));
        let proxy = Proxy::planned(&old, &file, &[]).await;
        proven(&proxy).await;
        let to_new = plan(&new, [0, 1], "moveAfterSeconds: 0");
        let response = if http2 {
            let client = Http2::connect(proxy.address).await;
            let stream = client.chat().await;
            stands_still(&sent).await;
            file.write(&to_new);
            assert_moved(&proxy, &old).await;
            stream.response().await
        } else {
            let mut client = Client::connect_narrow(proxy.address).await;
            client.post(CHAT, &[], STREAMING).await;
            stands_still(&sent).await;
            file.write(&to_new);
            assert_moved(&proxy, &old).await;
            client.response().await
        };
        let seen = response.text();
        let (text, ids) = content(&seen);
        assert_eq!((&*text, response.end), (&*words(WORDS), End::Clean));
        assert_eq!(ids, ["cmpl-old"]);
        assert!(seen.ends_with(DONE));
        proxy.outcomes("completed", 1).await;
    }
}

#[tokio::test]
async fn a_stream_that_cannot_be_moved_stays_on_old_while_its_client_does_not_read() {
    let sent = Arc::default();
    let old = flooding(&sent).await;
    let mut new = counting::Counting::new("new", WORDS);
    new.breaks_again = Some((0, Arc::new(|_| status(500))));
    let new = Upstream::start(new.handler()).await;
    let file = PlanFile::new(&plan(&new, [1, 0], "moveAfterSeconds: 0"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proven(&proxy).await;
    let mut client = Client::connect_narrow(proxy.address).await;
    client.post(CHAT, &[], STREAMING).await;
    let taken = stands_still(&sent).await;
    file.write(&plan(&new, [0, 1], "moveAfterSeconds: 0"));
    proxy.counts(MOVED, &[("outcome", "stayed")], 1.0).await;
    proxy.counts(OPEN, &[("generation", "old")], 1.0).await;
    // While new was asked, crossfade read a little more of old.
    let more = stands_still(&sent).await - taken;
    assert!(more < 4 * 1024 * 1024, "{more}");
    client.head().await;
    client.until("x\n\n").await;
}
