//! Models that think before they answer: what was thought is thought again, what was said is continued.

use super::*;

/// A worker whose thoughts the frontend tells from its answer by this parser.
async fn pair(parser: &str) -> Pair {
    let options = || Options {
        worker_args: vec!["--reasoning-parser".into(), parser.into()],
        ..Options::default()
    };
    Pair::start_with(options(), options()).await
}

/// Streams of chat through both proxies, which have come as far as `beginning`.
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
async fn a_model_that_has_only_thought_is_asked_again_and_thinks_once() {
    let mut pair = pair("basic").await;
    let proxies = proxies(&pair, &[]).await;
    let prompt = "<<counted=1 thinks=60 words=10 each_ms=300>>";
    let open = begin_chat(&proxies, prompt, "t:0").await;
    pair.old.kill_worker(0);
    let answers = answers(open).await;
    assert_whole(&answers, 10);
    for answer in &answers {
        // The first one's, as far as they came; those few that new answered thought to the end.
        let known = (1..=60).any(|count| answer.reasoning.trim() == thoughts(count));
        assert!(known, "{answer:?}");
    }
    assert_continued(&proxies, STREAMS / 2, "error_event").await;
}

#[tokio::test]
async fn a_model_that_has_thought_and_begun_to_answer_continues_with_its_answer() {
    let mut pair = pair("basic").await;
    let proxies = proxies(&pair, &[]).await;
    let prompt = "<<counted=1 thinks=2 words=60 each_ms=300>>";
    let open = begin_chat(&proxies, prompt, "w:0").await;
    pair.old.kill_worker(0);
    let answers = answers(open).await;
    assert_whole(&answers, WORDS);
    for answer in &answers {
        assert_eq!(answer.reasoning.trim(), thoughts(2), "{answer:?}");
    }
    assert_continued(&proxies, STREAMS / 2, "error_event").await;
}

/// This parser takes everything for a thought until the thoughts are said to end, so a continued answer looks like one.
#[tokio::test]
async fn an_answer_that_would_continue_with_thoughts_ends_honestly() {
    let mut pair = pair("deepseek_r1").await;
    let proxies = proxies(&pair, &[]).await;
    let prompt = "<<counted=1 thinks=2 words=60 each_ms=300>>";
    let mut open = Vec::new();
    for proxy in &proxies {
        for is_h2 in [false, true] {
            let way = (Family::Chat, is_h2);
            let raw = Streams::raw(proxy.address, STREAMS / 4, way, prompt, "w:0");
            open.push(raw.await);
        }
    }
    pair.old.kill_worker(0);
    let mut broken = 0.0;
    for answer in answers(open).await {
        if !answer.has_error {
            // New answered it from the start.
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
