//! `crossfade judge` on running proxies between scripted servers: verdict, figures and exit status.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::rig::proxy::{output_text, program, run};
use crate::rig::*;
use serde_json::Value;

const PASS: Option<i32> = Some(0);
const FAIL: Option<i32> = Some(1);
const USAGE: Option<i32> = Some(2);
const INCONCLUSIVE: Option<i32> = Some(3);

/// Latencies count from the start.
const AT_ONCE: &str = "analysis: {warmupSeconds: 0}";
/// Limits that no latency exceeds.
const PATIENT: [&str; 4] = ["--ttft-ratio", "100", "--gap-ratio", "100"];

/// A proxy that sends half of the requests to each server and counts latencies from the start.
async fn split(old: &Upstream, new: &Upstream) -> (Proxy, PlanFile) {
    let plan = PlanFile::new(&manifest(&new.url(), 1, 1, AT_ONCE));
    (Proxy::planned(old, &plan, &[]).await, plan)
}

/// The verdict in JSON, and the exit status.
fn judge(proxies: &str, more: &[&str]) -> (Value, Option<i32>) {
    let args = [&["judge", "--proxy", proxies, "-o", "json"], more].concat();
    let output = run(&args);
    let read = serde_json::from_slice(&output.stdout);
    (
        read.unwrap_or_else(|_| panic!("{}", output_text(&output))),
        output.status.code(),
    )
}

#[tokio::test]
async fn requests_that_new_fails_and_old_recovers_count_against_new() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(500))).await;
    let (proxy, _plan) = split(&old, &new).await;
    for _ in 0..60 {
        assert_eq!(proxy.chat().await.status, 200, "the client sees an error");
    }
    // The counts since the start are its past counts after one second.
    let address = proxy.admin.to_string();
    let (report, status) = until("the proxy has past counts", async || {
        let (report, status) = judge(&address, &[]);
        (report["coversSeconds"].as_f64() > Some(0.0)).then_some((report, status))
    })
    .await;
    assert_eq!(
        (report["verdict"].as_str(), status),
        (Some("fail"), FAIL),
        "{report}"
    );
    let failures = &report["metrics"][0];
    assert_eq!(failures["metric"], "failureRate");
    assert_eq!(
        (&failures["old"], &failures["new"]),
        (&0.0.into(), &1.0.into())
    );
    assert_eq!(failures["samples"]["new"], 30);
    assert!(failures["confidence"].as_f64() >= Some(0.99), "{failures}");
    let output = run(&["judge", "--proxy", &address]);
    let text = output_text(&output);
    assert_eq!(output.status.code(), FAIL);
    assert!(
        text.starts_with(
            "fail: New fails 100.0% of its requests, and old fails 0.0% (30 and 30 requests in "
        ),
        "{text}"
    );
    assert!(text.contains("\n1 proxy\n"), "{text}");
}

#[tokio::test]
async fn equal_generations_pass_and_without_enough_requests_there_is_no_verdict() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let (one, _plan) = split(&old, &new).await;
    let (other, _other_plan) = split(&old, &new).await;
    let both = format!("{},{}", one.admin, other.admin);
    let (idle, status) = judge(&both, &[]);
    assert_eq!(
        (idle["verdict"].as_str(), status),
        (Some("inconclusive"), INCONCLUSIVE)
    );
    assert!(
        idle["text"]
            .as_str()
            .unwrap()
            .starts_with("No requests were received in "),
        "{idle}"
    );
    for proxy in [&one, &other] {
        for _ in 0..100 {
            proxy.chat().await;
        }
        proxy.outcomes("completed", 100).await;
    }
    let past = async |more: &[&str]| {
        let more = [more, &PATIENT].concat();
        until("both proxies have past counts", async || {
            let (report, status) = judge(&both, &more);
            let begun = &report["metrics"][0]["samples"];
            (*begun == serde_json::json!({"old": 100, "new": 100})).then_some((report, status))
        })
        .await
    };
    let (report, status) = past(&["--min-samples", "100"]).await;
    assert_eq!(
        (report["verdict"].as_str(), status),
        (Some("pass"), PASS),
        "{report}"
    );
    let (report, status) = past(&["--min-samples", "101"]).await;
    assert_eq!(status, INCONCLUSIVE);
    assert!(
        report["text"]
            .as_str()
            .unwrap()
            .contains("new received only 100 requests"),
        "{report}"
    );
    // A proxy that does not respond is named, because new may have failed there.
    let some = format!("{both},127.0.0.1:9");
    let more = [&["--min-samples", "100"][..], &PATIENT].concat();
    let (report, status) = judge(&some, &more);
    assert_eq!(status, INCONCLUSIVE, "{report}");
    assert_eq!(report["text"], "1 of 3 proxies cannot be compared.");
    let silent = report["proxies"]["silent"].as_array().unwrap();
    assert!(silent.len() == 1 && silent[0].as_str().unwrap().starts_with("127.0.0.1:9: "));
    // One process at two addresses counts once.
    let twice = format!("{both},localhost:{}", one.admin.port());
    let (report, status) = judge(&twice, &more);
    assert_eq!(status, PASS, "{report}");
    assert_eq!(report["metrics"][0]["samples"]["new"], 100, "{report}");
    assert_eq!(report["proxies"]["asked"], 2, "{report}");
}

