//! A stream ends without its terminal event, and no other server is asked to continue it.

use super::*;

const FINISH: &str =
    r#"data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

/// A proxy in front of a server that sends five words and the finish reason, then does `how`.
async fn finishing(lines: &str, how: How) -> (Proxy, [Upstream; 2]) {
    let breaks = move |script: Script| how(script.event(FINISH));
    let old = Upstream::start(Counting::new("old", 20).breaking(5, breaks).handler()).await;
    let new = Upstream::start(Counting::new("new", 20).handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, lines), &[]).await;
    (proxy, [old, new])
}

#[tokio::test]
async fn the_error_event_says_that_no_terminal_event_followed_the_finish_reason() {
    let gap = "failover: {gapTimeoutSeconds: 0.4}";
    let any_gap = ANY.replace("{retry", "{gapTimeoutSeconds: 0.4, retry");
    let breaks: [(How, &str, u16, &str); 3] = [
        (
            Script::reset,
            "connection",
            502,
            "old ended the stream early, without its terminal event: ",
        ),
        (
            Script::eof,
            "connection",
            502,
            "old ended the stream early, without its terminal event: ",
        ),
        (
            Script::hang,
            "gap_timeout",
            504,
            "old sent nothing for too long; the stream lacks its terminal event",
        ),
    ];
    for lines in [gap, &any_gap] {
        for (how, cause, code, message) in breaks {
            let (proxy, [_old, new]) = finishing(lines, how).await;
            let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
            assert_ended(&response, 5, cause);
            let error = &seen(&response).errors[0];
            assert_eq!(error["code"], code, "{error}");
            let said = error["message"].as_str().unwrap();
            assert!(said.starts_with(message), "{said}");
            assert_eq!(request_count(&new), 0, "{cause}");
            let line = proxy.access_line(1).await;
            assert_eq!(line["outcome"], "truncated");
        }
    }
}

#[tokio::test]
async fn a_clean_end_without_the_terminal_event_is_passed_on_and_the_access_line_says_so() {
    for lines in ["", ANY] {
        let (proxy, [_old, new]) = finishing(lines, Script::end).await;
        let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
        let seen = seen(&response);
        assert_eq!((&*seen.text, response.end), (&*words(5), End::Clean));
        assert_eq!((seen.errors.len(), seen.dones), (0, 0), "{seen:?}");
        assert!(response.text().ends_with(&format!("{FINISH}\n\n")));
        assert_eq!(request_count(&new), 0);
        let line = proxy.access_line(1).await;
        assert_eq!(line["outcome"], "truncated");
        assert_eq!(
            line["why"],
            "old ended the stream without its terminal event"
        );
    }
    // An unbroken stream says nothing.
    let old = Upstream::start(Counting::new("old", 20).handler()).await;
    let proxy = Proxy::before(&old, &[]).await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    assert_one(&response, 20, "unbroken");
    assert_eq!(proxy.access_line(1).await["why"], Value::Null);
}

#[tokio::test]
async fn a_server_that_only_omits_the_terminal_event_is_not_ejected() {
    let breaks: [How; 2] = [Script::end, Script::reset];
    for how in breaks {
        let (proxy, _servers) = finishing(ANY, how).await;
        for _ in 0..25 {
            client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
        }
        assert!(!proxy.plan().await.contains("\"healthy\": false"));
    }
}

/// Some clients look for the terminal event anywhere in a line, so the error must not contain its name.
#[tokio::test]
async fn in_each_family_the_error_says_so_without_naming_the_event() {
    for (family, event) in [
        (Family::Chat, "[DONE]"),
        (Family::Completions, "[DONE]"),
        (Family::Responses, "response.completed"),
        (Family::Messages, "message_stop"),
    ] {
        let text = family.preamble("old") + &family.content("old", 0);
        let old = Upstream::always(Script::new().sse().chunk(text).eof()).await;
        let proxy = Proxy::before(&old, &[]).await;
        let response = client::post(proxy.address, family.path(), &[], STREAMING).await;
        let text = response.text();
        let expected = "old ended the stream early, without its terminal event: ";
        assert!(text.contains(expected) && !text.contains(event), "{text}");
    }
}
