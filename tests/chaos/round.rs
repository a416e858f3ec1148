//! One round: a proxy, its servers and plan, and several waves of clients. After each wave everything must become quiet, and
//! the invariants must hold.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::client::WaveContext;
use crate::draw::Draw;
use crate::invariants::counts::{self, Line};
use crate::invariants::process::{Resources, descriptors};
use crate::invariants::{self, WaveConditions};
use crate::ledger::{Ledger, Records};
use crate::patience::patience;
use crate::plan;
use crate::server::{Server, ServerContext};
use crate::support::tls::Authority;
use crate::support::{PlanFile, Proxy};
use crate::wire::Id;

/// Clients per wave.
const CLIENTS: usize = 24;
/// Servers of both generations.
const SERVERS: usize = 4;
/// How long it may take until everything is quiet, in seconds.
const QUIET: u64 = 40;
/// `--drain`, and the extra time that a busy machine may need, in seconds.
const DRAIN: Duration = Duration::from_secs(2);
const DRAIN_SLACK: u64 = 3;

/// The result of a round.
#[derive(Default)]
pub struct Report {
    pub exchanges: usize,
    pub visits: usize,
    pub whole: usize,
    /// The violations, each with everything known about it.
    pub problems: Vec<String>,
}

/// In how many of 100 rounds the servers use HTTP/2: `CHAOS_HTTP2`, 40 by default.
fn http2_percent() -> usize {
    let given = std::env::var("CHAOS_HTTP2").ok();
    given.map_or(40, |text| text.parse().expect("CHAOS_HTTP2 is a number"))
}

/// The program to test: the release build, if one is given.
fn program() -> PathBuf {
    let named = std::env::var_os("CROSSFADE_BIN");
    named
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_crossfade").into())
        .into()
}

struct Round {
    seed: u64,
    context: Arc<ServerContext>,
    servers: Vec<Server>,
    plan: PlanFile,
    proxy: Proxy,
    /// Present if clients use TLS.
    tls: Option<[Arc<rustls::ClientConfig>; 2]>,
    /// Whether the plan in force allows retries.
    failover: bool,
    report: Report,
}

/// Runs the round of this seed.
pub async fn run(seed: u64) -> Report {
    let mut draw = Draw::of(&[seed, 0]);
    let ledger = Ledger::default();
    let threads = draw.within(1..=2).to_string();
    let waves = draw.within(2..=3);
    let http2 = draw.percent(http2_percent());
    let authority = draw.percent(30).then(Authority::new);
    let context = Arc::new(ServerContext {
        seed,
        http2,
        ledger,
    });
    let mut servers = Vec::new();
    for number in 0..SERVERS {
        servers.push(Server::start(number, context.clone()).await);
    }
    let new: Vec<_> = servers[SERVERS / 2..].iter().collect();
    let (first, failover) = plan::text(seed, 0, &new);
    let plan = PlanFile::new(&first);
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let file = plan.as_str();
    let drain = DRAIN.as_secs().to_string();
    let mut args = vec![
        "--old",
        &urls[0],
        "--old",
        &urls[1],
        "--plan",
        &file,
        "--threads",
        &threads,
        "--drain",
        &drain,
    ];
    if http2 {
        args.extend(["--upstream-protocol", "http2"]);
    }
    let files = authority.as_ref().map(|authority| authority.issue("proxy"));
    if let Some(files) = &files {
        args.extend(["--tls-cert", files.cert(), "--tls-key", files.key()]);
    }
    let tls = authority
        .as_ref()
        .map(|authority| ["http/1.1", "h2"].map(|protocol| authority.client(&[protocol], None)));
    let proxy = Proxy::start_of(&program(), &args, &[]).await;
    let mut round = Round {
        seed,
        context,
        servers,
        plan,
        proxy,
        tls,
        failover,
        report: Report::default(),
    };
    round.waves(waves).await;
    if round.report.problems.is_empty() {
        round.drain(waves + 1).await;
    }
    round.report
}

