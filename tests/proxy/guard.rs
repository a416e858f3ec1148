//! The guard header prevents a request from being forwarded twice for the same update, and cannot be forged.

use crate::rig::*;

/// The guard headers of a request that an upstream received.
fn marks(received: &Received) -> Vec<(String, String)> {
    let mut marks = received.headers.clone();
    marks.retain(|(name, _)| name.starts_with("x-crossfade"));
    marks
}

#[tokio::test]
async fn a_proxy_that_is_its_own_new_generation_sends_requests_to_old() {
    let old = Upstream::start(healthy("old")).await;
    let port = Port::take();
    let (itself, old_url) = (port.address.to_string(), old.url());
    let proxy = Proxy::start(&[
        "--listen", &itself, "--old", &old_url, "--new", &itself, "--split", "100",
    ])
    .await;
    for n in 1..=5 {
        let response = proxy.chat().await;
        response.assert_is(chat_text("old"));
        assert_eq!(old.count(), n);
    }
    let guarded = [("reason", "guarded"), ("generation", "old")];
    proxy
        .counts("crossfade_requests_total", &guarded, 5.0)
        .await;
}

#[tokio::test]
async fn another_proxy_of_the_same_update_sends_requests_to_its_old() {
    let old = Upstream::start(healthy("old")).await;
    let sibling_old = Upstream::start(healthy("sibling")).await;
    let new = Upstream::start(healthy("new")).await;
    let plan = |target: &str| PlanFile::new(&manifest(target, 0, 1, ""));
    let key = ["--guard-key", "secret"];
    let sibling = Proxy::planned(&sibling_old, &plan(&new.url()), &key).await;
    let proxy = Proxy::planned(&old, &plan(&sibling.address.to_string()), &key).await;
    proxy.chat().await.assert_is(chat_text("sibling"));
    assert_eq!((old.count(), new.count()), (0, 0));
}

#[tokio::test]
async fn a_client_cannot_hide_a_request_as_a_probe() {
    let sibling_old = Upstream::start(healthy("sibling")).await;
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let plan = |target: &str| PlanFile::new(&manifest(target, 0, 1, ""));
    let key = ["--guard-key", "secret"];
    let sibling = Proxy::planned(&sibling_old, &plan(&new.url()), &key).await;
    let proxy = Proxy::planned(&old, &plan(&sibling.address.to_string()), &key).await;
    let probe = [("x-crossfade-probe", "1")];
    let response = client::post(proxy.address, CHAT, &probe, STREAMING).await;
    response.assert_is(chat_text("sibling"));
    assert_eq!(sibling_old.last().header("x-crossfade-probe"), None);
    for proxy in [proxy, sibling] {
        assert_eq!(proxy.access_line(1).await["outcome"], "completed");
    }
}

#[tokio::test]
async fn two_updates_in_a_chain_both_split() {
    let (old_1, old_2) = (
        Upstream::start(healthy("old")).await,
        Upstream::start(healthy("old")).await,
    );
    let new = Upstream::start(healthy("new")).await;
    let second = Proxy::split_with(&old_2, &new, 100, &["--guard-key", "two"]).await;
    let (old, next) = (old_1.url(), second.address.to_string());
    let first = Proxy::start(&[
        "--old",
        &old,
        "--new",
        &next,
        "--split",
        "100",
        "--guard-key",
        "one",
    ])
    .await;
    first.chat().await.assert_is(chat_text("new"));
    assert_eq!((old_1.count(), old_2.count(), new.count()), (0, 0, 1));
    let via: Vec<String> = new.last().all("via").map(str::to_owned).collect();
    assert_eq!(via.join(",").matches("crossfade").count(), 2, "{via:?}");
}

#[tokio::test]
async fn a_client_cannot_bypass_the_split_with_a_forged_guard_header() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split_with(&old, &new, 100, &["--guard-key", "secret"]).await;
    proxy.chat().await.assert_is(chat_text("new"));
    let marks = marks(&new.last());
    assert!(!marks.is_empty(), "{}", new.last().head);
    for (name, value) in marks {
        let mut other_digit = value.clone().into_bytes();
        other_digit[0] = if other_digit[0] == b'0' { b'1' } else { b'0' };
        let other_digit = String::from_utf8(other_digit).unwrap();
        for forged in [other_digit.as_str(), "1", "true", "x;hop=1", ";;,", ""] {
            let headers = [(name.as_str(), forged)];
            let response = client::post(proxy.address, CHAT, &headers, STREAMING).await;
            assert_eq!(response.generation(), "new", "{name}: {forged}");
        }
    }
}

#[tokio::test]
async fn a_guard_header_with_another_key_is_ignored() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let other = Proxy::split_with(&old, &new, 100, &["--guard-key", "other"]).await;
    other.chat().await;
    let marks = marks(&new.last());
    let headers: Vec<_> = marks
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    let proxy = Proxy::split_with(&old, &new, 100, &["--guard-key", "secret"]).await;
    let response = client::post(proxy.address, CHAT, &headers, STREAMING).await;
    assert_eq!(response.generation(), "new");
}

#[tokio::test]
async fn old_gets_no_guard_header() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.chat().await;
    assert_eq!(marks(&old.last()), []);
}
