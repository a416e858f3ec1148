//! Exact ratios, so that no traffic decision depends on floating point.

use std::{cmp::Ordering, num::NonZeroU64};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::split::{Weights, gcd};

/// Upper limit of each part of `spec.weights`.
const MAX_WEIGHT: u128 = 1_000_000_000;

/// A number that is not negative, exact, in lowest terms. It may be more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Parts", into = "Parts")]
#[schemars(with = "Parts")]
pub struct Ratio {
    numerator: u64,
    denominator: NonZeroU64,
}

/// A ratio as it is stored.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Parts {
    /// The numerator of the fraction, in lowest terms.
    of: u64,
    /// The denominator of the fraction.
    #[schemars(range(min = 1))]
    whole: u64,
}

impl Ratio {
    /// Zero.
    pub const ZERO: Self = Self {
        numerator: 0,
        denominator: NonZeroU64::MIN,
    };

    /// `of` ÷ `whole`, or `None` if `whole` is 0.
    #[must_use]
    pub const fn new(of: u64, whole: u64) -> Option<Self> {
        let divisor = gcd(of as u128, whole as u128) as u64;
        if whole == 0 {
            return None;
        }
        match NonZeroU64::new(whole / divisor) {
            None => None,
            Some(denominator) => Some(Self {
                numerator: of / divisor,
                denominator,
            }),
        }
    }

    /// Numerator and denominator in lowest terms. The denominator is never 0.
    #[must_use]
    pub const fn parts(self) -> (u64, u64) {
        (self.numerator, self.denominator.get())
    }

