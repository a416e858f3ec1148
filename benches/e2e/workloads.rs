//! The workloads, and one round of each against one proxy.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use super::client::Meters;
use super::engine::{Engine, Opener, Settings, Way};
use super::machine::{self, Census, Others};
use super::measure::{count, median, nanos, now};
use super::metric::Metric;
use super::payload::RequestForm;
use super::peers::{Front, Peer, Proxy, Start};
use super::plan::Plan;

/// The core of clients and model servers, and that of the proxy.
pub const LOAD_CORE: usize = 0;
pub const PROXY_CORE: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Workload {
    Tokens,
    Flood1,
    Flood16,
    Flood1Behind,
    Flood16Behind,
    Short,
    ShortRate,
    Idle,
    Connect,
    Prompt,
    #[value(name = "body-4k")]
    Body4K,
    #[value(name = "body-100k")]
    Body100K,
    #[value(name = "body-1m")]
    Body1M,
    #[value(name = "body-4m")]
    Body4M,
    TokensH2,
    TokensTls,
    TokensH2Tls,
    TwoThreads,
    Plan,
}

impl Workload {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Flood1 => "flood-1",
            Self::Flood16 => "flood-16",
            Self::Flood1Behind => "flood-1-behind",
            Self::Flood16Behind => "flood-16-behind",
            Self::Short => "short",
            Self::ShortRate => "short-rate",
            Self::Idle => "idle",
            Self::Connect => "connect",
            Self::Prompt => "prompt",
            Self::Body4K => "body-4k",
            Self::Body100K => "body-100k",
            Self::Body1M => "body-1m",
            Self::Body4M => "body-4m",
            Self::TokensH2 => "tokens-h2",
            Self::TokensTls => "tokens-tls",
            Self::TokensH2Tls => "tokens-h2-tls",
            Self::TwoThreads => "two-threads",
            Self::Plan => "plan",
        }
    }

    pub fn about(self) -> &'static str {
        match self {
            Self::Tokens => "500 streams × 50 events/s of 250 bytes",
            Self::Flood1 => "64 streams as fast as they go, 1 event per write",
            Self::Flood16 => "64 streams as fast as they go, 16 events per write",
            Self::Flood1Behind => "flood-1, beside a busy loop on the proxy's core",
            Self::Flood16Behind => "flood-16, beside a busy loop on the proxy's core",
            Self::Short => "1 KiB in, 1 KiB out, 64 connections, each sends the next at once",
            Self::ShortRate => "1 KiB in, 1 KiB out, 5,000 per second over 64 connections",
            Self::Idle => "9,000 streams with an event each 10 s",
            Self::Connect => "500 new connections per second, a stream of 5 events each",
            Self::Prompt => "20 prompts of 400 KiB per second beside 100 streams × 50 events/s",
            Self::Body4K => "4 KiB in, 1 KiB out, 2,000 per second over 64 connections",
            Self::Body100K => "100 KiB in, 1 KiB out, 500 per second over 32 connections",
            Self::Body1M => "1 MiB in, 1 KiB out, 100 per second over 16 connections",
            Self::Body4M => "4 MiB in, 1 KiB out, 25 per second over 8 connections",
            Self::TokensH2 => "tokens over HTTP/2, 10 connections of 50 streams",
            Self::TokensTls => "tokens over TLS 1.3",
            Self::TokensH2Tls => "tokens over HTTP/2 and TLS 1.3",
            Self::TwoThreads => {
                "tokens, 2 threads on 2 cores, of which one is shared with the load"
            }
            Self::Plan => "tokens, the plan is changed twice a second",
        }
    }

    pub fn metrics(self) -> &'static [Metric] {
        use Metric as M;
        match self {
            Self::Tokens | Self::TokensH2 | Self::TokensTls | Self::TokensH2Tls => &[
                M::CpuEvent,
                M::LatencyP50,
                M::LatencyP99,
                M::GapP99,
                M::Events,
            ],
            Self::Flood1
            | Self::Flood16
            | Self::Flood1Behind
            | Self::Flood16Behind
            | Self::TwoThreads => &[M::CpuEvent, M::Events],
            Self::Short => &[M::PerCore, M::Rate],
            Self::ShortRate => &[M::CpuRequest, M::ReplyP50, M::ReplyP99, M::Rate],
            Self::Body4K | Self::Body100K | Self::Body1M | Self::Body4M => {
                &[M::CpuRequest, M::ReplyP50, M::ReplyP99, M::Rate]
            }
            Self::Idle => &[M::Memory, M::CpuEvent, M::LatencyP50],
            Self::Connect => &[M::FirstP50, M::FirstP99, M::CpuRequest],
            Self::Prompt => &[
                M::GapP99,
                M::LatencyP50,
                M::LatencyP99,
                M::ReplyP50,
                M::CpuEvent,
            ],
            Self::Plan => &[M::InForceP50, M::InForceMax, M::GapP99, M::GapP99Changing],
        }
    }

    /// Is it for this peer?
    pub fn includes(self, peer: Peer) -> bool {
        match self {
            Self::Tokens => true,
            Self::TokensH2 | Self::Idle => peer != Peer::Direct,
            _ if peer == Peer::CrossfadeContinuing => false,
            Self::ShortRate | Self::Connect | Self::Prompt => true,
            Self::Plan => peer == Peer::Crossfade,
            _ => peer != Peer::Direct,
        }
    }

    fn front(self) -> Front {
        Front {
            tls: matches!(self, Self::TokensTls | Self::TokensH2Tls),
            http2: matches!(self, Self::TokensH2 | Self::TokensH2Tls),
        }
    }

    fn is_flood(self) -> bool {
        self == Self::Flood1 || self == Self::Flood16 || self.is_behind()
    }

    fn events_per_write(self) -> u64 {
        match self {
            Self::Flood16 | Self::Flood16Behind => 16,
            _ => 1,
        }
    }

    /// Does the proxy share its core, so that it lags behind the load side?
    fn is_behind(self) -> bool {
        matches!(self, Self::Flood1Behind | Self::Flood16Behind)
    }

    /// What each request sends, the time between two, and the connections for them, where the size of a body is measured.
    fn bodies(self) -> Option<(RequestForm, Duration, usize)> {
        match self {
            Self::Body4K => Some((RequestForm::Body4K, Duration::from_micros(500), 64)),
            Self::Body100K => Some((RequestForm::Body100K, Duration::from_millis(2), 32)),
            Self::Body1M => Some((RequestForm::Body1M, Duration::from_millis(10), 16)),
            Self::Body4M => Some((RequestForm::Body4M, Duration::from_millis(40), 8)),
            _ => None,
        }
    }

    /// Paced streams and the time between two events of one.
    fn streams(self) -> (u64, Duration) {
        match self {
            _ if self.is_flood() => (64, Duration::from_millis(20)),
            _ if self.bodies().is_some() => (0, Duration::from_millis(20)),
            Self::Short | Self::ShortRate => (0, Duration::from_millis(20)),
            Self::Idle => (9000, Duration::from_secs(10)),
            Self::Connect => (u64::MAX, Duration::from_millis(20)),
            Self::Prompt => (100, Duration::from_millis(20)),
            _ => (500, Duration::from_millis(20)),
        }
    }
}

