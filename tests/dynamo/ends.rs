//! What dies after its first token ends honestly.

use serde_json::Value;

use crate::pair::{Pair, Way, access, data, normal, read_until};
use crate::rig::{Client, End, Family, Response};

/// A stream that has said two words, and will say no more.
struct Stuck {
    way: Way,
    client: Client,
    begun: String,
}

impl Stuck {
    async fn open(way: Way, address: std::net::SocketAddr, side: &str) -> Self {
        let prompt = format!("<<words=5>> <<for={side} hang_after=2 words=9>>");
        let mut client = way.open(address, side, &prompt).await;
        assert_eq!(client.head().await.status, 200);
        let begun = read_until(&mut client, &format!("{side}:1")).await;
        Self { way, client, begun }
    }

    /// All of the body, and how it ended.
    async fn rest(mut self) -> (Way, String, End) {
        let rest = String::from_utf8(self.client.body().await).expect("text");
        (
            self.way,
            self.begun + &rest,
            self.client.end.expect("the body has ended"),
        )
    }
}

#[tokio::test]
async fn dynamos_own_error_after_the_death_of_a_worker_is_passed_on_untouched() {
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let mut streams = Vec::new();
    for way in Way::streams() {
        let direct = Stuck::open(way, pair.old.address(), "old").await;
        let mut through = Vec::new();
        for proxy in &proxies {
            through.push(Stuck::open(way, proxy.address, "old").await);
        }
        streams.push((direct, through));
    }
    pair.old.kill_worker(0);
    for (direct, through) in streams {
        let (way, direct, end) = direct.rest().await;
        assert_eq!(way.said_in(&direct), pair.old.text(2));
        assert!(
            direct.contains("error") && end == End::Clean,
            "{end:?}: {direct}"
        );
        for through in through {
            let (_, through, end) = through.rest().await;
            assert_eq!(
                (normal(&through), end),
                (normal(&direct), End::Clean),
                "{way:?}"
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
        for way in Way::streams() {
            streams.push(Stuck::open(way, proxy.address, "new").await);
        }
    }
    pair.new.kill_frontend();
    for stream in streams {
        let (way, text, end) = stream.rest().await;
        assert!(end.is_unclean(), "{way:?} ended well: {text}");
        assert!(text.ends_with("\n\n"), "{way:?}: half an event: {text}");
        assert_eq!(way.said_in(&text), pair.new.text(2), "{way:?}");
        assert!(
            !way.is_complete(&text) && !text.contains("[DONE]"),
            "{way:?}: {text}"
        );
        let error: Value = serde_json::from_str(data(&text).last().expect("events")).expect("JSON");
        match way.family {
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
async fn an_engine_that_fails_mid_stream_is_not_tried_again() {
    let pair = Pair::start().await;
    let proxy = pair.proxy(50, &[]).await;
    for way in Way::streams() {
        let prompt = "<<words=5>> <<for=new words=9 raise_after=2>>";
        let ask = |address| way.ask(address, "new", prompt);
        let (direct, through): (Response, Response) =
            (ask(pair.new.address()).await, ask(proxy.address).await);
        assert_eq!(way.said_in(&direct.text()), pair.new.text(2));
        assert_eq!(normal(&through.text()), normal(&direct.text()), "{way:?}");
        assert_eq!(through.end, direct.end, "{way:?}");
    }
    let lines = access(&proxy, 4, &["answered", "attempts", "outcome"]).await;
    assert_eq!(lines, ["new 1 failed"; 4]);
}
