//! The proxy of the demo: a real one, in this process, between the demo's two model servers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Error, Handle, build};
use crate::config::{Config, PlanSource};
use crate::demo::{self, ModelServer, Options, Percentiles, ProxyControl, Sample, Summary};
use crate::lifecycle::ProcessPhase;
use crate::resource::{ContinuationMode, DynamoUpdateConfigSpec, Identity, Plan, TargetAddress};
use crate::split::Generation;
use crate::sse::Outcome;
use crate::telemetry::latency::Sketch;

/// The window of the demo's observed split, in seconds: a minute would hide the rollout.
const RECENT: u64 = 3;

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("cannot run the proxy of the demo")]
    Proxy(#[from] Error),
    #[error("cannot run the demo")]
    Demo(#[from] demo::Error),
    #[error("cannot start a thread for the demo")]
    Thread(#[source] std::io::Error),
}

/// The proxy of the demo.
struct Running {
    address: SocketAddr,
    new: SocketAddr,
    continuation: bool,
    handle: Handle,
}

/// Runs the demo to its end.
///
/// # Errors
/// What could not be started or shown.
pub fn run(options: Options) -> Result<Summary, DemoError> {
    let old = ModelServer::start(Generation::Old)?;
    let new = ModelServer::start(Generation::New)?;
    let continuation = options.continuation;
    let bound = build(config(old.address(), new.address(), continuation))?;
    let page = format!("http://{}/", bound.admin());
    let control = Running {
        address: bound.listens(),
        new: new.address(),
        continuation,
        handle: bound.handle(),
    };
    let lifecycle = control.handle.lifecycle.clone();
    let proxy = std::thread::Builder::new()
        .name("proxy".into())
        .spawn(move || bound.run())
        .map_err(DemoError::Thread)?;
    let summary = super::runtime()?.block_on(demo::run(options, old, new, control, Some(page)));
    lifecycle.advance(ProcessPhase::Ending);
    let _ = proxy.join();
    Ok(summary?)
}

fn spec(new: SocketAddr, percent: u8, continuation: bool) -> DynamoUpdateConfigSpec {
    let mut spec = DynamoUpdateConfigSpec::to(new.to_string());
    spec.traffic_split_percent = Some(percent);
    if continuation {
        spec.failover.continuation.mode = ContinuationMode::AnyGeneration;
        // The kill breaks half of all streams at the same time.
        spec.failover.retry_budget_percent = 100;
    }
    spec
}

fn config(old: SocketAddr, new: SocketAddr, continuation: bool) -> Config {
    let old: TargetAddress = old
        .to_string()
        .parse()
        .expect("a socket address is a target");
    Config {
        old: vec![old],
        plan: PlanSource::Flags(Box::new(spec(new, 0, continuation))),
        drain: Duration::ZERO,
        ..Config::default()
    }
}

impl ProxyControl for Running {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn set_percent(&self, percent: u8) {
        let spec = spec(self.new, percent.min(100), self.continuation);
        let plan = Plan::of(Identity::default(), &spec).expect("the first such plan was good");
        self.handle.set_plan(plan, "the demo");
    }

    fn sample(&self) -> Sample {
        let metrics = &self.handle.context.metrics;
        let snapshot = self.handle.context.snapshots.load();
        let [last_minute, _] = metrics.recent(Instant::now());
        let percentiles = |sketch: &Sketch| {
            let at = |q| sketch.reliable_quantile(q).map(Duration::from_secs_f64);
            Percentiles {
                p50: at(0.5),
                p95: at(0.95),
                p99: at(0.99),
                count: sketch.count(),
            }
        };
        let each = Generation::ALL;
        Sample {
            wanted: snapshot.plan.weights.share_of_new(),
            observed: metrics
                .window
                .share_over(metrics.second(Instant::now()), RECENT),
            open: each.map(|generation| metrics.open_streams(generation)),
            first_event: last_minute
                .generations
                .each_ref()
                .map(|generation| percentiles(&generation.first_event)),
            gap: last_minute
                .generations
                .each_ref()
                .map(|generation| percentiles(&generation.gap)),
            outcomes: each.map(|generation| {
                Outcome::ALL.map(|outcome| metrics.outcomes(generation, outcome))
            }),
            recovered: metrics.recovered_total(),
            continued: metrics.continued_by_cause().map(|(_, count)| count).sum(),
            epoch: snapshot.epoch,
        }
    }
}
