//! The connection of a probe breaks. That says nothing about what the server can do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A server that continues texts, but of whose probes in `breaks` it breaks the connection. Probes are counted from 1.
fn breaking_probes(
    server: Counting,
    is_counted: impl Fn(&Received) -> bool + Send + Sync + 'static,
    breaks: std::ops::RangeInclusive<usize>,
) -> impl Fn(&Received) -> Script + Send + Sync + 'static {
    let server = server.handler();
    let probes = Arc::new(AtomicUsize::new(0));
    move |received| {
        let is_probe = received.method == "POST" && received.header("x-crossfade-probe").is_some();
        if is_probe && is_counted(received) {
            let number = probes.fetch_add(1, Ordering::Relaxed) + 1;
            if breaks.contains(&number) {
                return Script::new().eof();
            }
        }
        server(received)
    }
}

#[tokio::test]
async fn a_stream_continues_although_the_connection_of_its_probe_breaks_once() {
    for protocol in PROTOCOLS {
        let old = Counting {
            flags: Flags::Ignored,
            ..Counting::new("old", 20).breaking(5, Script::reset)
        };
        let old = Upstream::start(old.handler()).await;
        let of_client = |received: &Received| received.header("x-asked-by").is_some();
        let new = breaking_probes(Counting::new("new", 20), of_client, 1..=1);
        let new = Upstream::start(new).await;
        let flags = ["--upstream-protocol", protocol];
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &flags).await;
        proven(&proxy, 1).await;
        let fields = [("x-asked-by", "client")];
        let response = client::post(proxy.address, CHAT, &fields, asking(json!({}))).await;
        assert_one(&response, 20, protocol);
        assert_counted(&proxy, "continued", "connection").await;
    }
}

/// A probe is repeated at once, and if that fails, too, after a second or more.
#[tokio::test]
async fn a_server_whose_probes_break_is_probed_again_until_it_responds() {
    for (protocol, breaks) in [("http1", 1..=1), ("http2", 1..=1), ("http1", 1..=3)] {
        let old = breaking_probes(Counting::new("old", 20), |_| true, breaks.clone());
        let old = Upstream::start(old).await;
        let new = Upstream::start(Counting::new("new", 20).handler()).await;
        let flags = ["--upstream-protocol", protocol];
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &flags).await;
        let labels = [("generation", "old"), ("state", "supported")];
        proxy
            .counts("crossfade_continuation_capability", &labels, 1.0)
            .await;
        let mut probes = old.requests();
        probes.retain(|received| received.method == "POST");
        assert_eq!(probes.len(), breaks.end() + 1, "{protocol} {breaks:?}");
    }
}
