//! The metrics of the controller.
//!
//! Updates may be labels here: there are few of them, and only users who may edit the cluster name them. The series of an
//! update are removed with it.

mod rollouts;

use std::cell::RefCell;

use prometheus::core::Collector;
use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};

use self::rollouts::RolloutMetrics;
use super::Key;
use crate::analysis::Reason;
use crate::rollout::{Decision, TrialVerdict};
use crate::split::Generation;
use crate::telemetry::dropped_lines;

/// From the microseconds of a decision to the seconds of a slow API server.
const BUCKETS: [f64; 14] = [
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

const VERDICTS: [TrialVerdict; 3] = [
    TrialVerdict::Pass,
    TrialVerdict::Fail,
    TrialVerdict::Inconclusive,
];

/// A metric's description, available even while the metric has no series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub name: String,
    /// `gauge`, `counter` or `histogram`.
    pub kind: String,
    pub help: String,
    /// Label names.
    pub labels: Vec<String>,
}

/// Handles of all metrics.
pub struct Metrics {
    registry: Registry,
    described: Vec<Described>,
    pub(super) leads: IntGauge,
    pub(super) updates: IntGauge,
    pub(super) reconciles: IntCounter,
    pub(super) errors: IntCounterVec,
    pub(super) writes: IntCounter,
    pub(super) decision: Histogram,
    pub(super) apply: Histogram,
    pub(super) reaction: Histogram,
    capacity: GaugeVec,
    split: GaugeVec,
    weight: GaugeVec,
    analysis: IntGaugeVec,
    analysis_reason: IntGaugeVec,
    pub(super) stale: IntGauge,
    pub(super) rollouts: RolloutMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let new = Registered(&registry, RefCell::default());
        #[cfg(target_os = "linux")]
        registry
            .register(Box::new(
                prometheus::process_collector::ProcessCollector::for_self(),
            ))
            .expect("each name is registered once");
        new.add(Ok(dropped_lines()));
        Self {
            leads: new.add(IntGauge::new(
                "crossfade_controller_leader",
                "1 if this replica is the leader, otherwise 0",
            )),
            updates: new.add(IntGauge::new(
                "crossfade_controller_updates",
                "Updates that this controller manages",
            )),
            reconciles: new.add(IntCounter::new(
                "crossfade_controller_reconciles_total",
                "Reconciliations of an update",
            )),
            errors: new.add(IntCounterVec::new(
                Opts::new(
                    "crossfade_controller_errors_total",
                    "Failed reconciliations, by cause",
                ),
                &["cause"],
            )),
            writes: new.add(IntCounter::new(
                "crossfade_controller_writes_total",
                "Writes of a spec or a status to the API server",
            )),
            decision: new.histogram(
                "crossfade_controller_decision_seconds",
                "Time to observe and decide",
            ),
            apply: new.histogram(
                "crossfade_controller_apply_seconds",
                "Time to write a decision",
            ),
            reaction: new.histogram(
                "crossfade_controller_reaction_seconds",
                "Time from a watch event to the write that follows from it",
            ),
            capacity: new.add(GaugeVec::new(
                Opts::new(
                    "crossfade_controller_capacity_ratio",
                    "Capacity of a generation, relative to the source at full size",
                ),
                &["namespace", "update", "generation"],
            )),
            split: new.add(GaugeVec::new(
                Opts::new(
                    "crossfade_controller_split_ratio",
                    "Desired share of new",
                ),
                &["namespace", "update"],
            )),
            weight: new.add(GaugeVec::new(
                Opts::new(
                    "crossfade_controller_weight",
                    "Weight of a generation in the desired ratio",
                ),
                &["namespace", "update", "generation"],
            )),
            analysis: new.add(IntGaugeVec::new(
                Opts::new(
                    "crossfade_controller_analysis_verdict",
                    "1 for the verdict of the analysis of new that is in force",
                ),
                &["namespace", "update", "verdict"],
            )),
            analysis_reason: new.add(IntGaugeVec::new(
                Opts::new(
                    "crossfade_controller_analysis_reason",
                    "1 for the reason of the verdict in force: the metric by which new fails, or what is missing for a verdict",
                ),
                &["namespace", "update", "reason"],
            )),
            stale: new.add(IntGauge::new(
                "crossfade_controller_stale_kinds",
                "Kinds of objects that the controller may no longer list or watch, so that only their last list is known",
            )),
            rollouts: RolloutMetrics::new(&new),
            described: new.1.into_inner(),
            registry,
        }
    }
}

