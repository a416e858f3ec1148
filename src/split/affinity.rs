//! Affinity: keeps a session on one generation, no matter which proxy it comes through.
//!
//! The generation of a key is a fixed threshold on its hash. Raising the weight moves keys only from old
//! to new, and lowering it only back. No proxy has to remember a session or ask another one.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Generation, Weights};

/// The seed for hashing keys: the bytes `crossfad`, big endian.
///
/// Proxies of different versions serve the same sessions side by side. Changing this number or the
/// hash moves sessions between generations.
const SEED: u64 = u64::from_be_bytes(*b"crossfad");

/// The hash that identifies a session.
///
/// The hash is XXH3 (64 bits, stable since xxHash 0.8.0), the same in every process. It is not
/// secret and hides nothing: a client that can choose its key can choose its generation.
///
/// Keys of one generation share a range of hashes. To spread them over endpoints, hash the bytes
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    /// The key of the session identified by `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Key {
        Key(xxh3_64_with_seed(bytes, SEED))
    }

    /// The hash.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.0
    }

    /// The generation of this key at `weights`: new exactly if `hash / 2^64 < new / (old + new)`,
    /// compared without rounding.
    #[must_use]
    pub fn generation(&self, weights: &Weights) -> Generation {
        let position = u128::from(self.0) * u128::from(weights.total());
        let threshold = u128::from(weights.new_weight()) << u64::BITS;
        if position < threshold {
            Generation::New
        } else {
            Generation::Old
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::split::weights::testing::any_weights;

    /// Compares the shares of the new generation exactly.
    fn by_share(a: &Weights, b: &Weights) -> std::cmp::Ordering {
        let cross = |x: &Weights, y: &Weights| u64::from(x.new_weight()) * u64::from(y.old());
        cross(a, b).cmp(&cross(b, a))
    }

    #[test]
    fn the_hash_of_a_key_never_changes() {
        assert_eq!(SEED, 0x6372_6f73_7366_6164);
        // Golden values, from the reference implementation (xxHash, XXH3_64bits_withSeed).
        for (bytes, hash) in [
            ("", 0xf874_be8c_f86d_aecc),
            ("session-1", 0x08f9_906d_6fe1_d94d),
            (
                "7f1c0c9e-3f55-4f6e-9a53-0b6f0f9d2c11",
                0x4d25_cc5c_3156_f398,
            ),
        ] {
            assert_eq!(Key::of(bytes.as_bytes()), Key(hash), "{bytes:?}");
        }
    }

    #[test]
    fn the_ends_leave_no_key_behind() {
        for hash in [0, 1, u64::MAX / 2, u64::MAX] {
            assert_eq!(Key(hash).generation(&Weights::ALL_OLD), Generation::Old);
            assert_eq!(Key(hash).generation(&Weights::ALL_NEW), Generation::New);
        }
    }

    #[test]
    fn the_threshold_is_exact() {
        let half = Weights::percent(50).unwrap();
        assert_eq!(Key((1 << 63) - 1).generation(&half), Generation::New);
        assert_eq!(Key(1 << 63).generation(&half), Generation::Old);
    }

    #[test]
    fn the_share_of_many_keys_is_the_weight() {
        let keys: Vec<Key> = (0..20_000)
            .map(|n| Key::of(format!("session-{n}").as_bytes()))
            .collect();
        for percent in 0..=100 {
            let weights = Weights::percent(percent).unwrap();
            let new = keys
                .iter()
                .filter(|key| key.generation(&weights) == Generation::New)
                .count();
            let share = new as f64 / keys.len() as f64;
            // Three and a half standard deviations are at most 1.25%; the keys are fixed.
            assert!(
                (share - weights.share_of_new()).abs() < 0.0125,
                "{percent}%: {share}"
            );
        }
    }

    proptest! {
        #[test]
        fn raising_the_weight_never_moves_a_key_to_old(
            hash in any::<u64>(), a in any_weights(), b in any_weights(),
        ) {
            let (low, high) = if by_share(&a, &b).is_lt() { (a, b) } else { (b, a) };
            let moved_back = Key(hash).generation(&low) == Generation::New
                && Key(hash).generation(&high) == Generation::Old;
            prop_assert!(!moved_back);
        }

        #[test]
        fn a_key_moves_at_most_once_while_the_weight_rises(
            bytes in any::<Vec<u8>>(), mut rise in prop::collection::vec(any_weights(), 1..40),
        ) {
            rise.sort_by(by_share);
            let key = Key::of(&bytes);
            let generations: Vec<Generation> = rise.iter().map(|weights| key.generation(weights)).collect();
            let moves = generations.windows(2).filter(|pair| pair[0] != pair[1]).count();
            prop_assert!(moves <= 1, "{:?}", generations);
        }
    }
}
