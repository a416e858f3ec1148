//! Estimates the remaining time of a drain from the durations of past streams.
//!
//! The estimate is only displayed and does not affect decisions. This is the only part of the decision's module that uses floating point.

use std::time::Duration;

/// Maximum number of different bounds. All proxies of one version have the same few.
const MAX_BUCKETS: usize = 256;

/// Confidence of an estimate: in nine of ten drains all streams have ended by then.
const CERTAINTY: f64 = 0.9;

/// A histogram of stream durations, from when the request was sent to the generation to the end of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Upper bounds in ascending order, each with the number of streams that lasted longer than the previous bound and
    /// at most this one.
    pub buckets: Vec<(Duration, u64)>,
    /// The number of streams that lasted longer than the last bound. They are assumed to last up to twice that bound.
    pub longer: u64,
}

impl Lengths {
    /// Adds the histogram of another proxy. Proxies of one version have the same bounds; other bounds are added to the
    /// list. If it is full, their counts are added to the next bound.
    pub fn add(&mut self, other: &Self) {
        for (bound, count) in &other.buckets {
            let found = self.buckets.binary_search_by_key(bound, |known| known.0);
            let (Ok(at) | Err(at)) = found;
            if found.is_err() && self.buckets.len() < MAX_BUCKETS {
                self.buckets.insert(at, (*bound, 0));
            }
            let total = match self.buckets.get_mut(at) {
                Some((_, total)) => total,
                None => &mut self.longer,
            };
            *total = total.saturating_add(*count);
        }
        self.longer = self.longer.saturating_add(other.longer);
    }

    /// The number of streams.
    fn count(&self) -> u64 {
        let counts = self.buckets.iter().map(|(_, count)| *count);
        counts.fold(self.longer, u64::saturating_add)
    }

    /// The 99th percentile of the stream durations. `None` if no stream has ended.
    #[must_use]
    pub fn percentile_99(&self) -> Option<Duration> {
        let total = self.count();
        let enough = (u128::from(total) * 99).div_ceil(100);
        let mut ended = 0;
        let reached = self.buckets.iter().find(|(_, count)| {
            ended += u128::from(*count);
            ended >= enough
        });
        let bound = reached.map_or(Duration::MAX, |(bound, _)| *bound);
        (total > 0).then_some(bound)
    }
}

/// Estimates the time until all of `open` streams have ended, if none has been added for `elapsed`.
///
/// A stream that is open at a random moment is likely a long one, observed at a random point of its life. Its remaining
/// time exceeds `t` with probability `∫ₜ S ÷ ∫₀ S`, where `S(x)` is the fraction of streams that last longer than `x`
/// (residual life in renewal theory). All `n` streams have ended when the last one has. Returns `None` if no durations
/// are known, or if `elapsed` exceeds every known duration.
#[must_use]
pub fn drain_estimate(open: u64, lengths: &Lengths, elapsed: Duration) -> Option<Duration> {
    if open == 0 {
        return Some(Duration::ZERO);
    }
    let curve = left_after(lengths)?;
    let start = elapsed.as_secs_f64();
    let now_left = interpolated(&curve, start);
    if now_left <= 0.0 {
        return None;
    }
    // All end within t if each of them does: (1 − left(t))ⁿ = certainty. This form is exact for huge n, too.
    let each_may_be_left = -(CERTAINTY.ln() / open as f64).exp_m1();
    let end = first_at_most(&curve, now_left * each_may_be_left);
    Duration::try_from_secs_f64((end - start).max(0.0)).ok()
}

/// Points (t, ∫ₜ S), falling to 0.
fn left_after(lengths: &Lengths) -> Option<Vec<(f64, f64)>> {
    let mut bounds: Vec<(f64, u64)> = lengths
        .buckets
        .iter()
        .map(|(bound, count)| (bound.as_secs_f64(), *count))
        .collect();
    if lengths.longer > 0 {
        let last = bounds.last().map_or(0.0, |(bound, _)| *bound);
        bounds.push((2.0 * last, lengths.longer));
    }
    let total = lengths.count();
    let mut curve = vec![(bounds.last()?.0, 0.0)];
    let (mut above, mut area) = (0_u64, 0.0);
    // Integrate backwards: S is linear within a bucket.
    for (i, (bound, count)) in bounds.iter().enumerate().rev() {
        let below = if i == 0 { 0.0 } else { bounds[i - 1].0 };
        area += (bound - below) * (above as f64 + *count as f64 / 2.0);
        above = above.saturating_add(*count);
        curve.push((below, area));
    }
    curve.reverse();
    (total > 0 && area > 0.0).then_some(curve)
}

fn interpolated(curve: &[(f64, f64)], t: f64) -> f64 {
    let segment = curve.windows(2).find(|pair| t <= pair[1].0);
    segment.map_or(0.0, |pair| {
        let part = (t - pair[0].0) / (pair[1].0 - pair[0].0).max(f64::MIN_POSITIVE);
        pair[0].1 + part * (pair[1].1 - pair[0].1)
    })
}

