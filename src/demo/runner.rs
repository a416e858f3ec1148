//! Runs the script: kills and restarts model servers, sets the split, and collects the data of each frame.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::frame::{ClientTotals, DemoFrame, HistoryPoint};
use super::load::{Counts, Load};
use super::script::{Action, Script};
use super::summary::{RecoveryCounts, Summary};
use super::{Error, ModelServer, Options, ProxyControl};

/// Time between two frames.
const TICK: Duration = Duration::from_millis(50);
/// Maximum time that the last streams may take after the script.
const LAST_STREAMS: Duration = Duration::from_secs(10);

/// The running demo.
pub(super) struct Runner<S> {
    /// In the order of the generations.
    servers: [ModelServer; 2],
    proxy: S,
    address: SocketAddr,
    recovered_before: u64,
    continued_before: u64,
    page: Option<String>,
    streams: usize,
    continuation: bool,
    load: Load,
    script: Script,
    outages: Vec<(Duration, Duration)>,
    performed: usize,
    /// The time up to which the steps have been performed.
    performed_until: Duration,
    begun: Instant,
    ticks: Interval,
    history: Vec<HistoryPoint>,
}

impl<S: ProxyControl> Runner<S> {
    /// Starts the clients and the clock.
    pub(super) fn begin(
        options: &Options,
        servers: [ModelServer; 2],
        proxy: S,
        page: Option<String>,
    ) -> Result<Self, Error> {
        let script = Script::new(options.seconds);
        let address = proxy.address();
        let load = Load::start(address, options.streams, script.tokens())?;
        let before = proxy.sample();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Ok(Self {
            servers,
            address,
            recovered_before: before.recovered,
            continued_before: before.continued,
            proxy,
            page,
            streams: options.streams,
            continuation: options.continuation,
            load,
            outages: script.outages().collect(),
            script,
            performed: 0,
            performed_until: Duration::ZERO,
            begun: Instant::now(),
            ticks,
            history: Vec::new(),
        })
    }

    /// Waits for the next frame and performs the actions due until then. `false` when the demo is over.
    pub(super) async fn next_tick(&mut self) -> Result<bool, Error> {
        self.ticks.tick().await;
        let elapsed = self.begun.elapsed();
        self.performed_until = elapsed;
        while let Some(step) = self
            .script
            .steps
            .get(self.performed)
            .filter(|step| step.at <= elapsed)
        {
            let action = step.action;
            self.performed += 1;
            self.perform(action)?;
        }
        if elapsed < self.script.length {
            return Ok(true);
        }
        self.load.stop();
        Ok(self.load.counts(Counts::open) > 0 && elapsed < self.script.length + LAST_STREAMS)
    }

    fn perform(&mut self, action: Action) -> Result<(), Error> {
        match action {
            Action::Split(percent) => {
                self.proxy.set_percent(percent);
                self.load.set_percent(percent);
            }
            Action::Kill(killed) => {
                self.load.set_outage(true);
                self.servers[killed.index()].kill();
            }
            Action::Restart(killed) => {
                self.servers[killed.index()].restart()?;
                self.load.set_outage(false);
            }
        }
        Ok(())
    }

    /// The current frame.
    pub(super) fn frame(&mut self) -> DemoFrame<'_> {
        let elapsed = self.begun.elapsed();
        let mut sample = self.proxy.sample();
        sample.recovered = sample.recovered.saturating_sub(self.recovered_before);
        sample.continued = sample.continued.saturating_sub(self.continued_before);
        if elapsed < self.script.length {
            self.history.push(HistoryPoint {
                at: elapsed,
                observed: sample.observed,
                open: sample.open,
            });
        }
        let begun = self.outages.partition_point(|(from, _)| *from <= elapsed);
        DemoFrame {
            address: self.address,
            streams: self.streams,
            page: self.page.as_deref(),
            elapsed,
            length: self.script.length,
            // Not a step that is due but not performed yet: the figures do not show it.
            state: self.script.state(self.performed_until),
            sample,
            clients: self.load.counts(|counts| ClientTotals::from(counts)),
            history: &self.history,
            outages: &self.outages[..begun],
        }
    }

    /// The result. Streams that are still open are cut.
    pub(super) fn end(self) -> Summary {
        let elapsed = self.begun.elapsed();
        let sample = self.proxy.sample();
        let recovered = sample.recovered.saturating_sub(self.recovered_before);
        let continued = sample.continued.saturating_sub(self.continued_before);
        let killed = self.outages.iter().filter(|(from, _)| *from <= elapsed);
        let disturbed = killed
            .map(|(from, _)| self.script.state(*from).percent)
            .collect();
        let interrupted = elapsed < self.script.length;
        let counts = self.load.counts(Counts::clone);
        let recovery = RecoveryCounts {
            recovered,
            continued: self.continuation.then_some(continued),
        };
        Summary::new(counts, self.streams, elapsed, recovery).with(disturbed, interrupted)
    }
}
