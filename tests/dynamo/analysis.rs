//! A proxy analyzes new generations of real Dynamo that are slower than old, fail, equal old, or get no requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::dynamo::{Kind, MODEL, Options};
use crate::pair::Pair;
use crate::rig::proxy::run;
use crate::rig::{Client, End, Family, PlanFile, Proxy, manifest};

/// How long a verdict may take.
const PATIENCE: Duration = Duration::from_secs(100);

/// Starts a proxy that analyzes new without a controller.
async fn start_analyzing_proxy(
    pair: &Pair,
    [old, new]: [u32; 2],
    analysis: &str,
) -> (Proxy, PlanFile) {
    let analysis = format!("analysis: {analysis}");
    let file = PlanFile::new(&manifest(&pair.new.url(), old, new, &analysis));
    let (old, plan) = (pair.old.url(), file.as_str().clone());
    let proxy = Proxy::start(&["--old", &old, "--plan", &plan]).await;
    (proxy, file)
}

/// Clients that send requests without a pause, none of which may fail.
struct Clients {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Clients {
    /// `body` creates the request with this number.
    fn start(proxy: &Proxy, count: usize, body: fn(u64) -> Value) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let number = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let (stop, number, address) = (Arc::clone(&stop), Arc::clone(&number), proxy.address);
            tasks.spawn(async move {
                let mut client = Client::connect(address).await;
                while !stop.load(Ordering::Relaxed) {
                    let body = body(number.fetch_add(1, Ordering::Relaxed)).to_string();
                    client.post(Family::Chat.path(), &[], body).await;
                    let response = client.response().await;
                    assert_eq!((response.status, response.end), (200, End::Clean));
                    let text = response.text();
                    assert!(!text.contains("\"error\""), "{text}");
                    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
                }
            });
        }
        Self { stop, tasks }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
    }
}

async fn page(proxy: &Proxy) -> Value {
    serde_json::from_str(&proxy.plan().await).expect("JSON")
}

/// Waits until new has been rolled back, and returns the plan page.
async fn rolled_back(proxy: &Proxy) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = page(proxy).await;
        if page["analysis"]["rolledBack"] == true {
            assert_eq!(page["analysis"]["verdict"], "fail", "{page}");
            assert_eq!(page["trafficSplitPercent"], 0, "{page}");
            return page;
        }
        assert!(Instant::now() < deadline, "never: {}", page["analysis"]);
        sleep(Duration::from_millis(200)).await;
    }
}

/// The exit status and the report of `crossfade judge`.
fn analysis_report(proxy: &Proxy) -> (Option<i32>, Value) {
    let admin = proxy.admin.to_string();
    let done = run(&["judge", "--proxy", &admin, "-o", "json"]);
    let report = serde_json::from_slice(&done.stdout).expect("JSON");
    (done.status.code(), report)
}

/// The values of a metric for old and new.
fn figures(report: &Value, metric: &str) -> [f64; 2] {
    let rows = report["metrics"].as_array().expect("rows").iter();
    let mut rows = rows.filter(|row| row["metric"] == metric);
    let row = rows.next().unwrap_or_else(|| panic!("{metric}: {report}"));
    ["old", "new"].map(|generation| row[generation].as_f64().unwrap_or_else(|| panic!("{row}")))
}

/// A mocker that sends about 25 tokens per second.
fn mocker(decode: f64) -> Options {
    Options {
        kind: Kind::Mocker { speedup: 0.15 },
        worker_args: vec!["--decode-speedup-ratio".to_owned(), decode.to_string()],
        ..Options::default()
    }
}

fn mocked(_: u64) -> Value {
    json!({
        "model": MODEL, "stream": true, "max_tokens": 12, "ignore_eos": true,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "go on"}],
    })
}

/// New fails every 33rd request.
fn some_fail(number: u64) -> Value {
    let prompt = match number % 33 {
        0 => "<<words=3>> <<for=new words=3 http_error=500>>",
        _ => "<<words=3>>",
    };
    json!({"model": MODEL, "stream": true, "messages": [{"role": "user", "content": prompt}]})
}

