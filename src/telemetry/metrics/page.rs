//! The page `/metrics`: the counters, and values that are only determined at a scrape.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prometheus::{Encoder, TextEncoder};

use super::Metrics;
use crate::analysis::{Reason, Verdict};
use crate::continuation::{Capability, Probe};
use crate::memory::{Budget, Purpose};
use crate::split::Generation;

/// Values that are only determined at a scrape.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The desired share of new, 0 to 1.
    pub wanted: f64,
    pub epoch: u64,
    /// The `metadata.generation` of the plan's resource; 0 if it has none.
    pub plan_generation: i64,
    pub plan_age: Duration,
    /// How long the plan source has been unreachable; zero if it is reachable.
    pub source_lost: Duration,
    /// Updates without effect because another one takes precedence.
    pub conflicts: usize,
    /// The name of the verdict on new and its reason, if there is one.
    pub verdict: Option<(&'static str, Reason)>,
    /// Healthy and all endpoints, per generation.
    pub endpoints: [(usize, usize); 2],
    /// The proofs of the endpoints about continuations, per generation.
    pub proofs: [ProofCounts; 2],
    /// Streams that wait to be moved off old.
    pub moving: usize,
}

/// The number of pairs of endpoint and model that can continue a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProofCounts {
    counts: [[usize; Capability::ALL.len()]; Probe::ALL.len()],
}

impl ProofCounts {
    pub fn add(&mut self, probe: Probe, capability: Capability) {
        self.counts[probe as usize][capability as usize] += 1;
    }

    /// By either API.
    #[must_use]
    pub fn count(&self, capability: Capability) -> usize {
        self.counts.iter().map(|of| of[capability as usize]).sum()
    }
}

impl Metrics {
    /// The response of `/metrics` (Prometheus text format 0.0.4).
    #[must_use]
    pub fn render(&self, observed: &Observed) -> Vec<u8> {
        self.split
            .with_label_values(&["wanted"])
            .set(observed.wanted);
        let second = self.second(Instant::now());
        for (kind, window) in [("observed", &self.window), ("answered", &self.answered)] {
            match window.share(second) {
                Some(share) => self.split.with_label_values(&[kind]).set(share),
                // Remove the series instead of exposing an invented value. An error only means that it was already absent.
                None => drop(self.split.remove_label_values(&[kind])),
            }
        }
        self.plan_epoch.set(observed.epoch.cast_signed());
        self.plan_generation.set(observed.plan_generation);
        self.plan_age.set(observed.plan_age.as_secs_f64());
        self.source_lost.set(observed.source_lost.as_secs_f64());
        self.conflicts
            .set(i64::try_from(observed.conflicts).unwrap_or(i64::MAX));
        match observed.verdict {
            Some((verdict, _)) => {
                for name in Verdict::NAMES {
                    let shown = self.analysis.with_label_values(&[name]);
                    shown.set(i64::from(name == verdict));
                }
            }
            None => self.analysis.reset(),
        }
        for reason in Reason::ALL {
            let labels = [reason.as_str()];
            if observed
                .verdict
                .is_some_and(|(_, current)| current == reason)
            {
                self.analysis_reason.with_label_values(&labels).set(1);
            } else {
                let _ = self.analysis_reason.remove_label_values(&labels);
            }
        }
        let shown = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.moving.set(shown(observed.moving));
        for generation in Generation::ALL {
            let proofs = observed.proofs[generation.index()];
            for probe in Probe::ALL {
                for capability in Capability::ALL {
                    let labels = [generation.as_str(), probe.as_str(), capability.as_str()];
                    let count = proofs.counts[probe as usize][capability as usize];
                    self.capability.with_label_values(&labels).set(shown(count));
                }
            }
            let own = self.of(generation);
            own.open_streams.set(own.open.load(Ordering::Relaxed));
            let (healthy, all) = observed.endpoints[generation.index()];
            for (state, count) in [("healthy", healthy), ("ejected", all - healthy)] {
                self.endpoints
                    .with_label_values(&[generation.as_str(), state])
                    .set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        if let Some(memory) = self.memory.get() {
            self.show_memory(memory);
        }
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut text)
            .expect("writing to a Vec does not fail and the families are valid");
        text
    }

    fn show_memory(&self, memory: &Budget) {
        for (kind, bytes) in [("used", memory.used()), ("budget", memory.limit())] {
            let shown = i64::try_from(bytes).unwrap_or(i64::MAX);
            self.memory_bytes.with_label_values(&[kind]).set(shown);
        }
        for purpose in Purpose::ALL {
            let shown = self.memory_refused.with_label_values(&[purpose.as_str()]);
            shown.inc_by(memory.take_refusals(purpose));
        }
    }
}
