//! What happened when: a worker's pod became ready or was lost, as a watch of the API server tells it, and a proxy put another
//! split in force, as its own watch tells it.

use std::collections::HashMap;
use std::io::BufReader;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossfade::state_api::Client;
use serde_json::Value;
use tokio::time::Instant;

use crate::fixture::{Fixture, within_patience};

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

/// Written from its start until it is dropped, on threads of its own.
pub struct Chronicle {
    events: Events,
    proxies: Vec<SocketAddr>,
    watch: Child,
}

impl Chronicle {
    /// Of the workers of all generations, and of the sidecars that there are now; begun when it has heard of a worker that is
    /// ready, and of every sidecar.
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
        let told = watch.stdout.take().expect("it is piped");
        let noted = Arc::clone(&events);
        std::thread::spawn(move || {
            let mut ready = HashMap::new();
            let stream =
                serde_json::Deserializer::from_reader(BufReader::new(told)).into_iter::<Value>();
            for event in stream.map_while(Result::ok) {
                note_worker(&noted, &mut ready, &event);
            }
        });
        for proxy in proxies.clone() {
            let noted = Arc::clone(&events);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = { runtime }.enable_all().build().expect("a runtime");
                let _ = runtime.block_on(note_splits(&noted, proxy));
            });
        }
        let chronicle = Self {
            events,
            proxies,
            watch,
        };
        within_patience("news of all", async || chronicle.has_heard_of_all()).await;
        chronicle
    }

    fn has_heard_of_all(&self) -> bool {
        let events = self.events.lock().expect("nobody panics with it");
        let has = |is_it: &dyn Fn(&Event) -> bool| events.iter().any(|(_, event)| is_it(event));
        let told = |wanted: &SocketAddr| {
            has(&|event| matches!(event, Event::Split { proxy, .. } if proxy == wanted))
        };
        has(&|event| matches!(event, Event::Worker { ready: true }))
            && self.proxies.iter().all(told)
    }

    /// From the first news of a worker after `since` to the moment when the last proxy had this split in force, which may be
    /// heard of a little later than of what follows from it; none where that was not seen.
    pub async fn took(&self, since: Instant, ready: bool, weights: [u32; 2]) -> Option<Duration> {
        for _ in 0..300 {
            let took = self.found(since, ready, weights);
            if took.is_some() {
                return took;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        None
    }

    fn found(&self, since: Instant, ready: bool, weights: [u32; 2]) -> Option<Duration> {
        let events = self.events.lock().expect("nobody panics with it");
        let later = || events.iter().filter(|(at, _)| *at >= since);
        let news = later().find_map(|(at, event)| {
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
        Some(last.saturating_duration_since(news))
    }
}

impl Drop for Chronicle {
    fn drop(&mut self) {
        let _ = self.watch.kill();
        let _ = self.watch.wait();
    }
}

fn note(events: &Events, event: Event) {
    let mut events = events.lock().expect("nobody panics with it");
    events.push((Instant::now(), event));
}

fn note_worker(events: &Events, known: &mut HashMap<String, bool>, event: &Value) {
    let pod = &event["object"];
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let is_ready = conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
        && pod["metadata"]["deletionTimestamp"].is_null()
        && event["type"] != "DELETED";
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let was = known.insert(name.to_owned(), is_ready).unwrap_or(false);
    if is_ready != was {
        note(events, Event::Worker { ready: is_ready });
    }
}

async fn note_splits(
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
            note(events, Event::Split { proxy, weights });
        }
    }
    Ok(())
}

/// How many, the median, and what 99 of 100 do not exceed.
pub fn told(times: &[Duration]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort();
    let at = |percent: usize| sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)];
    match sorted.len() {
        0 => "none".to_owned(),
        count => format!("{count}: p50 {:?}, p99 {:?}", at(50), at(99)),
    }
}