/// Both generations send the same words, because the words `old` and `new` have different numbers of tokens.
fn paced(_: u64) -> Value {
    json!({
        "model": MODEL, "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "<<counted=1 words=8 first_ms=200 each_ms=50>>"}],
    })
}

#[tokio::test]
async fn new_whose_tokens_take_30_percent_longer_is_rolled_back_and_the_figures_say_so() {
    let pair = Pair::start_with(mocker(1.0), mocker(1.0 / 1.3)).await;
    // On a busy machine, the first token may be the first to be found slower.
    let rules = "{warmupSeconds: 0, ttftP95Ratio: 10, gapP99Ratio: 1.1, onFailure: RollBack}";
    let (proxy, _plan) = start_analyzing_proxy(&pair, [1, 1], rules).await;
    let clients = Clients::start(&proxy, 16, mocked);
    let page = rolled_back(&proxy).await;
    let (_, report) = analysis_report(&proxy);
    clients.end().await;
    let text = page["analysis"]["text"].as_str().expect("a sentence");
    assert!(
        text.starts_with("New's time per token (p50) is ")
            || text.starts_with("New's gap between tokens (p99) is "),
        "{text}"
    );
    let [old, new] = figures(&report, "timePerTokenP50");
    let ratio = new / old;
    assert!((1.2..1.4).contains(&ratio), "{ratio}: {report:#}");
}

#[tokio::test]
async fn new_that_fails_3_percent_is_rolled_back_although_clients_see_nothing() {
    let pair = Pair::start().await;
    let (proxy, _plan) = start_analyzing_proxy(&pair, [1, 1], "{onFailure: RollBack}").await;
    let clients = Clients::start(&proxy, 8, some_fail);
    let page = rolled_back(&proxy).await;
    let (_, report) = analysis_report(&proxy);
    clients.end().await;
    let text = page["analysis"]["text"].as_str().expect("a sentence");
    assert!(text.starts_with("New fails "), "{text}");
    assert!(
        text.contains("of its requests, and old fails 0.0% ("),
        "{text}"
    );
    let [old, new] = figures(&report, "failureRate");
    assert_eq!(old, 0.0, "{report:#}");
    assert!((0.015..0.06).contains(&new), "{report:#}");
}

/// Asserts that two equal generations are never failed during this time.
async fn no_alarm(lasts: Duration) {
    let pair = Pair::start().await;
    let rules = "{warmupSeconds: 10, onFailure: RollBack}";
    let (proxy, _plan) = start_analyzing_proxy(&pair, [1, 1], rules).await;
    // A second proxy in front of the same stacks, whose new generation gets no requests.
    let (idle, _idle_plan) = start_analyzing_proxy(&pair, [1, 0], rules).await;
    let clients = Clients::start(&proxy, 8, paced);
    let others = Clients::start(&idle, 2, paced);
    let begin = Instant::now();
    while begin.elapsed() < lasts {
        for proxy in [&proxy, &idle] {
            let analysis = &page(proxy).await["analysis"];
            assert_ne!(analysis["verdict"], "fail", "{analysis}");
        }
        // A poll interval: for the whole time, the verdict must never be `fail`.
        sleep(Duration::from_secs(1)).await;
    }
    let (status, report) = analysis_report(&proxy);
    assert_ne!(status, Some(1), "{report:#}");
    for row in report["metrics"].as_array().expect("rows") {
        for generation in ["old", "new"] {
            let samples = row["samples"][generation].as_u64();
            assert!(samples >= Some(200), "{row}");
        }
    }
    let (status, report) = analysis_report(&idle);
    assert_eq!(status, Some(3), "{report:#}");
    let text = "Not enough data: new received no requests in ";
    let message = report["text"].as_str().expect("a sentence");
    assert!(message.starts_with(text), "{message}");
    let analysis = &page(&idle).await["analysis"];
    assert_eq!(analysis["verdict"], "inconclusive", "{analysis}");
    clients.end().await;
    others.end().await;
}

#[tokio::test]
async fn equal_generations_do_not_fail_and_one_without_requests_gets_no_verdict() {
    no_alarm(Duration::from_secs(60)).await;
}

#[tokio::test]
#[ignore = "ten minutes"]
async fn equal_generations_do_not_fail_for_ten_minutes() {
    no_alarm(Duration::from_secs(600)).await;
}
