//! Converts our types to messages. Total: a value too large for its field becomes the largest that fits.

use super::v1;
use crate::continuation::Mode;
use crate::lifecycle::Phase;
use crate::resource::{Identity, Problem};
use crate::split::Weights;
use crate::telemetry::Distribution;
use crate::telemetry::latency::Sketch;

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

impl From<Mode> for v1::ContinuationMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Off => Self::Off,
            Mode::SameGeneration => Self::SameGeneration,
            Mode::AnyGeneration => Self::AnyGeneration,
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

impl From<&Sketch> for v1::Latencies {
    fn from(sketch: &Sketch) -> Self {
        let buckets = sketch.buckets();
        let (buckets, counts) = buckets
            .map(|(bucket, count)| (u32::try_from(bucket).unwrap_or(u32::MAX), count))
            .unzip();
        Self {
            buckets,
            counts,
            sum_nanos: sketch.sum(),
        }
    }
}

impl From<&v1::Latencies> for Sketch {
    /// Buckets that are not ascending, or not on the scale, are left out.
    fn from(latencies: &v1::Latencies) -> Self {
        let mut next = 0;
        let counts = latencies.buckets.iter().zip(&latencies.counts);
        let counts = counts.filter_map(|(bucket, count)| {
            let bucket = usize::try_from(*bucket).ok()?;
            (bucket >= next).then(|| next = bucket.saturating_add(1))?;
            Some((bucket, *count))
        });
        Self::new(counts, latencies.sum_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_survive_the_wire_and_what_is_made_up_is_left_out() {
        let sketch = Sketch::new([(0, 3), (40, 7), (672, 1)], 5_000_000);
        assert_eq!(Sketch::from(&v1::Latencies::from(&sketch)), sketch);
        let made_up = v1::Latencies {
            buckets: vec![5, 5, 3, 9, 700, u32::MAX],
            counts: vec![1, 10, 100, 1000, 10_000],
            sum_nanos: 0,
        };
        assert_eq!(Sketch::from(&made_up), Sketch::new([(5, 1), (9, 1000)], 0));
    }
}