/// What all rounds share.
pub struct Context {
    pub crossfade: PathBuf,
    pub directory: PathBuf,
    pub certificate: [PathBuf; 3],
    /// For HTTP/1.1 and for HTTP/2.
    pub tls: [Arc<ClientConfig>; 2],
    pub window: Duration,
    pub spin: bool,
    pub nagle: bool,
}

pub struct Round {
    pub values: Vec<(Metric, f64)>,
    pub others: Others,
    /// The share of requests that went to the new generation.
    pub share: f64,
}

/// One round; `number` makes its addresses differ from those of the last ones.
///
/// # Errors
/// When a byte was wrong, a stream was cut, or the proxy did not start.
pub fn round(
    workload: Workload,
    peer: Peer,
    number: usize,
    context: &Context,
) -> Result<Round, String> {
    let front = workload.front();
    let (streams, interval) = workload.streams();
    let octet = u8::try_from(number % 200 + 2).expect("below 202");
    let mut engine = Engine::new(Settings {
        interval: nanos(interval),
        events: if workload == Workload::Connect {
            5
        } else {
            u64::MAX
        },
        burst: workload.events_per_write(),
        closed_loop: workload == Workload::Short,
        spin: context.spin,
        nagle: context.nagle,
        source: Ipv4Addr::new(127, 0, 1, octet),
        tls: front
            .tls
            .then(|| context.tls[usize::from(front.http2)].clone()),
        http2: front.http2,
    })
    .map_err(|error| error.to_string())?;
    let plan = Plan::new(&context.directory, &engine);
    let proxy =
        start(workload, peer, context, &engine, &plan).map_err(|error| error.to_string())?;
    engine.target(proxy.address);
    let proxies = proxy.id().map(machine::family).unwrap_or_default();
    let before = machine::resident(&proxies);

    load(workload, &mut engine, streams, interval);
    warm(&mut engine, streams, interval)?;
    let memory = machine::resident(&proxies) - before;
    let rival = workload.is_behind().then(|| machine::Rival::on(PROXY_CORE));

    let mut own = proxies.clone();
    own.insert(std::process::id());
    let census = Census::take();
    let (cpu, begun) = (machine::cpu(&proxies), now());
    engine.meters.on = true;
    engine.run(begun + nanos(context.window), |_| false);
    engine.meters.on = false;
    let seconds = seconds(now() - begun);
    let cpu = machine::cpu(&proxies) - cpu;
    let others = census.since(&own);
    drop(rival);
    let mut measured = Measured {
        meters: std::mem::replace(&mut engine.meters, Meters::new()),
        cpu,
        seconds,
        memory: memory / count(streams),
        changing: 0.0,
        in_force: Vec::new(),
    };
    if workload == Workload::Plan {
        measured.in_force = plan.changes(&mut engine, context.window)?;
        measured.changing = engine.meters.gap.quantile(0.99);
    }
    finish(&mut engine)?;
    let values = workload.metrics().iter();
    Ok(Round {
        values: values
            .map(|metric| (*metric, measured.value(*metric)))
            .collect(),
        others,
        share: count(engine.served[1]) / count(engine.served[0] + engine.served[1]),
    })
}