impl Round {
    async fn waves(&mut self, waves: usize) {
        let empty = Resources::at_first_by(&self.proxy).await;
        let mut warm = None;
        for wave in 0..=waves {
            let (over, is_over) = watch::channel(false);
            let mut clients = self.clients(wave, &is_over);
            let time = plan::wave_time(self.seed, wave);
            let stop = async {
                sleep(time).await;
                over.send_replace(true);
            };
            let mut failover = self.failover;
            // The first wave is a warm-up.
            if wave == 0 {
                stop.await;
            } else {
                let disturb =
                    plan::disturb(self.seed, wave, &self.plan, &self.servers, is_over.clone());
                let (plans, ()) = tokio::join!(disturb, stop);
                failover |= plans.contains(&true);
                self.failover = plans.last().copied().unwrap_or(self.failover);
            }
            while let Some(ended) = clients.join_next().await {
                ended.expect("a client does not panic");
            }
            let before = Resources {
                memory: warm.map_or(u64::MAX >> 1, |warm: Resources| warm.memory),
                ..empty
            };
            self.quiet(&before).await;
            let conditions = WaveConditions {
                http2: self.context.http2,
                drains: false,
                failover,
            };
            let records = self.context.ledger.close();
            self.check(&records, conditions);
            if !self.report.problems.is_empty() {
                return;
            }
            if wave == 1 {
                warm = Some(Resources::by(&self.proxy));
            }
        }
    }

    fn clients(&self, wave: usize, over: &watch::Receiver<bool>) -> JoinSet<()> {
        let context = WaveContext {
            seed: self.seed,
            wave,
            address: self.proxy.address,
            tls: self.tls.clone(),
            ledger: self.context.ledger.clone(),
            over: over.clone(),
        };
        (0..CLIENTS)
            .map(|number| context.clone().client(number))
            .collect()
    }

    /// Waits until nothing is open and the counts add up.
    async fn quiet(&mut self, before: &Resources) {
        for server in &self.servers {
            server.stop();
            server.resume();
        }
        let deadline = Instant::now() + patience(QUIET);
        loop {
            let metrics = self.proxy.metrics().await;
            let lines: Vec<_> = self.proxy.access().iter().filter_map(Line::of).collect();
            let problem = match counts::sums(&metrics, &lines) {
                None => Resources::by(&self.proxy).beyond(before),
                problem => problem,
            };
            let Some(problem) = problem else { return };
            if Instant::now() > deadline {
                let open = descriptors(&self.proxy);
                self.report
                    .problems
                    .push(format!("{problem}; open are {open:?}"));
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The access lines of each exchange so far.
    fn lines(&self) -> BTreeMap<Id, Vec<Line>> {
        let mut lines: BTreeMap<Id, Vec<Line>> = BTreeMap::new();
        for fields in self.proxy.access() {
            if let (Some(id), Some(line)) = (Line::exchange(&fields), Line::of(&fields)) {
                lines.entry(id).or_default().push(line);
            }
        }
        lines
    }

    fn check(&mut self, records: &Records, conditions: WaveConditions) {
        let lines = self.lines();
        let of = |id: Id| lines.get(&id).map_or(&[][..], Vec::as_slice);
        let mut violations = records.violations.clone();
        for (id, exchange) in &records.exchanges {
            violations.extend(invariants::check(
                *id,
                records,
                exchange,
                of(*id),
                conditions,
            ));
            self.report.visits += exchange.visits.len();
            self.report.whole += usize::from(exchange.seen.is_whole());
        }
        self.report.exchanges += records.exchanges.len();
        let mut by_exchange: BTreeMap<Option<Id>, Vec<String>> = BTreeMap::new();
        for violation in violations {
            by_exchange
                .entry(violation.id)
                .or_default()
                .push(violation.what);
        }
        for (id, wrong) in by_exchange {
            let known = id.and_then(|id| Some((id, records.exchanges.get(&id)?)));
            let trace = known.map(|(id, exchange)| invariants::trace(id, exchange, of(id)));
            let text = format!("{}\n{}", wrong.join("; "), trace.unwrap_or_default());
            self.report.problems.push(text);
        }
    }

    /// Stops the process while clients continue.
    async fn drain(&mut self, wave: usize) {
        let (over, is_over) = watch::channel(false);
        let mut clients = self.clients(wave, &is_over);
        // Drains at a random moment of the wave, as the seed says.
        sleep(Draw::of(&[self.seed, 7]).millis(50..=500)).await;
        self.proxy.terminate();
        let began = Instant::now();
        while self.proxy.ended().is_none() {
            if began.elapsed() > DRAIN + patience(DRAIN_SLACK) {
                let problem = format!("the drain of {DRAIN:?} has not ended");
                self.report.problems.push(problem);
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        over.send_replace(true);
        while let Some(ended) = clients.join_next().await {
            ended.expect("a client does not panic");
        }
        let conditions = WaveConditions {
            http2: self.context.http2,
            drains: true,
            failover: true,
        };
        let records = self.context.ledger.close();
        self.check(&records, conditions);
    }
}
