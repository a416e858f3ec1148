//! The page `/metrics`: what was counted, and what is only known when somebody asks.
//!
//! Must not know how the latter is found out.

use std::time::{Duration, Instant};

use prometheus::{Encoder, TextEncoder};

use super::Metrics;
use crate::memory::{Budget, Purpose};
use crate::split::Generation;

/// What is only known when somebody asks for the metrics.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The share of new that the plan wants, 0 to 1.
    pub wanted: f64,
    pub epoch: u64,
    /// Which edit of its resource the plan is (`metadata.generation`); 0 where edits are not counted.
    pub plan_generation: i64,
    pub plan_age: Duration,
    /// How long the source of plans has been out of reach; zero while it is not.
    pub source_lost: Duration,
    /// Updates that do nothing, since another one rules.
    pub conflicts: usize,
    /// Healthy and all endpoints, per generation.
    pub endpoints: [(usize, usize); 2],
}

impl Metrics {
    /// The text that `/metrics` answers (Prometheus text format 0.0.4).
    #[must_use]
    pub fn render(&self, observed: &Observed) -> Vec<u8> {
        self.split
            .with_label_values(&["wanted"])
            .set(observed.wanted);
        let second = self.second(Instant::now());
        for (kind, window) in [("observed", &self.window), ("answered", &self.answered)] {
            match window.share(second) {
                Some(share) => self.split.with_label_values(&[kind]).set(share),
                // Absent rather than a made-up number. An error only says that it was absent already.
                None => drop(self.split.remove_label_values(&[kind])),
            }
        }
        self.plan_epoch.set(observed.epoch.cast_signed());
        self.plan_generation.set(observed.plan_generation);
        self.plan_age.set(observed.plan_age.as_secs_f64());
        self.source_lost.set(observed.source_lost.as_secs_f64());
        self.conflicts
            .set(i64::try_from(observed.conflicts).unwrap_or(i64::MAX));
        for generation in Generation::ALL {
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
            .expect("a Vec takes every write and the families are valid");
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