fn start(
    workload: Workload,
    peer: Peer,
    context: &Context,
    engine: &Engine,
    plan: &Plan,
) -> std::io::Result<Proxy> {
    let two = workload == Workload::TwoThreads;
    let program = peer.program(&context.crossfade).expect("checked before");
    let [certificate, key, both] = &context.certificate;
    Proxy::start(
        peer,
        &Start {
            program: &program,
            upstreams: engine.upstreams(),
            front: workload.front(),
            certificate: [certificate, key, both].map(PathBuf::as_path),
            directory: &context.directory,
            threads: if two { 2 } else { 1 },
            cores: if two {
                &[LOAD_CORE, PROXY_CORE]
            } else {
                &[PROXY_CORE]
            },
            plan: (workload == Workload::Plan).then_some(&plan.path),
        },
    )
}

/// Tells the engine what to send.
fn load(workload: Workload, engine: &mut Engine, streams: u64, interval: Duration) {
    let opener = |ask, way, every: Duration, left| Opener {
        ask,
        way,
        next: now() + 20_000_000,
        every: nanos(every),
        left,
    };
    let keep = Way::NewConnection { keep: true };
    // The streams' beginnings are so apart that their events come evenly.
    let apart = match workload {
        Workload::Idle => interval / 9000,
        Workload::Prompt => interval * 11 / 100,
        _ => interval * 51 / 500,
    };
    if let Some((ask, every, connections)) = workload.bodies() {
        engine.connect_idle(connections);
        return engine.open(opener(ask, Way::Pooled, every, u64::MAX));
    }
    match workload {
        _ if workload.is_flood() => {
            engine.open(opener(
                RequestForm::Flood,
                keep,
                Duration::from_millis(1),
                streams,
            ));
        }
        Workload::Short => {
            engine.connect_idle(64);
            engine.start_loop();
        }
        Workload::ShortRate => {
            engine.connect_idle(64);
            let every = Duration::from_micros(200);
            engine.open(opener(RequestForm::Short, Way::Pooled, every, u64::MAX));
        }
        Workload::Connect => {
            let way = Way::NewConnection { keep: false };
            engine.open(opener(
                RequestForm::Paced,
                way,
                Duration::from_millis(2),
                u64::MAX,
            ));
        }
        Workload::TokensH2 | Workload::TokensH2Tls => {
            engine.connect_idle(10);
            engine.open(opener(RequestForm::Paced, Way::Shared, apart, streams));
        }
        _ => engine.open(opener(RequestForm::Paced, keep, apart, streams)),
    }
    if workload == Workload::Prompt {
        engine.connect_idle(1);
        // Not in step with the events of any stream.
        engine.open(opener(
            RequestForm::Big,
            Way::Pooled,
            Duration::from_micros(50_130),
            u64::MAX,
        ));
    }
    if workload == Workload::Plan {
        engine.connect_idle(4);
        engine.open(opener(
            RequestForm::Short,
            Way::Pooled,
            Duration::from_millis(1),
            u64::MAX,
        ));
    }
}