/// `--for` waits for the verdict, and ends with it.
#[tokio::test]
async fn a_new_generation_with_a_slower_first_token_is_detected() {
    let slow = |name: &'static str, millis| {
        let script = Script::new().sse().pause(millis).events(&chat_text(name));
        serving(script)
    };
    let old = Upstream::start(slow("old", 20)).await;
    let new = Upstream::start(slow("new", 80)).await;
    let (proxy, _plan) = split(&old, &new).await;
    let done = Arc::new(AtomicBool::new(false));
    let mut load = Vec::new();
    for _ in 0..4 {
        let (done, address) = (Arc::clone(&done), proxy.address);
        load.push(tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                client::chat(address).await;
            }
        }));
    }
    let mut command = program();
    let address = proxy.admin.to_string();
    command.args([
        "judge",
        "--proxy",
        &address,
        "--for",
        "5m",
        "--interval",
        "0.5",
        "-o",
        "json",
    ]);
    // A low confidence is enough here and faster, because this tests the wait for the verdict.
    command.args([
        "--confidence",
        "0.5",
        "--min-samples",
        "50",
        "--gap-ratio",
        "100",
    ]);
    let running = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = running.await.unwrap();
    done.store(true, Ordering::Relaxed);
    for client in load {
        client.await.unwrap();
    }
    assert_eq!(output.status.code(), FAIL, "{}", output_text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failed = report["metrics"].as_array().unwrap().iter();
    let failed: Vec<_> = failed.filter(|row| row["verdict"] == "fail").collect();
    let [row] = failed[..] else {
        panic!("{report}");
    };
    assert!(row["metric"].as_str().unwrap().starts_with("ttft"), "{row}");
    assert!(
        row["new"].as_f64().unwrap() > 1.25 * row["old"].as_f64().unwrap(),
        "{row}"
    );
    assert!(
        report["text"]
            .as_str()
            .unwrap()
            .starts_with("New's time to first token (p"),
        "{report}"
    );
}

/// A proxy from before `Compare`, whose gRPC server does not know the method.
async fn older() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = async |_: Request<Incoming>| {
        let head = Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "12");
        Ok::<_, Infallible>(head.body(Empty::<Bytes>::new()).unwrap())
    };
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let server = http2::Builder::new(TokioExecutor::new());
            let serving = server.serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(serving);
        }
    });
    address
}

#[tokio::test]
async fn an_older_proxy_and_one_that_hangs_are_named_and_there_is_no_pass() {
    let older = older().await.to_string();
    // The kernel accepts connections, but no process reads from them.
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hangs = hangs
        .local_addr()
        .map(|at| (at.to_string(), hangs))
        .unwrap();
    for wait in [&[][..], &["--for", "1s"]] {
        let both = format!("{older},{}", hangs.0);
        let running = tokio::task::spawn_blocking(move || judge(&both, wait));
        let (report, status) = running.await.unwrap();
        assert_eq!(status, INCONCLUSIVE, "{report}");
        assert_eq!(report["text"], "No proxy could be queried.");
        let silent = &report["proxies"]["silent"];
        assert_eq!(silent[0], format!("{older}: too old to be compared"));
        let hung = silent[1].as_str().unwrap();
        assert!(
            hung.contains("is not the admin port") && hung.contains("or does not respond"),
            "{hung}"
        );
    }
}

#[test]
fn without_a_response_there_is_no_verdict_and_wrong_usage_has_its_own_status() {
    for (args, status) in [
        (&["judge", "--proxy", "127.0.0.1:9"][..], INCONCLUSIVE),
        (
            &["judge", "--proxy", "127.0.0.1:9", "--for", "1ms"],
            INCONCLUSIVE,
        ),
        (&["judge", "--kubeconfig", "/does/not/exist"], INCONCLUSIVE),
        (&["judge", "--proxy", "127.0.0.1:9", "name"], USAGE),
        (&["judge", "--proxy", ","], USAGE),
        (&["judge", "--for", "soon"], USAGE),
        (&["judge", "--interval", "0"], USAGE),
        (&["judge", "--window", "5s"], USAGE),
        (&["judge", "--min-samples", "0"], USAGE),
        (&["judge", "--max-failure-rate-increase", "101"], USAGE),
        (&["judge", "--ttft-ratio", "0.9"], USAGE),
        (&["judge", "--gap-ratio", "NaN"], USAGE),
        (&["judge", "--confidence", "1"], USAGE),
        (&["judge", "--output", "xml"], USAGE),
    ] {
        let output = run(args);
        assert_eq!(
            output.status.code(),
            status,
            "{args:?}: {}",
            output_text(&output)
        );
    }
}

