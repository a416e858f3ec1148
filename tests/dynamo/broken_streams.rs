//! A worker, frontend or engine fails after the first token: the stream ends with an error event.

use serde_json::Value;

use crate::pair::{Pair, RequestKind, access, data, normal, read_until};
use crate::rig::{Client, End, Family, Response};

/// A stream that has sent two words and sends no more.
struct StalledStream {
    kind: RequestKind,
    client: Client,
    begun: String,
}

impl StalledStream {
    async fn open(kind: RequestKind, address: std::net::SocketAddr, generation: &str) -> Self {
        let prompt = format!("<<words=5>> <<for={generation} hang_after=2 words=9>>");
        let mut client = kind.open(address, generation, &prompt).await;
        assert_eq!(client.head().await.status, 200);
        let begun = read_until(&mut client, &format!("{generation}:1")).await;
        Self {
            kind,
            client,
            begun,
        }
    }

    /// The complete body, and how it ended.
    async fn rest(mut self) -> (RequestKind, String, End) {
        let rest = String::from_utf8(self.client.body().await).expect("text");
        (
            self.kind,
            self.begun + &rest,
            self.client.end.expect("the body has ended"),
        )
    }
}

#[tokio::test]
async fn dynamos_own_error_after_a_worker_dies_is_forwarded_unchanged() {
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let mut streams = Vec::new();
    for kind in RequestKind::streams() {
        let direct = StalledStream::open(kind, pair.old.address(), "old").await;
        let mut through = Vec::new();
        for proxy in &proxies {
            through.push(StalledStream::open(kind, proxy.address, "old").await);
        }
        streams.push((direct, through));
    }
    pair.old.kill_worker(0);
    for (direct, through) in streams {
        let (kind, direct, end) = direct.rest().await;
        assert_eq!(kind.text_in(&direct), pair.old.text(2));
        assert!(
            direct.contains("error") && end == End::Clean,
            "{end:?}: {direct}"
        );
        for through in through {
            let (_, through, end) = through.rest().await;
            assert_eq!(
                (normal(&through), end),
                (normal(&direct), End::Clean),
                "{kind:?}"
            );
        }
    }
    for proxy in &proxies {
        let lines = access(proxy, 4, &["answered", "attempts", "outcome", "status"]).await;
        assert_eq!(lines, ["old 1 failed 200"; 4]);
        assert_eq!(proxy.recovered(&[]).await, 0.0);
    }
}

#[tokio::test]
async fn the_death_of_a_frontend_mid_stream_is_reported_by_an_error_event_and_an_unclean_end() {
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let mut streams = Vec::new();
    for proxy in &proxies {
        for kind in RequestKind::streams() {
            streams.push(StalledStream::open(kind, proxy.address, "new").await);
        }
    }
    pair.new.kill_frontend();
    for stream in streams {
        let (kind, text, end) = stream.rest().await;
        assert!(end.is_unclean(), "{kind:?} ended well: {text}");
        assert!(text.ends_with("\n\n"), "{kind:?}: half an event: {text}");
        assert_eq!(kind.text_in(&text), pair.new.text(2), "{kind:?}");
        assert!(
            !kind.is_complete(&text) && !text.contains("[DONE]"),
            "{kind:?}: {text}"
        );
        let error: Value = serde_json::from_str(data(&text).last().expect("events")).expect("JSON");
        match kind.family {
            Family::Chat | Family::Completions => {
                assert_eq!(error["error"]["code"], 502, "{text}");
                assert!(
                    error["error"]["message"]
                        .as_str()
                        .is_some_and(|text| text.contains("new"))
                );
            }
            Family::Responses => {
                assert_eq!(
                    (&error["type"], &error["code"]),
                    (&"error".into(), &"502".into())
                );
                assert!(text.contains("\n\nevent: error\ndata: "), "{text}");
            }
            Family::Messages => {
                assert_eq!(
                    (&error["type"], &error["error"]["type"]),
                    (&"error".into(), &"api_error".into())
                );
                assert!(text.contains("\n\nevent: error\ndata: "), "{text}");
            }
        }
    }
    for proxy in &proxies {
        let lines = access(proxy, 4, &["answered", "attempts", "outcome", "status"]).await;
        assert_eq!(lines, ["new 1 truncated 200"; 4]);
    }
}

#[tokio::test]
async fn a_request_whose_engine_fails_mid_stream_is_not_retried() {
    let pair = Pair::start().await;
    let proxy = pair.proxy(50, &[]).await;
    for kind in RequestKind::streams() {
        let prompt = "<<words=5>> <<for=new words=9 raise_after=2>>";
        let ask = |address| kind.response(address, "new", prompt);
        let (direct, through): (Response, Response) =
            (ask(pair.new.address()).await, ask(proxy.address).await);
        assert_eq!(kind.text_in(&direct.text()), pair.new.text(2));
        assert_eq!(normal(&through.text()), normal(&direct.text()), "{kind:?}");
        assert_eq!(through.end, direct.end, "{kind:?}");
    }
    let lines = access(&proxy, 4, &["answered", "attempts", "outcome"]).await;
    assert_eq!(lines, ["new 1 failed"; 4]);
}
