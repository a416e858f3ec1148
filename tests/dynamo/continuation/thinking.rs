//! Reasoning models: reasoning is generated again, and an answer is continued.

use super::*;

/// A chat template that opens the reasoning of a new turn itself, as those of reasoning models do. A turn that is continued stays as
/// it is.
const OPENS_THINK: &str = "\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
<think>
{% endif -%}
";

/// A pair whose frontends use this reasoning parser.
async fn pair(parser: &str) -> Pair {
    pair_with(parser, None).await
}

/// Like [`pair`], with this chat template.
async fn pair_with(parser: &str, template: Option<&'static str>) -> Pair {
    let options = || Options {
        template,
        worker_args: vec!["--reasoning-parser".into(), parser.into()],
        ..Options::default()
    };
    Pair::start_with(options(), options()).await
}

/// Opens chat streams through both proxies, and returns once each has sent `beginning`.
async fn begin_chat(proxies: &[Proxy; 2], prompt: &str, beginning: &'static str) -> Vec<Streams> {
    let mut open = Vec::new();
    for proxy in proxies {
        let kind = if beginning == "w:0" {
            "chat"
        } else {
            "thinking"
        };
        let (most, some) = (STREAMS * 2 / 5, STREAMS / 10);
        open.push(Streams::of_library(proxy.address, most, kind, prompt).await);
        let raw = Streams::raw(proxy.address, some, (Family::Chat, true), prompt, beginning);
        open.push(raw.await);
    }
    open
}

fn thoughts(count: usize) -> String {
    let thoughts: Vec<_> = (0..count).map(|index| format!("t:{index}")).collect();
    thoughts.join(" ")
}

#[tokio::test]
async fn a_stream_with_only_reasoning_is_sent_again_and_the_client_gets_one_reasoning() {
    let mut pair = pair("basic").await;
    let proxies = proxies(&pair, &[]).await;
    let prompt = &incomplete_on_old("counted=1 thinks=60 words=10 each_ms=300");
    let open = begin_chat(&proxies, prompt, "t:0").await;
    pair.old.kill_worker(0);
    let (answers, usage) = tokio::join!(answers(open), unbroken_usage(&pair, prompt));
    assert_complete(&answers, 10, &usage);
    for answer in &answers {
        // The reasoning of the first server, as far as it came. The few streams on new have all of it.
        let known = (1..=60).any(|count| answer.reasoning.trim() == thoughts(count));
        assert!(known, "{answer:?}");
    }
    assert_continued(&proxies, STREAMS / 2, "error_event").await;
}

#[tokio::test]
async fn a_stream_with_reasoning_and_content_continues_with_the_content() {
    assert_continues_with_content(pair("basic").await).await;
}

/// The prompt of the continued turn does not end with the marker, so the parser takes the rest for content.
#[tokio::test]
async fn a_stream_continues_with_the_content_if_the_template_opens_the_reasoning() {
    assert_continues_with_content(pair_with("basic", Some(OPENS_THINK)).await).await;
}

async fn assert_continues_with_content(mut pair: Pair) {
    let proxies = proxies(&pair, &[]).await;
    let prompt = &incomplete_on_old("counted=1 thinks=2 words=60 each_ms=300");
    let open = begin_chat(&proxies, prompt, "w:0").await;
    pair.old.kill_worker(0);
    let (answers, usage) = tokio::join!(answers(open), unbroken_usage(&pair, prompt));
    assert_complete(&answers, WORDS, &usage);
    for answer in &answers {
        assert_eq!(answer.reasoning.trim(), thoughts(2), "{answer:?}");
    }
    assert_continued(&proxies, STREAMS / 2, "error_event").await;
}

/// This parser treats everything before the end marker as reasoning, so it mistakes a continued answer for reasoning.
#[tokio::test]
async fn an_answer_that_would_continue_with_reasoning_ends_with_an_error_event() {
    let mut pair = pair("deepseek_r1").await;
    let proxies = proxies(&pair, &[]).await;
    let prompt = &incomplete_on_old("counted=1 thinks=2 words=60 each_ms=300");
    let mut open = Vec::new();
    for proxy in &proxies {
        for is_h2 in [false, true] {
            let kind = (Family::Chat, is_h2);
            let raw = Streams::raw(proxy.address, STREAMS / 4, kind, prompt, "w:0");
            open.push(raw.await);
        }
    }
    pair.old.kill_worker(0);
    let mut broken = 0.0;
    for answer in answers(open).await {
        if !answer.has_error {
            // New served it from the start.
            assert_eq!(answer.text.trim(), text(WORDS), "{answer:?}");
            continue;
        }
        broken += 1.0;
        let known = (1..WORDS).any(|count| answer.text.trim() == text(count));
        assert!(known && !answer.text.is_empty(), "{answer:?}");
        assert_eq!(answer.reasoning.trim(), thoughts(2), "{answer:?}");
    }
    let mut ended = 0.0;
    for proxy in &proxies {
        let metrics = proxy.metrics().await;
        let labels = [("outcome", "ended"), ("reason", "reasoning")];
        ended += metrics.sum("crossfade_continuations_total", &labels);
    }
    assert_eq!(ended, broken);
    assert!(broken >= STREAMS as f64 - 10.0, "{broken}");
}