/// Scripts read the verdict on standard output, and not standard error.
#[test]
fn an_unreachable_cluster_gives_no_verdict_in_json_either() {
    let kubeconfig = "/nonexistent/kubeconfig";
    for form in ["json", "yaml"] {
        let mut command = program();
        command.args(["judge", "chat", "-o", form]);
        let output = command.env("KUBECONFIG", kubeconfig).output().unwrap();
        assert_eq!(
            output.status.code(),
            INCONCLUSIVE,
            "{}",
            output_text(&output)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        let report: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(report["verdict"], "inconclusive", "{text}");
        assert!(
            report["text"].as_str().unwrap().contains(kubeconfig),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_rolled_back_generation_has_failed_regardless_of_the_latest_counts() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(500))).await;
    let roll_back = "analysis: {onFailure: RollBack}";
    let plan = PlanFile::new(&manifest(&new.url(), 1, 1, roll_back));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    until("it rolls back", async || {
        proxy.chat().await;
        let page: Value = serde_json::from_str(&proxy.plan().await).unwrap();
        (page["analysis"]["rolledBack"] == true).then_some(())
    })
    .await;
    let address = proxy.admin.to_string();
    for more in [&[][..], &["--for", "600"]] {
        let (report, status) = judge(&address, more);
        assert_eq!(status, FAIL, "{report}");
        let text = report["text"].as_str().unwrap();
        assert!(
            text.starts_with("New has failed and was rolled back: New fails"),
            "{text}"
        );
    }
}

/// The proxy itself compares often and its past counts are few, so the two could disagree.
#[tokio::test]
async fn judge_agrees_with_the_proxys_failure_if_the_limits_are_equal_also_while_new_gets_all_requests()
 {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(serving(status(500))).await;
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, "analysis: {onFailure: Hold}"));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    until("the proxy fails new", async || {
        proxy.chat().await;
        let page: Value = serde_json::from_str(&proxy.plan().await).unwrap();
        (page["analysis"]["verdict"] == "fail").then_some(())
    })
    .await;
    let address = proxy.admin.to_string();
    for more in [&[][..], &["--for", "600"]] {
        let (report, status) = judge(&address, more);
        assert_eq!(status, FAIL, "{report}");
        let text = report["text"].as_str().unwrap();
        assert!(text.contains("New fails 100.0% of its requests"), "{text}");
    }
    let (report, status) = judge(&address, &["--min-samples", "7"]);
    assert_eq!(status, INCONCLUSIVE, "with other limits: {report}");
}

/// One of two proxies with a plan file of its own may have rolled back, or follows another split or update.
#[tokio::test]
async fn proxies_with_different_plans_have_no_verdict_and_are_named() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let (one, _plan) = split(&old, &new).await;
    let (other, other_plan) = split(&old, &new).await;
    let both = format!("{},{}", one.admin, other.admin);
    let (report, _) = judge(&both, &[]);
    let text = report["text"].as_str().unwrap();
    assert!(!text.contains("different plans"), "{text}");
    other_plan.replace(&manifest(&new.url(), 1, 0, AT_ONCE));
    other.counts("crossfade_plan_epoch", &[], 2.0).await;
    for more in [&[][..], &["--for", "1ms"]] {
        let (report, status) = judge(&both, more);
        assert_eq!(
            (report["verdict"].as_str(), status),
            (Some("inconclusive"), INCONCLUSIVE)
        );
        let url = format!("http://{}", new.url());
        let expected = format!(
            "The proxies have different plans: {} sends 50% to new at {url}, by update test; {} sends 0% to new at {url}, by \
             update test.",
            one.admin, other.admin
        );
        assert_eq!(report["text"], expected);
    }
}

/// With the limits of the plans, if they are the same.
#[tokio::test]
async fn proxies_are_compared_with_the_limits_of_their_plans() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let with = async |analysis: &str| {
        let plan = PlanFile::new(&manifest(&new.url(), 1, 1, analysis));
        (Proxy::planned(&old, &plan, &[]).await, plan)
    };
    let (few, _few) = with("analysis: {minSamples: 7}").await;
    let (many, _many) = with("analysis: {minSamples: 9}").await;
    few.chat().await;
    let needed = until("the proxy has past counts", async || {
        let (report, _) = judge(&few.admin.to_string(), &[]);
        let text = report["text"].as_str().unwrap().to_owned();
        text.contains("needed").then_some(text)
    })
    .await;
    assert!(needed.ends_with("; at least 7 are needed."), "{needed}");
    let both = format!("{},{}", few.admin, many.admin);
    let (report, status) = judge(&both, &[]);
    assert_eq!(status, INCONCLUSIVE);
    let text = format!(
        "{} and {} analyse new with different margins: set the margins with flags",
        few.admin, many.admin
    );
    assert_eq!(report["text"], text);
    let (report, _) = judge(&both, &["--min-samples", "8"]);
    assert_ne!(
        report["text"], text,
        "the flags override the limits of both"
    );
}
