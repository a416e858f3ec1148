//! The scale of latencies: log-linear buckets, like those of HdrHistogram.
//!
//! Each power of two of milliseconds is divided into 32 buckets of equal width, so that a bucket is at most 1/32 (3.1%) as
//! wide as its values. The range below one millisecond also has 32 buckets. Values above 17 minutes share the last bucket.
//! Pure.

/// Buckets per power of two.
const PARTS: u64 = 32;
/// Powers of two: from 1 ms to 2^20 ms, 17.5 minutes.
const OCTAVES: u64 = 20;
/// The width of the narrowest bucket, in nanoseconds: 1/32 ms.
const UNIT: u64 = 1_000_000 / PARTS;

/// The number of buckets. The last one holds everything above its lower bound.
pub const BUCKETS: usize = (PARTS + OCTAVES * PARTS) as usize + 1;

/// Upper bounds, in seconds, of the Prometheus buckets of gaps between events. From 5 to 228 ms neighbours differ by at most
/// a fifth. With the infinite one there are 30. Each is a bound of the scale, so its count is exact.
pub const GAP_BOUNDS: [f64; 29] = [
    0.001, 0.0025, 0.005, 0.006, 0.007125, 0.0085, 0.01, 0.012, 0.01425, 0.017, 0.02, 0.024,
    0.0285, 0.034, 0.04, 0.048, 0.057, 0.068, 0.08, 0.096, 0.114, 0.136, 0.16, 0.192, 0.228, 0.512,
    1.024, 4.096, 16.384,
];

/// The same for the time to the first event: neighbours differ by at most a fifth from 50 ms to 5.5 s.
pub const FIRST_EVENT_BOUNDS: [f64; 29] = [
    0.05, 0.06, 0.072, 0.086, 0.1, 0.12, 0.144, 0.172, 0.2, 0.24, 0.288, 0.344, 0.4, 0.48, 0.576,
    0.688, 0.8, 0.96, 1.152, 1.376, 1.6, 1.92, 2.304, 2.752, 3.2, 3.84, 4.608, 5.504, 22.016,
];

/// The functions of the scale.
pub struct Scale;

impl Scale {
    /// The bucket of a value in nanoseconds. A bucket includes its upper bound but not its lower one, as in Prometheus.
    #[must_use]
    pub const fn index(nanos: u64) -> usize {
        let units = nanos.saturating_sub(1) / UNIT;
        if units < PARTS {
            return units as usize;
        }
        // The number of times that the unit is doubled in this octave.
        let doublings = (units.ilog2() - PARTS.ilog2()) as u64;
        if doublings >= OCTAVES {
            return BUCKETS - 1;
        }
        (doublings * PARTS + (units >> doublings)) as usize
    }

    /// The lower bound of a bucket, in seconds.
    #[must_use]
    pub fn lower(index: usize) -> f64 {
        let index = index.min(BUCKETS - 1) as u64;
        let units = if index < PARTS {
            index
        } else {
            let doublings = index / PARTS - 1;
            (PARTS + index % PARTS) << doublings
        };
        (units * UNIT) as f64 / 1e9
    }

    /// The number of buckets entirely below `seconds`, a bound of the scale.
    #[must_use]
    pub fn buckets_up_to(seconds: f64) -> usize {
        Self::index((seconds * 1e9).round() as u64) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bucket_holds_its_upper_bound_and_begins_where_the_one_before_ends() {
        for index in 0..BUCKETS - 1 {
            let upper = (Scale::lower(index + 1) * 1e9).round() as u64;
            assert_eq!(Scale::index(upper), index);
            assert_eq!(Scale::index(upper + 1), index + 1);
        }
        assert_eq!(Scale::index(0), 0);
        assert_eq!(Scale::index(u64::MAX), BUCKETS - 1);
        assert!(
            Scale::lower(BUCKETS - 1) > 600.0,
            "it reaches beyond 10 minutes"
        );
    }

    #[test]
    fn prometheus_sees_at_most_30_buckets_whose_bounds_are_of_the_scale() {
        for (bounds, from, to) in [(&GAP_BOUNDS, 0.005, 0.2), (&FIRST_EVENT_BOUNDS, 0.05, 5.0)] {
            assert!(bounds.len() < 30, "and the infinite one");
            assert!(bounds.contains(&from) && bounds.iter().any(|bound| *bound >= to));
            for pair in bounds.windows(2) {
                assert!(pair[0] < pair[1]);
                if pair[0] >= from && pair[0] < to {
                    assert!(pair[1] / pair[0] <= 1.2001, "{pair:?}");
                }
            }
            for bound in bounds {
                let count = Scale::buckets_up_to(*bound);
                assert!((Scale::lower(count) - bound).abs() < 1e-9, "{bound}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_bucket_is_at_most_a_thirty_second_as_wide_as_its_values(
            nanos in 1_000_001_u64..600_000_000_000,
        ) {
            let index = Scale::index(nanos);
            let (lower, upper) = (Scale::lower(index), Scale::lower(index + 1));
            let seconds = nanos as f64 / 1e9;
            prop_assert!(lower <= seconds && seconds <= upper + 1e-12);
            prop_assert!((upper - lower) / lower <= 1.0 / 32.0 + 1e-9);
        }
    }
}