fn first_at_most(curve: &[(f64, f64)], level: f64) -> f64 {
    let segment = curve.windows(2).find(|pair| pair[1].1 <= level);
    segment.map_or(0.0, |pair| {
        let fall = pair[0].1 - pair[1].1;
        let part = if fall > 0.0 {
            (pair[0].1 - level) / fall
        } else {
            0.0
        };
        pair[0].0 + part * (pair[1].0 - pair[0].0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn minute_long() -> Lengths {
        Lengths {
            buckets: vec![(seconds(59), 0), (seconds(60), 1000)],
            longer: 0,
        }
    }

    #[test]
    fn one_stream_of_known_length_has_at_most_that_left() {
        let one = drain_estimate(1, &minute_long(), Duration::ZERO).unwrap();
        // Uniform over a minute: below 54 s in nine of ten cases.
        assert!((53..=55).contains(&one.as_secs()), "{one:?}");
        let many = drain_estimate(10_000, &minute_long(), Duration::ZERO).unwrap();
        assert!(many > one && many <= seconds(60), "{many:?}");
        let later = drain_estimate(10_000, &minute_long(), seconds(50)).unwrap();
        assert!((9..=10).contains(&later.as_secs()), "{later:?}");
    }

    #[test]
    fn long_streams_count_by_their_length_and_not_by_their_number() {
        let mixed = Lengths {
            buckets: vec![(seconds(1), 1000), (seconds(1000), 0)],
            longer: 10,
        };
        let estimate = drain_estimate(100, &mixed, Duration::ZERO).unwrap();
        assert!(estimate > seconds(500), "{estimate:?}");
    }

    #[test]
    fn lengths_of_proxies_add_up_bound_by_bound() {
        let mut all = Lengths::default();
        for _ in 0..2 {
            all.add(&minute_long());
        }
        all.add(&Lengths {
            buckets: vec![(seconds(30), 7)],
            longer: 1,
        });
        let buckets = [(59, 0), (60, 2000)].map(|(bound, count)| (seconds(bound), count));
        assert_eq!(all.buckets, [&[(seconds(30), 7)], &buckets[..]].concat());
        assert_eq!(all.longer, 1);
    }

    #[test]
    fn forged_lengths_are_added_up_in_few_buckets_without_overflow() {
        let mut all = minute_long();
        for from in 0..10_000 {
            all.add(&Lengths {
                buckets: vec![
                    (Duration::from_millis(2 * from + 1), 1),
                    (seconds(100 + from), u64::MAX),
                ],
                longer: u64::MAX,
            });
        }
        assert_eq!(all.buckets.len(), MAX_BUCKETS);
        assert!(all.buckets.is_sorted_by(|a, b| a.0 < b.0));
        assert!(all.percentile_99().is_some());
        assert!(drain_estimate(u64::MAX, &all, Duration::ZERO).is_some());
        // The known bounds still count.
        let before = all.buckets.clone();
        all.add(&Lengths {
            buckets: vec![(seconds(59), 5)],
            longer: 0,
        });
        let at = before.iter().position(|(bound, _)| *bound == seconds(59));
        let at = at.expect("it was there first");
        assert_eq!(all.buckets[at].1, before[at].1 + 5);
    }

    #[test]
    fn one_stream_in_a_hundred_lasts_longer_than_the_percentile() {
        let lengths = |short, long, longer| Lengths {
            buckets: vec![(seconds(1), short), (seconds(60), long)],
            longer,
        };
        assert_eq!(lengths(99, 1, 0).percentile_99(), Some(seconds(1)));
        assert_eq!(lengths(98, 2, 0).percentile_99(), Some(seconds(60)));
        assert_eq!(lengths(98, 0, 2).percentile_99(), Some(Duration::MAX));
        assert_eq!(lengths(0, 1, 0).percentile_99(), Some(seconds(60)));
        assert_eq!(lengths(0, 0, 0).percentile_99(), None);
    }

    #[test]
    fn unknown_figures_are_omitted() {
        assert_eq!(
            drain_estimate(0, &Lengths::default(), seconds(9)),
            Some(Duration::ZERO)
        );
        assert_eq!(drain_estimate(1, &Lengths::default(), seconds(0)), None);
        assert_eq!(drain_estimate(1, &minute_long(), seconds(61)), None);
        let only_longer = Lengths {
            buckets: Vec::new(),
            longer: 3,
        };
        assert_eq!(drain_estimate(1, &only_longer, seconds(0)), None);
    }

    #[test]
    fn the_more_streams_and_the_longer_they_last_the_later_is_the_end() {
        let lengths = Lengths {
            buckets: (1..=20).map(|i| (seconds(10 * i), 100 / i)).collect(),
            longer: 2,
        };
        let end = |open, elapsed| {
            let left = drain_estimate(open, &lengths, seconds(elapsed));
            seconds(elapsed) + left.expect("some last longer")
        };
        for elapsed in 0..300 {
            assert!(end(7, elapsed) <= end(7, elapsed + 1));
            assert!(end(7, elapsed) < end(8, elapsed));
            assert!(end(1_000_000_000, elapsed) <= seconds(400));
        }
    }
}