struct Registered<'a>(&'a Registry, RefCell<Vec<Described>>);

impl Registered<'_> {
    fn add<C: Collector + Clone + 'static>(&self, collector: prometheus::Result<C>) -> C {
        let collector = collector.expect("the name and labels are valid");
        let families = collector.collect();
        let described = families.iter().zip(collector.desc());
        self.1
            .borrow_mut()
            .extend(described.map(|(family, desc)| Described {
                name: desc.fq_name.clone(),
                kind: format!("{:?}", family.get_field_type()).to_lowercase(),
                help: desc.help.clone(),
                labels: desc.variable_labels.clone(),
            }));
        self.0
            .register(Box::new(collector.clone()))
            .expect("each name is registered once");
        collector
    }

    fn histogram(&self, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
        self.add(Histogram::with_opts(options))
    }
}

impl Metrics {
    /// Sets the gauges of an update to a decision.
    pub(super) fn decided(&self, key: &Key, decision: &Decision) {
        let split = decision.desired.split;
        for generation in Generation::ALL {
            let (of, whole) = decision.capacity.of(generation).share.parts();
            let labels = [&*key.namespace, &*key.name, generation.as_str()];
            self.capacity
                .with_label_values(&labels)
                .set(of as f64 / whole as f64);
            let weight = match generation {
                Generation::Old => split.old(),
                Generation::New => split.new_weight(),
            };
            self.weight.with_label_values(&labels).set(weight.into());
        }
        for verdict in VERDICTS {
            let labels = [&*key.namespace, &*key.name, verdict.as_str()];
            match &decision.analysis {
                Some(analysis) => {
                    let is_it = i64::from(analysis.verdict == verdict);
                    self.analysis.with_label_values(&labels).set(is_it);
                }
                None => _ = self.analysis.remove_label_values(&labels),
            }
        }
        let analysis = decision.analysis.as_ref();
        let current = analysis.map(|analysis| Reason::from_name(&analysis.reason));
        for reason in Reason::ALL {
            let labels = [&*key.namespace, &*key.name, reason.as_str()];
            if current == Some(reason) {
                self.analysis_reason.with_label_values(&labels).set(1);
            } else {
                let _ = self.analysis_reason.remove_label_values(&labels);
            }
        }
        let labels = [&*key.namespace, &*key.name];
        self.split
            .with_label_values(&labels)
            .set(split.share_of_new());
    }

    /// Removes the series of an update.
    pub(super) fn forget(&self, key: &Key) {
        let (namespace, name) = (&*key.namespace, &*key.name);
        for generation in Generation::ALL {
            let _ = self
                .capacity
                .remove_label_values(&[namespace, name, generation.as_str()]);
            let _ = self
                .weight
                .remove_label_values(&[namespace, name, generation.as_str()]);
        }
        for verdict in VERDICTS {
            let _ = self
                .analysis
                .remove_label_values(&[namespace, name, verdict.as_str()]);
        }
        for reason in Reason::ALL {
            let _ = self
                .analysis_reason
                .remove_label_values(&[namespace, name, reason.as_str()]);
        }
        let _ = self.split.remove_label_values(&[namespace, name]);
    }

    /// Removes the series of all updates and rollouts: another replica leads, so the decisions made here are outdated.
    pub(super) fn clear(&self) {
        for gauges in [&self.capacity, &self.split, &self.weight] {
            gauges.reset();
        }
        self.analysis.reset();
        self.analysis_reason.reset();
        self.rollouts.clear();
    }

    /// The descriptions of all metrics.
    #[must_use]
    pub fn described(&self) -> &[Described] {
        &self.described
    }

    /// Renders all metrics in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> Vec<u8> {
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut text)
            .expect("writing to memory cannot fail");
        text
    }
}
