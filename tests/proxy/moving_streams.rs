//! Moving streams: when old has no share left, new continues the streams that are still open on old, at the rate of the plan.

mod unread;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::rig::*;
use serde_json::{Value, json};

/// The number of words of an answer.
const WORDS: usize = 10;
const MOVED: &str = "crossfade_continuations_total";
const FAILED: &str = "crossfade_failed_attempts_total";
const MOVING: &str = "crossfade_moving_streams";

/// A server that counts: its answer continues where the last message ends. After `pause` words of its own it waits for the gate.
#[derive(Clone)]
struct Counting {
    name: &'static str,
    pause: usize,
    gate: Gate,
    /// Whether it rejects continuations although its probe promised them.
    refuses: bool,
    /// Whether it waits for the gate before the first content of a continuation.
    hesitates: bool,
    /// The times of the continuation requests.
    asked: Arc<Mutex<Vec<Instant>>>,
}

impl Counting {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            pause: WORDS,
            gate: Gate::closed(),
            refuses: false,
            hesitates: false,
            asked: Arc::default(),
        }
    }

    /// Waits for the gate after its first `words` words.
    fn pausing_after(mut self, words: usize) -> Self {
        self.pause = words;
        self
    }

    async fn start(&self) -> Upstream {
        let this = self.clone();
        Upstream::start(move |request| {
            if request.target == MODELS {
                return models(&["tiny"]);
            }
            let this = this.clone();
            Script::by_body(move |request| this.answer(&request.body()))
        })
        .await
    }

    fn answer(&self, body: &[u8]) -> Script {
        let request: Value = serde_json::from_slice(body).unwrap();
        let continues = request["continue_final_message"] == true;
        if continues && request["add_generation_prompt"] == true {
            let both =
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
            return Script::new().json(400, &json!({"message": both, "code": 400}).to_string());
        }
        let mut from = 0;
        if continues {
            self.asked.lock().unwrap().push(Instant::now());
            if self.refuses {
                return status(500);
            }
            let text = request["messages"].as_array().unwrap().last().unwrap();
            from = text["content"].as_str().unwrap().split_whitespace().count();
        }
        let mut script = Script::new()
            .sse()
            .event(&self.chunk(&json!({"role": "assistant", "content": ""}), None));
        for (own, word) in (from..WORDS).enumerate() {
            if own == self.pause || (own == 0 && continues && self.hesitates) {
                script = script.wait(&self.gate);
            }
            script = script.event(&self.chunk(&json!({"content": format!("{word} ")}), None));
        }
        script
            .event(&self.chunk(&json!({}), Some("stop")))
            .events(DONE)
    }

    fn chunk(&self, delta: &Value, finish: Option<&str>) -> String {
        let chunk = json!({
            "id": format!("chatcmpl-{}", self.name), "object": "chat.completion.chunk", "created": 1, "model": "tiny",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        });
        format!("data: {chunk}")
    }
}

/// A plan that enables continuation, with these weights and this `drain`.
fn plan(new: &Upstream, weights: [u32; 2], drain: &str) -> String {
    let more = format!(
        "failover: {{continuation: {{mode: AnyGeneration}}, retryBudgetPercent: 100}}\ndrain: {{{drain}}}"
    );
    manifest(&new.url(), weights[0], weights[1], &more)
}

/// The content of a stream, and the IDs of its chunks.
fn content(stream: &str) -> (String, Vec<String>) {
    let (mut text, mut ids) = (String::new(), Vec::new());
    for data in stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
    {
        if let Ok(chunk) = serde_json::from_str::<Value>(data) {
            text += chunk["choices"][0]["delta"]["content"]
                .as_str()
                .unwrap_or_default();
            ids.push(chunk["id"].as_str().unwrap_or("none").to_owned());
        }
    }
    ids.dedup();
    (text, ids)
}

fn unbroken() -> String {
    (0..WORDS).map(|word| format!("{word} ")).collect()
}