/// Works until all streams are there and the first are through with their beginnings.
fn warm(engine: &mut Engine, streams: u64, interval: Duration) -> Result<(), String> {
    let second = nanos(Duration::from_secs(1));
    if streams < u64::MAX {
        let limit = now() + 10 * second + nanos(interval) * 2;
        engine.run(limit, |engine| engine.streaming() >= streams);
        if engine.streaming() < streams {
            let found = engine.streaming();
            return Err(format!("{found} streams of {streams}: {:?}", engine.errors));
        }
    }
    engine.run(now() + second * 7 / 10, |_| false);
    Ok(())
}

/// Ends all streams and sees them end.
fn finish(engine: &mut Engine) -> Result<(), String> {
    engine.stop();
    engine.run(now() + nanos(Duration::from_secs(10)), |engine| {
        engine.open_tasks() == 0
    });
    if let Some(error) = engine.errors.first() {
        let count = engine.errors.len();
        return Err(format!(
            "{count} errors, the first: {}",
            &error[..error.len().min(400)]
        ));
    }
    match engine.open_tasks() {
        0 => Ok(()),
        open => Err(format!("{open} responses never ended")),
    }
}

struct Measured {
    meters: Meters,
    /// In nanoseconds.
    cpu: u64,
    seconds: f64,
    memory: f64,
    changing: f64,
    in_force: Vec<f64>,
}

impl Measured {
    fn value(&self, metric: Metric) -> f64 {
        let meters = &self.meters;
        let cpu = count(self.cpu) / 1000.0;
        match metric {
            Metric::CpuEvent => cpu / count(meters.events),
            Metric::CpuRequest => cpu / count(meters.ended),
            Metric::PerCore => count(meters.ended) / cpu * 1e6,
            Metric::Rate => count(meters.ended) / self.seconds,
            Metric::Events => count(meters.events) / self.seconds,
            Metric::LatencyP50 => meters.latency.quantile(0.5),
            Metric::LatencyP99 => meters.latency.quantile(0.99),
            Metric::GapP99 => meters.gap.quantile(0.99),
            Metric::ReplyP50 => meters.reply.quantile(0.5),
            Metric::ReplyP99 => meters.reply.quantile(0.99),
            Metric::FirstP50 => meters.first.quantile(0.5),
            Metric::FirstP99 => meters.first.quantile(0.99),
            Metric::Memory => self.memory,
            Metric::GapP99Changing => self.changing,
            Metric::InForceP50 => median(&self.in_force),
            Metric::InForceMax => self.in_force.iter().copied().fold(0.0, f64::max),
        }
    }
}

fn seconds(nanos: u64) -> f64 {
    count(nanos) / 1e9
}

/// Everything that may run in a round but the proxies: for a census before it.
pub fn ourselves() -> HashSet<u32> {
    HashSet::from([std::process::id()])
}
