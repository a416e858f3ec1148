//! Our types as messages. Total: whatever is too large for its field becomes the largest that fits.

use super::v1;
use crate::lifecycle::Phase;
use crate::resource::{Identity, Problem};
use crate::split::Weights;
use crate::telemetry::Distribution;

impl From<Phase> for v1::Phase {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Starting => Self::Starting,
            Phase::Ready => Self::Ready,
            Phase::Settling => Self::Settling,
            Phase::Draining => Self::Draining,
            Phase::Ending => Self::Ending,
        }
    }
}

impl From<Weights> for v1::Weights {
    fn from(weights: Weights) -> Self {
        Self {
            old: weights.old(),
            new: weights.new_weight(),
        }
    }
}

impl From<&Identity> for v1::Resource {
    fn from(identity: &Identity) -> Self {
        Self {
            namespace: identity.namespace.clone(),
            name: identity.name.clone(),
            uid: identity.uid.clone(),
            generation: identity.generation,
        }
    }
}

impl From<&Problem> for v1::Problem {
    fn from(problem: &Problem) -> Self {
        Self {
            path: problem.path.clone(),
            line: problem
                .line
                .map(|line| u32::try_from(line).unwrap_or(u32::MAX)),
            message: problem.message.clone(),
        }
    }
}

impl From<Distribution> for v1::Histogram {
    fn from(distribution: Distribution) -> Self {
        let count = distribution.buckets.last().map_or(0, |(_, count)| *count);
        let finite = distribution.buckets.into_iter();
        let finite = finite.filter(|(bound, _)| bound.is_finite());
        let (bounds, cumulative_counts) = finite.unzip();
        Self {
            bounds,
            cumulative_counts,
            count,
            sum: distribution.sum,
        }
    }
}
