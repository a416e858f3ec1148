//! To the end of a continued stream, the IDs and token counts are those of the first part.

use super::*;

/// An event as new sends it.
fn of_new(more: Value) -> String {
    let mut chunk = json!({
        "id": "cmpl-new", "created": 3, "model": "tiny", "system_fingerprint": "new", "choices": [],
    });
    for (key, value) in more.as_object().unwrap() {
        chunk[key] = value.clone();
    }
    format!("data: {chunk}\n\n")
}

/// The response to a stream that old breaks off after five words, and that new continues with five more before `how`.
async fn continued_until(how: impl Fn(Script) -> Script + Send + Sync + 'static) -> Response {
    let old = Counting::new("old", 20).breaking(5, Script::reset);
    let mut new = Counting::new("new", 20);
    new.breaks_again = Some((5, std::sync::Arc::new(how)));
    let old = Upstream::start(old.handler()).await;
    let new = Upstream::start(new.handler()).await;
    let once = ANY.replace("AnyGeneration", "AnyGeneration, maxPerStream: 1");
    let proxy = Proxy::planned(&old, &mostly_old(&new, &once), &[]).await;
    proven(&proxy, 2).await;
    client::post(proxy.address, CHAT, &[], asking(json!({}))).await
}

#[tokio::test]
async fn events_after_an_error_event_in_a_continued_part_have_the_ids_of_the_first_part() {
    // An error about the request, and one about a failed server in a stream that may not be continued again.
    for code in [400, 503] {
        let response = continued_until(move |script| {
            let choice = json!({"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"});
            let usage = json!({"prompt_tokens": 15, "completion_tokens": 6, "total_tokens": 21});
            script
                .chunk(error_event(code))
                .chunk(of_new(json!({"choices": [choice]})))
                .chunk(of_new(json!({"usage": usage})) + DONE)
        })
        .await;
        let seen = seen(&response);
        let text = response.text();
        assert_eq!(seen.text, words(10) + "x", "{code}: {text}");
        assert_eq!((seen.errors.len(), seen.dones), (1, 1), "{code}: {text}");
        assert_eq!(seen.ids.len(), 1, "{code}: {text}");
        assert!(!text.contains("cmpl-new"), "{code}: {text}");
        let expected = json!({"prompt_tokens": 10, "completion_tokens": 11, "total_tokens": 21});
        assert_eq!(seen.usage, [expected], "{code}");
    }
}

#[tokio::test]
async fn an_incomplete_event_at_the_end_of_a_continued_part_is_dropped() {
    let finish = of_new(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
    for (rest, expected) in [
        ("data: {\"id\":\"cmpl-new\"", false),
        ("data: [DONE]\n", true),
    ] {
        let finish = finish.clone();
        let response = continued_until(move |script| script.chunk(&finish).chunk(rest).end()).await;
        let text = response.text();
        assert_eq!(seen(&response).text, words(10), "{text}");
        assert!(!text.contains("cmpl-new"), "{text}");
        assert_eq!(text.ends_with(rest), expected, "{text}");
    }
}

#[tokio::test]
async fn an_event_that_is_too_long_to_get_the_ids_of_the_first_part_ends_the_stream() {
    let response = continued_until(|script| {
        let choice = json!({"index": 0, "delta": {"content": "x"}, "finish_reason": null});
        let long = json!({"choices": [choice], "padding": "y".repeat(1_100_000)});
        script.chunk(of_new(long)).chunk(DONE)
    })
    .await;
    let seen = seen(&response);
    assert_eq!((seen.text, seen.dones), (words(10), 0));
    assert!(response.end.is_unclean() && !response.text().contains("cmpl-new"));
    let error = seen.errors[0]["message"].as_str().unwrap();
    assert!(error.contains("an event that is too long"), "{error}");
}

#[tokio::test]
async fn the_end_of_the_second_reasoning_is_dropped_although_it_is_in_the_event_with_the_first_content()
 {
    let mut old = Counting::new("old", 20).breaking(0, Script::reset);
    old.thinks = [2, 0];
    let old = Upstream::start(old.handler()).await;
    let both = json!({"reasoning": "c", "reasoning_content": "c", "content": "x"});
    let choice = |delta: &Value| json!({"index": 0, "delta": delta, "finish_reason": null});
    let thought = json!({"reasoning_content": "b"});
    let script = Script::new()
        .sse()
        .chunk(of_new(json!({"choices": [choice(&thought)]})))
        .chunk(of_new(json!({"choices": [choice(&both)]})) + DONE);
    let new = Upstream::start(serving(script)).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    let seen = seen(&response);
    assert_eq!((&*seen.text, seen.dones), ("x", 1), "{}", response.text());
    assert_eq!(seen.reasoning, "old thinks 0 old thinks 1 ");
    assert_counted(&proxy, "continued", "connection").await;
}
