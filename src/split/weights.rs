//! The exact ratio in which requests are split.

use super::Generation;

/// The share of each generation, as an exact ratio old : new in lowest terms.
///
/// Weights are equal if their ratios are: 1:3 equals 25:75.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weights {
    old: u32,
    new: u32,
}

/// Why two numbers are not valid weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// Neither generation would get a request.
    #[error("the weights of both generations are zero")]
    BothZero,
    /// The percentage exceeds 100.
    #[error("{0}% is more than 100%")]
    AboveHundredPercent(u8),
}

impl Weights {
    /// Every request to the old generation.
    pub const ALL_OLD: Weights = Weights { old: 1, new: 0 };
    /// Every request to the new generation.
    pub const ALL_NEW: Weights = Weights { old: 0, new: 1 };

    /// The ratio `old` : `new`.
    ///
    /// # Errors
    ///
    /// [`WeightsError::BothZero`].
    pub const fn new(old: u32, new: u32) -> Result<Weights, WeightsError> {
        // A divisor of two u32 is one.
        match gcd(old as u128, new as u128) as u32 {
            0 => Err(WeightsError::BothZero),
            divisor => Ok(Weights {
                old: old / divisor,
                new: new / divisor,
            }),
        }
    }

    /// `percent` of the requests to the new generation, the rest to the old one.
    ///
    /// # Errors
    ///
    /// [`WeightsError::AboveHundredPercent`].
    pub const fn percent(percent: u8) -> Result<Weights, WeightsError> {
        if percent > 100 {
            return Err(WeightsError::AboveHundredPercent(percent));
        }
        Weights::new(100 - percent as u32, percent as u32)
    }

    /// The old generation's part of the ratio, in lowest terms.
    #[must_use]
    pub const fn old(&self) -> u32 {
        self.old
    }

    /// The new generation's part of the ratio, in lowest terms.
    #[must_use]
    pub const fn new_weight(&self) -> u32 {
        self.new
    }

    /// The part of `generation`, in lowest terms.
    #[must_use]
    pub const fn of(&self, generation: Generation) -> u32 {
        match generation {
            Generation::Old => self.old,
            Generation::New => self.new,
        }
    }

    /// The new generation's share, 0 to 1. For display and gauges; decisions use the exact ratio.
    #[must_use]
    pub fn share_of_new(&self) -> f64 {
        f64::from(self.new) / (f64::from(self.old) + f64::from(self.new))
    }

    /// Whether the new generation gets nothing.
    #[must_use]
    pub const fn is_all_old(&self) -> bool {
        self.new == 0
    }

    /// Whether the old generation gets nothing.
    #[must_use]
    pub const fn is_all_new(&self) -> bool {
        self.old == 0
    }

    /// The new generation's share in percent, rounded to the nearest integer (halves up). Only
    /// exact weights give 0 or 100: one request in a thousand is 1%, all but one are 99%.
    #[must_use]
    pub fn rounded_percent(&self) -> u8 {
        if self.is_all_old() {
            return 0;
        }
        if self.is_all_new() {
            return 100;
        }
        let (new, total) = (u64::from(self.new), self.total());
        let nearest = (200 * new + total) / (2 * total);
        u8::try_from(nearest.clamp(1, 99)).expect("clamped to 99")
    }

    /// The sum of both parts. Never zero.
    pub(super) fn total(&self) -> u64 {
        u64::from(self.old) + u64::from(self.new)
    }
}

/// The greatest common divisor. Zero only if both are.
pub(crate) const fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
pub(super) mod testing {
    use proptest::prelude::*;

    use super::Weights;

    /// Any ratio: whole percentages, the extremes, small and large numbers.
    pub(crate) fn any_weights() -> impl Strategy<Value = Weights> {
        prop_oneof![
            (0..=100_u8).prop_map(|p| Weights::percent(p).unwrap()),
            Just(Weights::ALL_OLD),
            Just(Weights::ALL_NEW),
            (0..20_u32, 1..20_u32).prop_map(|(old, new)| Weights::new(old, new).unwrap()),
            (1..=u32::MAX, any::<u32>()).prop_map(|(old, new)| Weights::new(old, new).unwrap()),
            Just(Weights::new(u32::MAX, 1).unwrap()),
            Just(Weights::new(1, u32::MAX).unwrap()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ratio(old: u32, new: u32) -> Weights {
        Weights::new(old, new).unwrap()
    }

    #[test]
    fn equal_ratios_are_equal_weights() {
        assert_eq!(ratio(1, 3), ratio(25, 75));
        assert_eq!(ratio(25, 75), Weights::percent(75).unwrap());
        assert_ne!(ratio(1, 3), ratio(3, 1));
        assert_eq!(ratio(7, 0), Weights::ALL_OLD);
        assert_eq!(ratio(0, u32::MAX), Weights::ALL_NEW);
        assert_eq!(Weights::percent(0), Ok(Weights::ALL_OLD));
        assert_eq!(Weights::percent(100), Ok(Weights::ALL_NEW));
    }

    #[test]
    fn meaningless_weights_are_rejected() {
        assert_eq!(Weights::new(0, 0), Err(WeightsError::BothZero));
        assert_eq!(
            Weights::percent(101),
            Err(WeightsError::AboveHundredPercent(101))
        );
    }

    #[test]
    fn only_the_exact_ends_are_called_0_and_100_percent() {
        for (old, new, percent) in [
            (1, 0, 0),
            (u32::MAX, 1, 1),
            (999, 1, 1),
            (200, 1, 1),
            (986, 14, 1),
            (985, 15, 2),
            (984, 16, 2),
            (2, 1, 33),
            (1, 1, 50),
            (1, 2, 67),
            (15, 985, 99),
            (1, 999, 99),
            (1, u32::MAX, 99),
            (0, 1, 100),
        ] {
            assert_eq!(ratio(old, new).rounded_percent(), percent, "{old}:{new}");
        }
    }

    proptest! {
        #[test]
        fn whole_percents_round_to_themselves(percent in 0..=100_u8) {
            prop_assert_eq!(Weights::percent(percent).unwrap().rounded_percent(), percent);
        }

        #[test]
        fn reduction_keeps_the_ratio(old in any::<u32>(), new in 1..=u32::MAX) {
            let weights = ratio(old, new);
            prop_assert_eq!(
                u64::from(weights.old()) * u64::from(new),
                u64::from(weights.new_weight()) * u64::from(old)
            );
            prop_assert!(weights.old() <= old && weights.new_weight() <= new);
            prop_assert_eq!(weights.of(Generation::Old), weights.old());
            prop_assert_eq!(weights.of(Generation::New), weights.new_weight());
            prop_assert!((0.0..=1.0).contains(&weights.share_of_new()));
        }
    }
}
