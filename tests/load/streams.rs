//! Many concurrent streams, and plan changes under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::rig::*;

/// The number of open streams. Each needs two descriptors of this process and two of the proxy.
const STREAMS: usize = 5_000;

/// Raises the limit on open files for this process and its children.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    let needed = 2 * STREAMS as u64 + 500;
    assert!(
        limit.rlim_max >= needed,
        "ulimit -Hn is {}, the test needs {needed}",
        limit.rlim_max
    );
}

#[tokio::test]
async fn a_thousand_plan_changes_under_load_fail_no_stream() {
    let _machine = crate::shared().await;
    raise_file_limit();
    let paced = |name: &'static str| {
        move |_: &Received| {
            let events: Vec<String> = (0..5).map(|index| content(name, index)).collect();
            let script = Script::new().sse().chunk(role(name));
            let script = events
                .iter()
                .fold(script, |script, event| script.chunk(event).pause(2));
            script.chunk(DONE)
        }
    };
    let old = Upstream::start(paced("old")).await;
    let new = Upstream::start(paced("new")).await;
    // The same servers with another name, so that the change also replaces the pool.
    let by_name = format!("localhost:{}", new.address.port());
    let targets = [new.url(), format!("{},{by_name}", new.url())];
    let file = PlanFile::new(&manifest(&targets[0], 1, 0, ""));
    let proxy = Arc::new(Proxy::planned(&old, &file, &["--threads", "2", "--no-access-log"]).await);
    let over = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..24)
        .map(|index| {
            let (proxy, over, done) = (proxy.clone(), over.clone(), done.clone());
            tokio::spawn(async move {
                let session = format!("session-{index}");
                let mut client = Client::connect(proxy.address).await;
                while !over.load(Ordering::Relaxed) {
                    let headers = [("x-session-id", &*session)];
                    client
                        .post(CHAT, if index % 3 == 0 { &headers } else { &[] }, STREAMING)
                        .await;
                    let response = client.response().await;
                    let name = response.generation().to_owned();
                    let wanted: String = (0..5).map(|index| content(&name, index)).collect();
                    response.assert_is(role(&name) + &wanted + DONE);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for change in 0..1000u32 {
        let text = manifest(
            &targets[(change / 7 % 2) as usize],
            100 - change % 101,
            change % 101,
            "",
        );
        file.replace(&text);
        // Spreads the changes over the lives of many streams. A change need not be in force before the next.
        tokio::time::sleep(Duration::from_millis(8)).await;
    }
    file.replace(&manifest(&new.url(), 0, 1, ""));
    eventually("the last plan is in force", async || {
        proxy.plan().await.contains("\"trafficSplitPercent\": 100")
    })
    .await;
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let done = done.load(Ordering::Relaxed);
    assert!(done > 1000, "{done} streams only");
    let metrics = proxy.metrics().await;
    let epoch = metrics.sum("crossfade_plan_epoch", &[]);
    assert!(epoch > 500.0, "only {epoch} of the plans came in force");
    assert_eq!(metrics.sum("crossfade_plans_rejected_total", &[]), 0.0);
    let completed = metrics.sum("crossfade_requests_total", &[("outcome", "completed")]);
    assert_eq!(completed, done as f64);
    assert_eq!(metrics.sum("crossfade_requests_total", &[]), done as f64);
    assert_eq!(metrics.sum("crossfade_recovered_requests_total", &[]), 0.0);
}

#[tokio::test]
async fn five_thousand_streams_are_open_at_once_and_all_complete() {
    let _machine = crate::shared().await;
    raise_file_limit();
    let gate = Gate::closed();
    let script = |name: &str| {
        let first = role(name) + &content(name, 0);
        let rest = content(name, 1) + DONE;
        Script::new().sse().chunk(first).wait(&gate).chunk(rest)
    };
    let old = Upstream::always(script("old")).await;
    let new = Upstream::always(script("new")).await;
    let flags = ["--threads", "2", "--no-access-log"];
    let proxy = Proxy::split_with(&old, &new, 50, &flags).await;
    let before = proxy.memory();
    let mut streams = Vec::with_capacity(STREAMS);
    for _ in 0..STREAMS / 100 {
        let mut some = Vec::with_capacity(100);
        for _ in 0..100 {
            some.push(client::open_chat(proxy.address).await);
        }
        for mut client in some {
            let head = client.head().await;
            assert_eq!(head.status, 200);
            let name = head
                .headers
                .get("x-crossfade-generation")
                .unwrap()
                .to_owned();
            let seen = client.until(&content(&name, 0)).await;
            assert_eq!(seen, role(&name) + &content(&name, 0));
            streams.push((client, name));
        }
    }
    let half = (STREAMS / 2) as f64;
    proxy
        .counts("crossfade_open_streams", &[("generation", "old")], half)
        .await;
    proxy
        .counts("crossfade_open_streams", &[("generation", "new")], half)
        .await;
    let each = proxy.memory().saturating_sub(before) / STREAMS as u64;
    assert!(each < 40 << 10, "{each} bytes per open stream");
    gate.open();
    for (client, name) in &mut streams {
        let rest = String::from_utf8(client.body().await).unwrap();
        assert_eq!(
            (rest, client.end),
            (content(name, 1) + DONE, Some(End::Clean))
        );
    }
    let count = u32::try_from(STREAMS).unwrap();
    proxy.outcomes("completed", count).await;
    proxy.counts("crossfade_open_streams", &[], 0.0).await;
}
