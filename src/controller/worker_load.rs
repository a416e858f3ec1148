//! Polls a worker's Prometheus metrics for the number of its open requests.

use std::time::Duration;

use http::StatusCode;

use super::http::{FrontendAddress, FrontendClient, FrontendQuery, MAX_LIST};
use super::limits::TargetPermit;
use super::poller::PollSink;

/// The names of the port that serves the metrics: in pods of Dynamo, and elsewhere.
pub(super) const PORTS: [&str; 2] = ["system", "metrics"];
/// The gauges that together count the requests of a worker, by server. A Dynamo worker may also export the gauges of its engine,
/// which count the same requests, so only the first server found counts.
const GAUGES: [&[&str]; 3] = [
    &["dynamo_component_inflight_requests"],
    &["vllm:num_requests_running", "vllm:num_requests_waiting"],
    &["sglang:num_running_reqs", "sglang:num_queue_reqs"],
];
const INTERVAL: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(2);

/// Polls `frontend` forever. Reports `None` while there is no value.
pub(super) async fn follow(
    frontend: FrontendAddress,
    share: TargetPermit,
    mut sink: PollSink<Option<u64>>,
) {
    let mut client = FrontendClient::new(frontend);
    loop {
        sink.report(query(&mut client, &share).await, false);
        sink.pause(INTERVAL, INTERVAL).await;
    }
}

async fn query(client: &mut FrontendClient, share: &TargetPermit) -> Option<u64> {
    let _permit = share.query_permit().await;
    let query = FrontendQuery {
        path: "/metrics",
        body: None,
        most: MAX_LIST,
    };
    let answer = client.send(&query, TIMEOUT, share).await;
    let answer = answer
        .inspect_err(|error| tracing::debug!(%error, frontend = %client.frontend, "a worker does not report its load"))
        .ok()?;
    let body = std::str::from_utf8(&answer.body).ok()?;
    load(body).filter(|_| answer.status == StatusCode::OK)
}

/// Parses the number of requests from the Prometheus text format, version 0.0.4. `None` if there is no known gauge.
fn load(text: &str) -> Option<u64> {
    let sum = |gauges: &&[&str]| {
        let samples = text.lines().filter_map(|line| sample(line, gauges));
        samples.fold(None, |sum: Option<u64>, one| {
            Some(sum.unwrap_or(0).saturating_add(one))
        })
    };
    GAUGES.iter().find_map(sum)
}

/// The value of a line that is a sample of one of these gauges.
fn sample(line: &str, gauges: &[&str]) -> Option<u64> {
    let rest = gauges.iter().find_map(|gauge| line.strip_prefix(gauge))?;
    let value = match rest.strip_prefix('{') {
        // The value of a label may contain any character.
        Some(labels) => labels.rsplit_once('}')?.1,
        None => rest.strip_prefix(' ')?,
    };
    let value: f64 = value.split_whitespace().next()?.parse().ok()?;
    (0.0..=u64::MAX as f64)
        .contains(&value)
        .then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_reports_its_requests_in_its_own_way() {
        let dynamo = r#"# HELP dynamo_component_inflight_requests Requests
dynamo_component_inflight_requests{dynamo_component="backend",dynamo_endpoint="generate"} 15
dynamo_component_inflight_requests{dynamo_endpoint="a } 7"} 2
dynamo_component_inflight_requests_total 99
vllm:num_requests_running{model_name="m"} 15.0
"#;
        assert_eq!(load(dynamo), Some(17));
        let vllm = "vllm:num_requests_running{model_name=\"m\"} 3.0 1700000000\nvllm:num_requests_waiting 2.0\n";
        assert_eq!(load(vllm), Some(5));
        assert_eq!(load("sglang:num_running_reqs{a=\"b\"} 0"), Some(0));
    }

    #[test]
    fn an_invalid_number_of_requests_is_unknown() {
        for text in [
            "",
            "up 1",
            "vllm:num_requests_running NaN",
            "vllm:num_requests_running -1",
            "vllm:num_requests_running +Inf",
            "vllm:num_requests_running{a=\"b\" 1",
            "vllm:num_requests_running",
            "vllm:num_requests_runningmore 1",
        ] {
            assert_eq!(load(text), None, "{text}");
        }
    }
}
