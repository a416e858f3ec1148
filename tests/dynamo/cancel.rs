//! A client that goes away ends the work for it, down to the worker.

use crate::pair::{Pair, Way, read_until};
use crate::rig::Client;
use crate::rig::client::http2;

/// What the worker does before it hangs, and where the client is then.
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

/// Each kind of request at each stage that it has.
fn cases() -> impl Iterator<Item = (Way, Stage)> {
    let prefill = Way::all().map(|way| (way, Stage::Prefill));
    prefill.chain(Way::streams().map(|way| (way, Stage::MidStream)))
}

#[tokio::test]
async fn a_client_that_goes_away_stops_the_worker_at_every_stage() {
    let pair = Pair::start().await;
    for (proxy, name) in pair.proxies().await.iter().zip(["a", "b"]) {
        let mut gone = 0;
        for (index, (way, stage)) in cases().enumerate() {
            let tag = format!("{name}{index}");
            let mut client: Client = way.open(proxy.address, "old", &stage.prompt(&tag)).await;
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
                "{way:?} {stage:?}"
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
        for (index, way) in Way::streams().enumerate() {
            let tag = format!("{name}{index}");
            let body = way.body(&Stage::MidStream.prompt(&tag));
            let headers = [(crate::pair::SIDE, "new")];
            let mut stream = client.post(way.family.path(), &headers, body).await;
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
        // And with the connection goes the last.
        client.break_off();
        pair.new.wait_event(&format!("cancelled {kept}")).await;
        while kept_stream.piece().await.is_some() {}
        proxy.outcomes("cancelled", 4).await;
    }
    assert!(pair.old.events().is_empty(), "{:?}", pair.old.events());
}
