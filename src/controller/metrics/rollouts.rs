//! The metrics of rollouts. Their labels are the names of rollouts, of which there are few, and values from short lists.

use prometheus::{IntCounterVec, IntGaugeVec, Opts};

use super::super::Key;
use super::Registered;
use crate::resource::rollout_status::{
    DynamoRolloutStatus, RolloutPhase, ScaledGenerationStatus, condition,
};
use crate::scaling::ScalingAction;
use crate::split::Generation;

/// Values of the label `state` of workers.
const STATES: [&str; 3] = ["wanted", "ready", "terminating"];

/// Handles of the metrics of rollouts.
pub(in super::super) struct RolloutMetrics {
    phase: IntGaugeVec,
    stalled: IntGaugeVec,
    workers: IntGaugeVec,
    units: IntGaugeVec,
    gpus: IntGaugeVec,
    actions: IntCounterVec,
}

impl RolloutMetrics {
    pub(super) fn new(new: &Registered) -> Self {
        let gauge = |name: &str, help: &str, more: &[&str]| {
            let labels = [&["namespace", "rollout"], more].concat();
            new.add(IntGaugeVec::new(Opts::new(name, help), &labels))
        };
        Self {
            phase: gauge(
                "crossfade_controller_rollout_phase",
                "1 for the phase of a rollout",
                &["phase"],
            ),
            stalled: gauge(
                "crossfade_controller_rollout_stalled",
                "1 while a rollout cannot continue on its own (its condition Stalled)",
                &[],
            ),
            workers: gauge(
                "crossfade_controller_rollout_workers",
                "Workers of a generation of a rollout",
                &["generation", "state"],
            ),
            units: gauge(
                "crossfade_controller_rollout_units",
                "Desired units of a generation of a rollout",
                &["generation"],
            ),
            gpus: gauge(
                "crossfade_controller_rollout_gpus",
                "GPUs of both generations of a rollout, including those of terminating pods",
                &[],
            ),
            actions: new.add(IntCounterVec::new(
                Opts::new(
                    "crossfade_controller_rollout_actions_total",
                    "Actions that a rollout has carried out",
                ),
                &["namespace", "rollout", "action"],
            )),
        }
    }

    /// Sets the gauges of a rollout to its status.
    pub fn set_status(&self, key: &Key, status: &DynamoRolloutStatus) {
        let labels = [&*key.namespace, &*key.name];
        for phase in RolloutPhase::ALL {
            let is_it = i64::from(status.phase == Some(phase));
            self.phase
                .with_label_values(&[labels[0], labels[1], phase.as_str()])
                .set(is_it);
        }
        let mut conditions = status.conditions.iter();
        let is_stalled =
            conditions.any(|known| known.type_ == condition::STALLED && known.status == "True");
        self.stalled
            .with_label_values(&labels)
            .set(is_stalled.into());
        let step = status.step.unwrap_or_default();
        for (generation, workers, units) in [
            (Generation::Old, &status.source, step.old),
            (Generation::New, &status.target, step.new),
        ] {
            for (state, count) in STATES.into_iter().zip(counts(workers.as_ref())) {
                let labels = [labels[0], labels[1], generation.as_str(), state];
                self.workers.with_label_values(&labels).set(count);
            }
            let labels = [labels[0], labels[1], generation.as_str()];
            self.units.with_label_values(&labels).set(units.into());
        }
        let gpus = status.gpus.unwrap_or_default().used;
        self.gpus
            .with_label_values(&labels)
            .set(i64::try_from(gpus).unwrap_or(i64::MAX));
    }

    /// Counts an action that was carried out.
    pub fn acted(&self, key: &Key, action: &str) {
        let labels = [&*key.namespace, &*key.name, action];
        self.actions.with_label_values(&labels).inc();
    }

    /// Removes the series of a rollout.
    pub fn forget(&self, key: &Key) {
        let (namespace, name) = (&*key.namespace, &*key.name);
        for phase in RolloutPhase::ALL {
            let labels = [namespace, name, phase.as_str()];
            let _ = self.phase.remove_label_values(&labels);
        }
        for generation in Generation::ALL {
            for state in STATES {
                let labels = [namespace, name, generation.as_str(), state];
                let _ = self.workers.remove_label_values(&labels);
            }
            let labels = [namespace, name, generation.as_str()];
            let _ = self.units.remove_label_values(&labels);
        }
        for action in ScalingAction::LABELS {
            let labels = [namespace, name, action];
            let _ = self.actions.remove_label_values(&labels);
        }
        let _ = self.stalled.remove_label_values(&[namespace, name]);
        let _ = self.gpus.remove_label_values(&[namespace, name]);
    }

    /// Removes the gauges of all rollouts: another replica leads and reports them.
    pub(super) fn clear(&self) {
        for gauges in [
            &self.phase,
            &self.stalled,
            &self.workers,
            &self.units,
            &self.gpus,
        ] {
            gauges.reset();
        }
    }
}

/// Wanted, ready and terminating workers of a generation.
fn counts(generation: Option<&ScaledGenerationStatus>) -> [i64; 3] {
    let roles = generation
        .into_iter()
        .flat_map(|generation| generation.roles.values());
    roles.fold([0; 3], |[wanted, ready, terminating], role| {
        [
            wanted + i64::from(role.spec),
            ready + i64::from(role.ready),
            terminating + i64::from(role.terminating),
        ]
    })
}

#[cfg(test)]
mod tests {
    use crate::controller::Key;
    use crate::controller::metrics::Metrics;
    use crate::resource::rollout_status::DynamoRolloutStatus;
    use crate::scaling::ScalingAction;

    #[test]
    fn forgetting_a_rollout_removes_all_of_its_series() {
        let metrics = Metrics::default();
        let key = Key {
            namespace: "test".to_owned(),
            name: "chat".to_owned(),
        };
        metrics
            .rollouts
            .set_status(&key, &DynamoRolloutStatus::default());
        for action in ScalingAction::LABELS {
            metrics.rollouts.acted(&key, action);
        }
        let page = || String::from_utf8(metrics.render()).unwrap();
        assert!(page().contains("chat"));
        metrics.rollouts.forget(&key);
        assert!(!page().contains("chat"), "{}", page());
    }
}
