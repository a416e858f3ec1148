//! Performs the script: kills, revives, moves the split, and gathers a picture of every moment.
//!
//! Must not know how a picture is drawn, nor what the figures mean.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::load::{Load, Tally};
use super::scene::{Moment, Scene, Seen};
use super::script::{Action, Script};
use super::summary::Summary;
use super::{Error, ModelServer, Options, Subject};

/// From one picture to the next.
const TICK: Duration = Duration::from_millis(50);
/// How long the last streams may take after the script, at most.
const LAST_STREAMS: Duration = Duration::from_secs(10);

/// Everything that takes part.
pub(super) struct Stage<S> {
    /// In the order of the generations.
    servers: [ModelServer; 2],
    subject: S,
    address: SocketAddr,
    saves_before: u64,
    page: Option<String>,
    streams: usize,
    load: Load,
    script: Script,
    outages: Vec<(Duration, Duration)>,
    performed: usize,
    begun: Instant,
    ticks: Interval,
    history: Vec<Moment>,
}

impl<S: Subject> Stage<S> {
    /// The curtain rises: clients begin to ask now.
    pub(super) fn begin(
        options: &Options,
        servers: [ModelServer; 2],
        subject: S,
        page: Option<String>,
    ) -> Result<Self, Error> {
        let script = Script::new(options.seconds);
        let address = subject.address();
        let load = Load::start(address, options.streams, script.tokens())?;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Ok(Self {
            servers,
            address,
            saves_before: subject.sample().saves,
            subject,
            page,
            streams: options.streams,
            load,
            outages: script.outages().collect(),
            script,
            performed: 0,
            begun: Instant::now(),
            ticks,
            history: Vec::new(),
        })
    }

    /// Waits for the next picture's time and performs the steps that are due until then; `false` when all is over.
    pub(super) async fn goes_on(&mut self) -> Result<bool, Error> {
        self.ticks.tick().await;
        let elapsed = self.begun.elapsed();
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
        Ok(self.load.tally(Tally::open) > 0 && elapsed < self.script.length + LAST_STREAMS)
    }

    fn perform(&mut self, action: Action) -> Result<(), Error> {
        match action {
            Action::Split(percent) => {
                self.subject.set_percent(percent);
                self.load.set_percent(percent);
            }
            Action::Kill(victim) => {
                self.load.set_outage(true);
                self.servers[victim.index()].kill();
            }
            Action::Revive(victim) => {
                self.servers[victim.index()].revive()?;
                self.load.set_outage(false);
            }
        }
        Ok(())
    }

    /// The picture of now.
    pub(super) fn scene(&mut self) -> Scene<'_> {
        let elapsed = self.begun.elapsed();
        let mut sample = self.subject.sample();
        sample.saves = sample.saves.saturating_sub(self.saves_before);
        if elapsed < self.script.length {
            self.history.push(Moment {
                at: elapsed,
                observed: sample.observed,
                open: sample.open,
            });
        }
        let begun = self.outages.partition_point(|(from, _)| *from <= elapsed);
        Scene {
            address: self.address,
            streams: self.streams,
            page: self.page.as_deref(),
            elapsed,
            length: self.script.length,
            situation: self.script.situation(elapsed),
            sample,
            seen: self.load.tally(|tally| Seen::from(tally)),
            history: &self.history,
            outages: &self.outages[..begun],
        }
    }

    /// Counts up. What is open still is hung up on.
    pub(super) fn end(self) -> Summary {
        let elapsed = self.begun.elapsed();
        let saves = self
            .subject
            .sample()
            .saves
            .saturating_sub(self.saves_before);
        let killed = self.outages.iter().filter(|(from, _)| *from <= elapsed);
        let disturbed = killed
            .map(|(from, _)| self.script.situation(*from).percent)
            .collect();
        let interrupted = elapsed < self.script.length;
        let tally = self.load.tally(Tally::clone);
        Summary::new(tally, self.streams, elapsed, saves).with(disturbed, interrupted)
    }
}
