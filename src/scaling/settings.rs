//! The requested state: the shape of both generations, the strategy, and the intent of the owner. Contains no policy.

use std::time::Duration;

use super::{Amount, Handover, Intent, OnFailure, Shape};
use crate::rollout::{PerGeneration, Role};
use std::collections::{BTreeMap, BTreeSet};

/// The settings of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutSettings {
    /// The full sizes, as accepted when the rollout began.
    pub shape: Shape,
    /// The roles of old whose full size the spec states, so that they may have a different size when the rollout begins.
    pub given: BTreeSet<Role>,
    /// The GPUs of one replica of each role.
    pub gpus: PerGeneration<BTreeMap<Role, u32>>,
    /// How it proceeds.
    pub strategy: Strategy,
    /// What its owner wants now.
    pub intent: Intent,
    /// Whether the spec already names a different new generation. In that case, this one is rolled back first, so that there
    /// are never three.
    pub superseded: bool,
    /// What happens once new serves everything.
    pub handover: Handover,
    /// Whether one object has the workers of both generations. Each replica belongs to one generation, so shrinking a
    /// generation grows the other one.
    pub in_place: bool,
}

/// How a rollout proceeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// By how much both generations together may exceed the full size, including terminating pods.
    pub max_surge: Amount,
    /// By how much ready capacity may fall below the full size. One unit always stays.
    pub max_unavailable: Amount,
    /// How many units stay in the old generation.
    pub partition: u32,
    /// The sizes of new at which the rollout pauses, in ascending order.
    pub steps: Vec<ScaleStep>,
    /// How many GPUs both generations may use, including those of terminating pods.
    pub gpu_budget: Option<u32>,
    /// The time after which a new worker that is not ready is reported.
    pub ready_timeout: Duration,
    /// The minimum time between two changes of size.
    pub step_interval: Duration,
    /// How long a shrinking generation may have more streams than its remaining workers can serve.
    pub drain_deadline: Option<Duration>,
    /// Whether new must pass the analysis before old shrinks.
    pub analysis: Option<OnFailure>,
    /// Whether a broken stream is continued by another worker, so that a worker does not have to finish its streams.
    pub continuation: bool,
    /// Whether workers may be removed although they get less time to terminate than their streams need.
    pub allow_short_grace: bool,
}

impl Default for Strategy {
    fn default() -> Self {
        Self {
            max_surge: Amount::Count(1),
            max_unavailable: Amount::Count(0),
            partition: 0,
            steps: Vec::new(),
            gpu_budget: None,
            ready_timeout: Duration::from_secs(1800),
            step_interval: Duration::ZERO,
            drain_deadline: None,
            analysis: None,
            continuation: false,
            allow_short_grace: false,
        }
    }
}

impl Amount {
    /// The amount in units, out of `whole`, rounded up.
    #[must_use]
    pub fn up(self, whole: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => part(percent, whole).div_ceil(100) as u32,
        }
    }

    /// The amount in units, out of `whole`, rounded down.
    #[must_use]
    pub fn down(self, whole: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => (part(percent, whole) / 100) as u32,
        }
    }
}

fn part(percent: u32, whole: u32) -> u64 {
    // A surge of more than all units means all units.
    u64::from(percent.min(100)) * u64::from(whole)
}

/// A size of new at which the rollout pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleStep {
    /// The size.
    pub new: Amount,
    /// How long it pauses, once new is ready at this size.
    pub hold: Duration,
}

impl RolloutSettings {
    /// By how many units both generations together may exceed the full size.
    #[must_use]
    pub fn surge(&self) -> u32 {
        self.strategy.max_surge.up(self.shape.units())
    }

    /// By how many units ready capacity may fall below the full size. If percentages round both limits to 0, this counts as one
    /// unit, as for a Deployment.
    #[must_use]
    pub fn unavailable(&self) -> u32 {
        let units = self.shape.units();
        let is_percent = matches!(self.strategy.max_unavailable, Amount::Percent(1..));
        let least = u32::from(is_percent && self.surge() == 0);
        let count = self.strategy.max_unavailable.down(units).max(least);
        count.min(units - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(size: u32, max_surge: Amount, max_unavailable: Amount) -> (u32, u32) {
        let sizes: super::super::Sizes = [(Role::Worker, size)].into();
        let settings = RolloutSettings {
            shape: Shape::of(PerGeneration {
                old: sizes.clone(),
                new: sizes,
            })
            .unwrap(),
            given: BTreeSet::new(),
            gpus: PerGeneration::default(),
            strategy: Strategy {
                max_surge,
                max_unavailable,
                ..Strategy::default()
            },
            intent: Intent::Run,
            superseded: false,
            handover: Handover::default(),
            in_place: false,
        };
        (settings.surge(), settings.unavailable())
    }

    #[test]
    fn percentages_round_as_those_of_a_deployment_do() {
        use Amount::{Count, Percent};
        for (size, surge, unavailable, limit) in [
            (4, Count(1), Count(0), (1, 0)),
            (10, Percent(25), Percent(25), (3, 2)),
            (4, Percent(100), Count(0), (4, 0)),
            (4, Percent(0), Percent(10), (0, 1)),
            (4, Percent(10), Percent(10), (1, 0)),
            // One unit always stays.
            (4, Count(0), Percent(100), (0, 3)),
            (1, Count(0), Count(1), (0, 0)),
        ] {
            assert_eq!(limits(size, surge, unavailable), limit, "{size} {surge:?}");
        }
    }
}
