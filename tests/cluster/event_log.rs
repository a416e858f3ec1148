//! Records when a worker became ready or was lost (from a watch on the API server), and when each proxy applied a new split (from
//! a watch on the proxy).

use std::collections::HashMap;
use std::io::BufReader;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossfade::state_api::Client;
use serde_json::Value;
use tokio::time::Instant;

use crate::fixture::{Fixture, eventually};

#[derive(Clone, Debug)]
enum Event {
    Worker {
        ready: bool,
    },
    Split {
        proxy: SocketAddr,
        weights: [u32; 2],
    },
}

type Events = Arc<Mutex<Vec<(Instant, Event)>>>;

/// Records events on its own threads until it is dropped.
pub struct EventLog {
    events: Events,
    proxies: Vec<SocketAddr>,
    watch: Child,
}

impl EventLog {
    /// Follows the workers of all generations, and the current sidecars. Returns once it has seen a ready worker and the split of
    /// every sidecar.
    pub async fn start(fixture: &Fixture) -> Self {
        let events = Events::default();
        let proxies = fixture.sidecars();
        let mut command = match fixture.cluster.kubeconfig() {
            Some(kubeconfig) => {
                let mut command = Command::new(kubeconfig.with_file_name("bin/kubectl"));
                command.env("KUBECONFIG", kubeconfig);
                command
            }
            None => Command::new("kubectl"),
        };
        let command = command
            .args([
                "get",
                "pods",
                "-l",
                "nvidia.com/dynamo-component-type=worker",
            ])
            .args(["--watch", "--output-watch-events", "-o", "json"])
            .stdout(Stdio::piped());
        let mut watch = command.spawn().expect("kubectl starts");
        let output = watch.stdout.take().expect("it is piped");
        let log = Arc::clone(&events);
        std::thread::spawn(move || {
            let mut ready = HashMap::new();
            let stream =
                serde_json::Deserializer::from_reader(BufReader::new(output)).into_iter::<Value>();
            for event in stream.map_while(Result::ok) {
                record_worker(&log, &mut ready, &event);
            }
        });
        for proxy in proxies.clone() {
            let log = Arc::clone(&events);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = { runtime }.enable_all().build().expect("a runtime");
                let _ = runtime.block_on(record_splits(&log, proxy));
            });
        }
        let event_log = Self {
            events,
            proxies,
            watch,
        };
        eventually("an event of every source", async || {
            event_log.has_all_sources()
        })
        .await;
        event_log
    }

    fn has_all_sources(&self) -> bool {
        let events = self
            .events
            .lock()
            .expect("no thread panics while it holds the lock");
        let has = |matches: &dyn Fn(&Event) -> bool| events.iter().any(|(_, event)| matches(event));
        let has_split_of = |wanted: &SocketAddr| {
            has(&|event| matches!(event, Event::Split { proxy, .. } if proxy == wanted))
        };
        has(&|event| matches!(event, Event::Worker { ready: true }))
            && self.proxies.iter().all(has_split_of)
    }

    /// The time from the first change of a worker after `since` until the last proxy applied this split. An event may be recorded
    /// a little later than its effects are visible, so this waits for 30 s before it returns `None`.
    pub async fn time_to_apply(
        &self,
        since: Instant,
        ready: bool,
        weights: [u32; 2],
    ) -> Option<Duration> {
        for _ in 0..300 {
            let time = self.recorded_time(since, ready, weights);
            if time.is_some() {
                return time;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        None
    }

    fn recorded_time(&self, since: Instant, ready: bool, weights: [u32; 2]) -> Option<Duration> {
        let events = self
            .events
            .lock()
            .expect("no thread panics while it holds the lock");
        let later = || events.iter().filter(|(at, _)| *at >= since);
        let changed = later().find_map(|(at, event)| {
            matches!(event, Event::Worker { ready: now } if *now == ready).then_some(*at)
        })?;
        let applied = self.proxies.iter().map(|wanted| {
            later().find_map(|(at, event)| match event {
                Event::Split {
                    proxy,
                    weights: now,
                } if proxy == wanted && *now == weights => Some(*at),
                _ => None,
            })
        });
        let last = applied.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        Some(last.saturating_duration_since(changed))
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        let _ = self.watch.kill();
        let _ = self.watch.wait();
    }
}

fn record(events: &Events, event: Event) {
    let mut events = events
        .lock()
        .expect("no thread panics while it holds the lock");
    events.push((Instant::now(), event));
}

fn record_worker(events: &Events, known: &mut HashMap<String, bool>, event: &Value) {
    let pod = &event["object"];
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let is_ready = conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
        && pod["metadata"]["deletionTimestamp"].is_null()
        && event["type"] != "DELETED";
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let was = known.insert(name.to_owned(), is_ready).unwrap_or(false);
    if is_ready != was {
        record(events, Event::Worker { ready: is_ready });
    }
}

async fn record_splits(
    events: &Events,
    proxy: SocketAddr,
) -> Result<(), crossfade::state_api::Error> {
    let client = Client::connect(&proxy.to_string(), Duration::from_secs(10)).await?;
    let mut states = client.watch(Duration::from_secs(1)).await?;
    let mut last = None;
    while let Some(state) = states.next().await? {
        let weights = state.plan.and_then(|plan| plan.weights);
        let Some(weights) = weights.map(|weights| [weights.old, weights.new]) else {
            continue;
        };
        if last.replace(weights) != Some(weights) {
            record(events, Event::Split { proxy, weights });
        }
    }
    Ok(())
}

/// The count, the median and the 99th percentile.
pub fn percentiles(times: &[Duration]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort();
    let at = |percent: usize| sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)];
    match sorted.len() {
        0 => "none".to_owned(),
        count => format!("{count}: p50 {:?}, p99 {:?}", at(50), at(99)),
    }
}
