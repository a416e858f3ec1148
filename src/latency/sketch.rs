//! The contents of a histogram, or the difference of two: sparse, so that it is small if values are similar. Pure.

use super::{BUCKETS, Scale};

/// With fewer values, a quantile is not meaningful; users see "not enough data" instead.
pub const ENOUGH: u64 = 50;

/// Counts on the [`Scale`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sketch {
    /// Bucket numbers, ascending, with non-zero counts.
    counts: Vec<(u16, u64)>,
    /// In nanoseconds.
    sum: u64,
}

impl Sketch {
    /// A sketch without values.
    pub const EMPTY: Self = Self {
        counts: Vec::new(),
        sum: 0,
    };

    /// From ascending bucket numbers with their counts, and the sum of the values in nanoseconds. Unknown buckets are left
    /// out.
    #[must_use]
    pub fn new(counts: impl IntoIterator<Item = (usize, u64)>, sum: u64) -> Self {
        let counts = counts.into_iter();
        let counts = counts
            .filter(|(index, count)| *index < BUCKETS && *count > 0)
            .filter_map(|(index, count)| Some((u16::try_from(index).ok()?, count)))
            .collect();
        Self { counts, sum }
    }

    /// The buckets that are not empty, ascending, with their counts.
    pub fn buckets(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counts
            .iter()
            .map(|(index, count)| (usize::from(*index), *count))
    }

    /// The number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets()
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The sum of the values, in nanoseconds.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// The number of values up to `seconds`, a bound of the scale.
    #[must_use]
    pub fn count_up_to(&self, seconds: f64) -> u64 {
        let end = Scale::buckets_up_to(seconds);
        self.buckets()
            .take_while(|(index, _)| *index < end)
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The value below which the share `q` of all values lies, in seconds, linear within a bucket; `None` without values. The
    /// error is at most 3.1% between 1 ms and 17 minutes; longer values count as 17 minutes.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count() as f64;
        let mut below = 0;
        for (index, count) in self.buckets() {
            let upto = below + count;
            if upto as f64 >= rank {
                let lower = Scale::lower(index);
                let width = Scale::lower(index + 1) - lower;
                return Some(lower + width * (rank - below as f64).max(0.0) / count as f64);
            }
            below = upto;
        }
        self.counts
            .last()
            .map(|(index, _)| Scale::lower(usize::from(*index) + 1))
    }

    /// Like [`Sketch::quantile`], but `None` for fewer than [`ENOUGH`] values.
    #[must_use]
    pub fn reliable_quantile(&self, q: f64) -> Option<f64> {
        (self.count() >= ENOUGH).then(|| self.quantile(q)).flatten()
    }

    /// The number of values above the upper bound of `bucket`.
    #[must_use]
    pub fn count_above(&self, bucket: usize) -> u64 {
        self.buckets()
            .skip_while(|(index, _)| *index <= bucket)
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The bucket of the value below which the share `q` of all values lies; `None` without values.
    #[must_use]
    pub fn quantile_bucket(&self, q: f64) -> Option<usize> {
        let rank = q * self.count() as f64;
        let mut below = 0_u64;
        let reaches = |(_, count): &(usize, u64)| {
            below = below.saturating_add(*count);
            below as f64 >= rank
        };
        self.buckets().find(reaches).map(|(index, _)| index)
    }

    /// Adds another sketch.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// The values since `before`, an earlier sketch of the same histogram.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        since.combine(before, u64::saturating_sub);
        since.counts.retain(|(_, count)| *count > 0);
        since.sum = since.sum.saturating_sub(before.sum);
        since
    }

    /// Merges two ascending lists. A bucket that only one of them has counts as 0 in the other.
    fn combine(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        let mut merged = Vec::with_capacity(self.counts.len().max(other.counts.len()));
        let mut theirs = other.counts.iter().copied().peekable();
        for &(index, count) in &self.counts {
            while let Some((their, more)) = theirs.next_if(|(their, _)| *their < index) {
                merged.push((their, with(0, more)));
            }
            let same = theirs.next_if(|(their, _)| *their == index);
            merged.push((index, with(count, same.map_or(0, |(_, more)| more))));
        }
        merged.extend(theirs.map(|(index, more)| (index, with(0, more))));
        self.counts = merged;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(millis: impl IntoIterator<Item = f64>) -> Sketch {
        let mut all = Sketch::default();
        for value in millis {
            let nanos = (value * 1e6).round() as u64;
            all.add(&Sketch::new([(Scale::index(nanos), 1)], nanos));
        }
        all
    }

    #[test]
    fn gaps_that_are_nearly_equal_are_shown_as_nearly_equal() {
        let p50 = |millis| of([millis; 100]).quantile(0.5).unwrap();
        let (old, new) = (p50(48.99), p50(50.99));
        assert!((new / old - 50.99 / 48.99).abs() < 0.04, "{old} {new}");
    }

    #[test]
    fn few_values_prove_nothing() {
        assert_eq!(of([20.0; 49]).reliable_quantile(0.5), None);
        assert!(of([20.0; 50]).reliable_quantile(0.5).is_some());
        assert_eq!(Sketch::default().quantile(0.5), None);
    }

    #[test]
    fn the_counts_of_an_interval_are_the_difference_of_its_ends() {
        let before = of([3.0]);
        let mut later = before.clone();
        later.add(&of([3.0, 40.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
        let since = later.since(&before);
        assert_eq!((since.count(), since.sum()), (7, 43_000_000));
        assert_eq!(since.count_up_to(0.005), 6);
        let mut all = before.clone();
        all.add(&since);
        assert_eq!(all, later);
        assert_eq!(before.since(&before), Sketch::default());
    }

    #[test]
    fn buckets_that_the_scale_does_not_have_are_left_out() {
        let sketch = Sketch::new([(3, 1), (BUCKETS, 7), (usize::MAX, 7)], 0);
        assert_eq!(sketch.count(), 1);
    }

    proptest! {
        #[test]
        fn a_quantile_is_off_by_at_most_5_percent(
            mut millis in prop::collection::vec(1.0_f64..600_000.0, 50..300),
            q in 0.01_f64..0.99,
        ) {
            let estimate = of(millis.iter().copied()).quantile(q).unwrap() * 1000.0;
            millis.sort_by(f64::total_cmp);
            let rank = q * millis.len() as f64;
            let lower = millis[(rank.floor() as usize).saturating_sub(1)];
            let upper = millis[(rank.ceil() as usize).min(millis.len() - 1)];
            prop_assert!(estimate >= lower * 0.95 && estimate <= upper * 1.05, "{lower} {estimate} {upper}");
        }
    }
}
