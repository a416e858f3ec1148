//! When a client disconnects, its request is cancelled down to the worker.

use crate::pair::{Pair, RequestKind, read_until};
use crate::rig::Client;
use crate::rig::client::http2;

/// How far the response is when the client disconnects.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Prefill,
    MidStream,
}

impl Stage {
    fn words(self) -> usize {
        match self {
            Self::Prefill => 0,
            Self::MidStream => 2,
        }
    }

    fn prompt(self, tag: &str) -> String {
        format!("<<tag={tag} words=9 hang_after={}>>", self.words())
    }
}

/// Every kind of request at every stage that it has.
fn cases() -> impl Iterator<Item = (RequestKind, Stage)> {
    let prefill = RequestKind::all().map(|kind| (kind, Stage::Prefill));
    prefill.chain(RequestKind::streams().map(|kind| (kind, Stage::MidStream)))
}

#[tokio::test]
async fn a_client_that_disconnects_stops_the_worker_at_every_stage() {
    let pair = Pair::start().await;
    for (proxy, name) in pair.proxies().await.iter().zip(["a", "b"]) {
        let mut gone = 0;
        for (index, (kind, stage)) in cases().enumerate() {
            let tag = format!("{name}{index}");
            let mut client: Client = kind.open(proxy.address, "old", &stage.prompt(&tag)).await;
            pair.old.wait_event(&format!("started {tag}")).await;
            if let Stage::MidStream = stage {
                client.head().await;
                read_until(&mut client, "old:1").await;
            }
            let events = pair.old.events();
            assert!(
                !events
                    .iter()
                    .any(|line| line.starts_with(&format!("cancelled {tag} ")))
            );
            drop(client);
            let event = pair.old.wait_event(&format!("cancelled {tag}")).await;
            assert_eq!(
                event,
                format!("cancelled {tag} {}", stage.words()),
                "{kind:?} {stage:?}"
            );
            gone += 1;
            proxy.outcomes("cancelled", gone).await;
        }
        proxy.counts("crossfade_open_streams", &[], 0.0).await;
        assert_eq!(proxy.recovered(&[]).await, 0.0);
    }
    assert!(
        pair.new.events().is_empty(),
        "cancelled is not failed: {:?}",
        pair.new.events()
    );
}

#[tokio::test]
async fn a_reset_http2_stream_stops_only_its_own_worker() {
    let pair = Pair::start().await;
    for (proxy, name) in pair.proxies().await.iter().zip(["a", "b"]) {
        let client = http2::Client::connect(proxy.address).await;
        let mut open = Vec::new();
        for (index, kind) in RequestKind::streams().enumerate() {
            let tag = format!("{name}{index}");
            let body = kind.body(&Stage::MidStream.prompt(&tag));
            let headers = [(crate::pair::GENERATION, "new")];
            let mut stream = client.post(kind.family.path(), &headers, body).await;
            let mut seen = String::new();
            while !seen.contains("new:1") {
                let piece = stream.piece().await.expect("two words");
                seen += &String::from_utf8_lossy(&piece);
            }
            open.push((tag, stream));
        }
        let (kept, mut kept_stream) = open.pop().expect("four streams");
        for (tag, stream) in open {
            drop(stream);
            pair.new.wait_event(&format!("cancelled {tag}")).await;
        }
        proxy.outcomes("cancelled", 3).await;
        let events = pair.new.events();
        assert!(
            !events.contains(&format!("cancelled {kept} 2")),
            "{events:?}"
        );
        // Closing the connection cancels the last one, too.
        client.break_off();
        pair.new.wait_event(&format!("cancelled {kept}")).await;
        while kept_stream.piece().await.is_some() {}
        proxy.outcomes("cancelled", 4).await;
    }
    assert!(pair.old.events().is_empty(), "{:?}", pair.old.events());
}