/// A client whose stream has reached the pause of old after `words` words.
async fn paused(proxy: &Proxy, words: usize) -> (Client, String) {
    let mut client = client::open_chat(proxy.address).await;
    assert_eq!(client.head().await.status, 200);
    let last = format!("\"content\":\"{} \"", words - 1);
    let mut seen = String::new();
    while !seen.contains(&last) {
        let piece = client.piece().await.expect("more");
        seen += std::str::from_utf8(&piece).unwrap();
    }
    (client, seen)
}

/// Waits until both generations have proven that they can continue.
async fn proven(proxy: &Proxy) {
    for generation in ["old", "new"] {
        let labels = [("generation", generation), ("state", "supported")];
        proxy
            .counts("crossfade_continuation_capability", &labels, 1.0)
            .await;
    }
}

#[tokio::test]
async fn a_silent_stream_moves_to_new_when_old_has_no_share_left() {
    let old = Counting::new("old").pausing_after(4).start().await;
    let new = Counting::new("new").start().await;
    let file = PlanFile::new(&plan(&new, [1, 0], "moveAfterSeconds: 0"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proven(&proxy).await;
    let (mut client, mut seen) = paused(&proxy, 4).await;
    file.write(&plan(&new, [0, 1], "moveAfterSeconds: 0"));
    seen += &String::from_utf8(client.body().await).unwrap();
    let (text, ids) = content(&seen);
    assert_eq!(text, unbroken(), "{seen}");
    assert_eq!(ids, ["chatcmpl-old"], "{seen}");
    assert!(
        seen.ends_with(DONE) && seen.contains(": crossfade continued (old"),
        "{seen}"
    );
    // Its request to old is cancelled.
    let requests = old.requests();
    let first = requests
        .iter()
        .find(|request| request.header("x-crossfade-probe").is_none() && request.target == CHAT)
        .unwrap();
    eventually("old's request is cancelled", async || first.is_gone()).await;
    let moved = [("outcome", "continued"), ("reason", "planned_move")];
    proxy.counts(MOVED, &moved, 1.0).await;
    proxy.counts(MOVING, &[], 0.0).await;
    proxy.outcomes("completed", 1).await;
}

#[tokio::test]
async fn a_moving_stream_counts_for_old_until_new_has_continued_it() {
    const OPEN: &str = "crossfade_open_streams";
    let old = Counting::new("old").pausing_after(4).start().await;
    let hesitating = Counting {
        hesitates: true,
        ..Counting::new("new")
    };
    let new = hesitating.start().await;
    let file = PlanFile::new(&plan(&new, [1, 0], "moveAfterSeconds: 0"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proven(&proxy).await;
    let (mut client, mut seen) = paused(&proxy, 4).await;
    file.write(&plan(&new, [0, 1], "moveAfterSeconds: 0"));
    eventually("new is asked for the rest", async || {
        !hesitating.asked.lock().unwrap().is_empty()
    })
    .await;
    // Until new has sent content, old may have to continue.
    let on =
        |metrics: &proxy::Metrics, generation| metrics.sum(OPEN, &[("generation", generation)]);
    let metrics = proxy.metrics().await;
    assert_eq!((on(&metrics, "old"), on(&metrics, "new")), (1.0, 0.0));
    assert_eq!(metrics.sum(MOVING, &[]), 1.0);
    hesitating.gate.open();
    seen += &String::from_utf8(client.body().await).unwrap();
    assert_eq!(content(&seen).0, unbroken(), "{seen}");
    proxy.counts(MOVING, &[], 0.0).await;
    proxy.counts(OPEN, &[], 0.0).await;
}

#[tokio::test]
async fn a_stream_that_old_continued_from_new_moves_back() {
    let new = counting::Counting::new("new", WORDS).breaking(4, Script::reset);
    let new = Upstream::start(new.handler()).await;
    let mut server = counting::Counting::new("old", WORDS);
    server.breaks_again = Some((2, Arc::new(Script::hang)));
    let old = Upstream::start(server.handler()).await;
    let file = PlanFile::new(&plan(&new, [0, 1], "moveAfterSeconds: 0"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proven(&proxy).await;
    let seen = client::open_chat(proxy.address).await.response().await;
    let seen = seen.text();
    let (text, ids) = content(&seen);
    assert_eq!(text, words(WORDS), "{seen}");
    assert_eq!(ids, ["cmpl-new"], "{seen}");
    for reason in ["connection", "planned_move"] {
        let labels = [("outcome", "continued"), ("reason", reason)];
        proxy.counts(MOVED, &labels, 1.0).await;
    }
    proxy.counts(MOVING, &[], 0.0).await;
}

#[tokio::test]
async fn streams_move_at_the_rate_of_the_plan() {
    const STREAMS: usize = 6;
    let old = Counting::new("old").pausing_after(2).start().await;
    let counting = Counting::new("new");
    let new = counting.start().await;
    let drain = "moveAfterSeconds: 0, moveRate: 4";
    let file = PlanFile::new(&plan(&new, [1, 0], drain));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proven(&proxy).await;
    let mut clients = Vec::new();
    for _ in 0..STREAMS {
        clients.push(paused(&proxy, 2).await);
    }
    let from = Instant::now();
    file.write(&plan(&new, [0, 1], drain));
    for (mut client, mut seen) in clients {
        seen += &String::from_utf8(client.body().await).unwrap();
        assert_eq!(content(&seen).0, unbroken(), "{seen}");
    }
    let asked = counting.asked.lock().unwrap().clone();
    assert_eq!(asked.len(), STREAMS);
    // The first one at once, each of the others a quarter of a second after its predecessor.
    let took = asked[STREAMS - 1] - from;
    let least = Duration::from_millis(250) * u32::try_from(STREAMS - 1).unwrap();
    assert!(took >= least, "{took:?}");
}

#[tokio::test]
async fn a_stream_that_cannot_be_moved_completes_on_old() {
    let counting = Counting::new("old").pausing_after(4);
    let old = counting.start().await;
    let refusing = Counting {
        refuses: true,
        ..Counting::new("new")
    };
    let new = refusing.start().await;
    let file = PlanFile::new(&plan(&new, [1, 0], "moveAfterSeconds: 0"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proven(&proxy).await;
    let (mut client, mut seen) = paused(&proxy, 4).await;
    file.write(&plan(&new, [0, 1], "moveAfterSeconds: 0"));
    proxy.counts(MOVED, &[("outcome", "stayed")], 1.0).await;
    let failed = [("generation", "new"), ("cause", "server_error")];
    proxy.counts(FAILED, &failed, 1.0).await;
    proxy.counts(FAILED, &[], 1.0).await;
    counting.gate.open();
    seen += &String::from_utf8(client.body().await).unwrap();
    assert_eq!(content(&seen).0, unbroken(), "{seen}");
    assert!(!seen.contains("crossfade continued"), "{seen}");
    proxy.outcomes("completed", 1).await;
}

#[tokio::test]
async fn a_pending_move_is_reported_in_advance_and_can_be_cancelled() {
    let counting = Counting::new("old").pausing_after(4);
    let old = counting.start().await;
    let new = Counting::new("new").start().await;
    let drain = "moveAfterSeconds: 3600";
    let file = PlanFile::new(&plan(&new, [1, 0], drain));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proven(&proxy).await;
    let (mut client, mut seen) = paused(&proxy, 4).await;
    proxy.counts(MOVING, &[], 0.0).await;
    file.write(&plan(&new, [0, 1], drain));
    proxy.counts(MOVING, &[], 1.0).await;
    assert!(proxy.plan().await.contains("\"movingStreams\": 1"));
    // The move becomes due, and then it is cancelled.
    file.write(&plan(&new, [1, 99], "moveAfterSeconds: 0"));
    proxy.counts(MOVING, &[], 0.0).await;
    counting.gate.open();
    seen += &String::from_utf8(client.body().await).unwrap();
    assert_eq!(content(&seen).0, unbroken(), "{seen}");
    assert!(!seen.contains("crossfade continued"), "{seen}");
    proxy.counts(MOVED, &[], 0.0).await;
}

#[tokio::test]
async fn a_stream_that_new_does_not_continue_in_time_stays_on_old() {
    let old = Counting::new("old").pausing_after(4);
    let server = old.start().await;
    let hesitating = Counting {
        hesitates: true,
        ..Counting::new("new")
    };
    let new = hesitating.start().await;
    let file = PlanFile::new(&plan(&new, [1, 0], "moveAfterSeconds: 0"));
    let proxy = Proxy::planned(&server, &file, &[]).await;
    proven(&proxy).await;
    let (mut client, mut seen) = paused(&proxy, 4).await;
    file.write(&plan(&new, [0, 1], "moveAfterSeconds: 0"));
    eventually("new is asked for the rest", async || {
        !hesitating.asked.lock().unwrap().is_empty()
    })
    .await;
    proxy.counts(MOVED, &[("outcome", "stayed")], 1.0).await;
    old.gate.open();
    seen += &String::from_utf8(client.body().await).unwrap();
    assert_eq!(content(&seen).0, unbroken(), "{seen}");
    assert!(!seen.contains("crossfade continued"), "{seen}");
    let failed = [("generation", "new"), ("cause", "deadline")];
    proxy.counts(FAILED, &failed, 1.0).await;
    proxy.counts(FAILED, &[], 1.0).await;
    proxy.outcomes("completed", 1).await;
}

#[tokio::test]
async fn a_stream_that_has_only_reasoned_moves_with_the_reasoning_of_old() {
    let mut old = counting::Counting::new("old", WORDS).breaking(0, Script::hang);
    old.thinks = [3, 0];
    let old = Upstream::start(old.handler()).await;
    let mut new = counting::Counting::new("new", WORDS);
    new.thinks = [2, 0];
    let new = Upstream::start(new.handler()).await;
    let file = PlanFile::new(&plan(&new, [1, 0], "moveAfterSeconds: 0"));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proven(&proxy).await;
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    let mut seen = String::new();
    while !seen.contains("old thinks 2") {
        seen += std::str::from_utf8(&client.piece().await.expect("more")).unwrap();
    }
    file.write(&plan(&new, [0, 1], "moveAfterSeconds: 0"));
    seen += &String::from_utf8(client.body().await).unwrap();
    let (text, ids) = content(&seen);
    assert_eq!(
        (&*text, &*ids),
        (&*words(WORDS), &["cmpl-old".to_owned()][..])
    );
    assert!(
        seen.ends_with(DONE) && !seen.contains("new thinks"),
        "{seen}"
    );
    let moved = [("outcome", "continued"), ("reason", "planned_move")];
    proxy.counts(MOVED, &moved, 1.0).await;
    proxy.outcomes("completed", 1).await;
}

/// The response to a stream of which one of two old servers sends `rest` after four words, while new, which is asked to take the
/// stream over, sends nothing.
async fn while_new_hangs(rest: fn(Script) -> Script) -> (Proxy, Response) {
    let gate = Gate::closed();
    let of_old = counting::Counting::new("old", WORDS).breaking(4, {
        let gate = gate.clone();
        move |script| rest(script.wait(&gate))
    });
    let old = Upstream::start(of_old.clone().handler()).await;
    let other = Upstream::start(of_old.handler()).await;
    let asked = Gate::closed();
    let mut of_new = counting::Counting::new("new", WORDS);
    of_new.breaks_again = Some((0, {
        let asked = asked.clone();
        Arc::new(move |_| {
            asked.open();
            Script::new().hang()
        })
    }));
    let new = Upstream::start(of_new.handler()).await;
    let file = PlanFile::new(&plan(&new, [1, 0], "moveAfterSeconds: 0"));
    let proxy = Proxy::planned(&old, &file, &["--old", &other.url()]).await;
    for (generation, count) in [("old", 2.0), ("new", 1.0)] {
        let labels = [("generation", generation), ("state", "supported")];
        proxy
            .counts("crossfade_continuation_capability", &labels, count)
            .await;
    }
    let mut client = client::open_chat(proxy.address).await;
    let head = client.head().await;
    file.write(&plan(&new, [0, 1], "moveAfterSeconds: 0"));
    asked.wait().await;
    gate.open();
    let from = Instant::now();
    let response = client.rest(head).await;
    let took = from.elapsed();
    assert!(
        took < Duration::from_secs(15),
        "as long as a move may take: {took:?}"
    );
    (proxy, response)
}

#[tokio::test]
async fn a_stream_that_old_completes_while_new_is_asked_ends_at_once() {
    let (proxy, response) = while_new_hangs(|script| {
        let choice = json!({"index": 0, "delta": {"content": "end"}, "finish_reason": "stop"});
        let last = json!({"id": "cmpl-old", "choices": [choice]});
        script.chunk(format!("data: {last}\n\n")).chunk(DONE)
    })
    .await;
    let seen = response.text();
    assert_eq!(response.end, End::Clean);
    assert_eq!(content(&seen).0, words(4) + "end", "{seen}");
    assert!(seen.ends_with(DONE), "{seen}");
    proxy.counts(MOVED, &[("outcome", "stayed")], 1.0).await;
    proxy.counts(FAILED, &[], 0.0).await;
    proxy.outcomes("completed", 1).await;
}

#[tokio::test]
async fn a_stream_that_breaks_while_new_is_asked_is_continued_at_once() {
    type Break = fn(Script) -> Script;
    let breaks: [(Break, &str); 4] = [
        (Script::reset, "connection"),
        (Script::end, "truncated"),
        (
            |script| script.chunk("data: {\"choices\":[{\"del").eof(),
            "connection",
        ),
        (
            |script| script.chunk(error_event(503) + DONE),
            "error_event",
        ),
    ];
    for (how, cause) in breaks {
        let (proxy, response) = while_new_hangs(how).await;
        let seen = response.text();
        assert_eq!(response.end, End::Clean, "{cause}");
        assert_eq!(content(&seen).0, words(WORDS), "{cause}: {seen}");
        assert!(seen.ends_with(DONE), "{cause}: {seen}");
        let comment = format!(": crossfade continued (old → old, {cause})");
        assert!(seen.contains(&comment), "{cause}: {seen}");
        proxy.counts(MOVED, &[("outcome", "stayed")], 1.0).await;
        let continued = [("outcome", "continued"), ("reason", cause)];
        proxy.counts(MOVED, &continued, 1.0).await;
        proxy.counts(FAILED, &[("generation", "old")], 1.0).await;
        proxy.counts(FAILED, &[], 1.0).await;
        proxy.outcomes("completed", 1).await;
    }
}

/// `oldDraining` takes effect only once new gets all requests. Before that, old still gets requests, which must not move.
#[tokio::test]
async fn a_stream_moves_when_old_drains_but_not_while_old_has_a_share() {
    let counting = Counting::new("old").pausing_after(4);
    let old = counting.start().await;
    let new = Counting::new("new").start().await;
    let plan = |weights| plan(&new, weights, "moveAfterSeconds: 0") + "  oldDraining: true\n";
    let file = PlanFile::new(&plan([1, 0]));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    proven(&proxy).await;
    let (mut client, mut seen) = paused(&proxy, 4).await;
    file.write(&plan([1, 99]));
    eventually("the plan is in force", async || {
        proxy.plan().await.contains("\"epoch\": 2")
    })
    .await;
    proxy.counts(MOVING, &[], 0.0).await;
    proxy.counts(MOVED, &[], 0.0).await;
    file.write(&plan([0, 1]));
    seen += &String::from_utf8(client.body().await).unwrap();
    assert_eq!(content(&seen).0, unbroken(), "{seen}");
    let moved = [("outcome", "continued"), ("reason", "planned_move")];
    proxy.counts(MOVED, &moved, 1.0).await;
}