    /// Whether the ratio is 0.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.numerator == 0
    }

    /// The ratio times `of` ÷ `whole`, or 0 if `whole` is 0.
    pub(super) fn part(self, of: u64, whole: u64) -> Self {
        let numerator = u128::from(self.numerator) * u128::from(of);
        let denominator = u128::from(self.denominator.get()) * u128::from(whole);
        let (numerator, denominator) = fit(numerator, denominator, u128::from(u64::MAX));
        Self::new(numerator as u64, denominator as u64).unwrap_or(Self::ZERO)
    }

    /// The capacity of new that corresponds to its share in `weights` if old's capacity is `old`. `None` if old gets
    /// nothing.
    pub(super) fn implied(weights: Weights, old: Self) -> Option<Self> {
        let numerator = u128::from(weights.new_weight()) * u128::from(old.numerator);
        let denominator = u128::from(weights.old()) * u128::from(old.denominator.get());
        let (numerator, denominator) = fit(numerator, denominator, u128::from(u64::MAX));
        Self::new(numerator as u64, denominator as u64)
    }

    /// The weights in the ratio of two capacities. `None` if both are 0.
    ///
    /// Exact while each part in lowest terms is at most 10⁹, which 30,000 workers per generation cannot exceed. Beyond that
    /// it is rounded, but never to 0.
    #[must_use]
    pub fn weights(old: Self, new: Self) -> Option<Weights> {
        let part = |own: Self, other: Self| {
            u128::from(own.numerator) * u128::from(other.denominator.get())
        };
        let (old, new) = fit(part(old, new), part(new, old), MAX_WEIGHT);
        Weights::new(old as u32, new as u32).ok()
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |a: &Self, b: &Self| u128::from(a.numerator) * u128::from(b.denominator.get());
        cross(self, other).cmp(&cross(other, self))
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A stored ratio has a denominator of 0.
#[derive(Debug, thiserror::Error)]
#[error("the denominator of a ratio must be more than 0")]
struct ZeroDenominator;

impl TryFrom<Parts> for Ratio {
    type Error = ZeroDenominator;

    fn try_from(parts: Parts) -> Result<Self, ZeroDenominator> {
        Self::new(parts.of, parts.whole).ok_or(ZeroDenominator)
    }
}

impl From<Ratio> for Parts {
    fn from(ratio: Ratio) -> Self {
        Self {
            of: ratio.numerator,
            whole: ratio.denominator.get(),
        }
    }
}

/// Serializes the weights in a [`Memory`](super::Memory) as `{old, new}`.
pub(super) mod stored_weights {
    use schemars::JsonSchema;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use crate::split::Weights;

    /// A split as an exact ratio.
    #[derive(Serialize, Deserialize, JsonSchema)]
    pub struct Stored {
        /// The part of the old generation.
        old: u32,
        /// The part of the new generation.
        new: u32,
    }

    pub fn serialize<S: Serializer>(weights: &Option<Weights>, to: S) -> Result<S::Ok, S::Error> {
        let stored = |weights: &Weights| Stored {
            old: weights.old(),
            new: weights.new_weight(),
        };
        weights.as_ref().map(stored).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Weights>, D::Error> {
        Option::<Stored>::deserialize(from)?
            .map(|stored| Weights::new(stored.old, stored.new).map_err(D::Error::custom))
            .transpose()
    }
}

/// Reduces two numbers to lowest terms, with both at most `limit`. Rounds if necessary, but never a non-zero number to
/// 0.
const fn fit(a: u128, b: u128, limit: u128) -> (u128, u128) {
    let divisor = gcd(a, b);
    if divisor == 0 {
        return (0, 0);
    }
    let (a, b) = (a / divisor, b / divisor);
    let excess = if a > b { a } else { b }.div_ceil(limit);
    (shrunk(a, excess), shrunk(b, excess))
}

const fn shrunk(number: u128, divisor: u128) -> u128 {
    match number / divisor {
        0 if number > 0 => 1,
        quotient => quotient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(of: u64, whole: u64) -> Ratio {
        Ratio::new(of, whole).unwrap()
    }

    #[test]
    fn weights_are_the_exact_ratio_of_two_capacities() {
        for (old, new, weights) in [
            ((4, 4), (1, 4), (4, 1)),
            ((1, 1), (1, 4), (4, 1)),
            ((2, 3), (1, 7), (14, 3)),
            ((1, 1), (8, 4), (1, 2)),
            ((0, 4), (1, 4), (0, 1)),
            ((3, 4), (0, 4), (1, 0)),
        ] {
            let exact = Ratio::weights(ratio(old.0, old.1), ratio(new.0, new.1));
            assert_eq!(exact, Weights::new(weights.0, weights.1).ok());
        }
        assert_eq!(Ratio::weights(Ratio::ZERO, Ratio::ZERO), None);
    }

    #[test]
    fn extreme_ratios_are_rounded_within_the_field_and_never_to_nothing() {
        let (huge, tiny) = (ratio(u64::MAX, 1), ratio(1, u64::MAX));
        let weights = Ratio::weights(huge, tiny).unwrap();
        assert_eq!((weights.old(), weights.new_weight()), (999_999_999, 1));
        let weights = Ratio::weights(tiny, huge).unwrap();
        assert_eq!((weights.old(), weights.new_weight()), (1, 999_999_999));
    }

    #[test]
    fn ratios_are_ordered_by_their_value() {
        assert_eq!(ratio(2, 4), ratio(1, 2));
        assert!(ratio(1, 3) < ratio(1, 2) && ratio(5, 4) > ratio(1, 1));
        assert!(ratio(u64::MAX, 1) > ratio(u64::MAX - 1, 1));
        assert_eq!(Ratio::new(1, 0), None);
    }

    #[test]
    fn a_part_of_a_ratio_is_exact_and_never_rounded_to_nothing() {
        assert_eq!(ratio(2, 1).part(3, 4), ratio(3, 2));
        assert_eq!(ratio(1, 2).part(4, 4), ratio(1, 2));
        assert_eq!(ratio(1, 2).part(0, 4), Ratio::ZERO);
        assert_eq!(ratio(1, 2).part(1, 0), Ratio::ZERO);
        assert!(!ratio(1, u64::MAX).part(1, u64::MAX).is_zero());
    }

    #[test]
    fn a_capacity_is_implied_by_a_share() {
        let quarter = Weights::new(4, 1).unwrap();
        assert_eq!(Ratio::implied(quarter, ratio(1, 1)), Some(ratio(1, 4)));
        assert_eq!(Ratio::implied(quarter, ratio(1, 2)), Some(ratio(1, 8)));
        assert_eq!(Ratio::implied(Weights::ALL_NEW, ratio(1, 1)), None);
        assert_eq!(
            Ratio::implied(Weights::ALL_OLD, ratio(1, 1)),
            Some(Ratio::ZERO)
        );
    }

    #[test]
    fn a_stored_ratio_without_weights_is_rejected() {
        let stored = serde_json::to_string(&ratio(2, 8)).unwrap();
        assert_eq!(stored, r#"{"of":1,"whole":4}"#);
        assert_eq!(serde_json::from_str::<Ratio>(&stored).unwrap(), ratio(1, 4));
        assert!(serde_json::from_str::<Ratio>(r#"{"of":1,"whole":0}"#).is_err());
    }
}
