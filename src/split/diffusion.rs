//! Error diffusion: meets the weight to within one request.
//!
//! The rule consists of three pure functions on two integers: [`free`] on the phase, [`counted`]
//! and [`paid`] on the debt that sticky requests leave. A free request pays part of the debt and
//! adds the payment to its own step of the phase. [`Diffusion`] keeps the integers in atomics for
//! the threads of one proxy. The request that takes a payment from the debt also adds it to the
//! phase, so every interleaving of threads is equivalent to some order of pure steps and keeps the
//! same bound.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use super::{Generation, Weights};

/// One whole request, in the fixed-point format of the accumulator: 48 fractional bits.
///
/// Shares are truncated to this precision, so the new generation falls short by at most one request
/// in 2^48. A non-zero share stays non-zero (the smallest is 2^-32).
const ONE: i64 = 1 << 48;

/// The maximum number of requests by which sticky requests can put the split ahead or behind.
///
/// If the sticky sessions happen to favour one generation, free requests compensate. If there are too few of them, the debt
/// would grow without limit. This is the maximum number of requests that the new generation gets beyond its weight (or is
/// denied) to compensate for the past. Any excess is forgotten. The debt is paid slowly: a payment is at most the smaller of
/// the two shares.
pub const DEBT_LIMIT: i64 = 256;

/// The accumulator of one proxy: the fraction of a request that the new generation is owed.
///
/// It outlives plans: the split policies of a process share one.
#[derive(Debug)]
pub struct Diffusion {
    /// The remainder from free requests, in `[0, ONE)`.
    phase: AtomicI64,
    /// The debt from sticky requests. Nearly always 0 without any.
    debt: AtomicI64,
}

impl Diffusion {
    /// Starts at `phase`, any 64 random bits: the fraction of a request that the new generation is
    /// already owed. Because each proxy draws its own phase, the sum over all proxies is an
    /// unbiased estimate from the first request on.
    #[must_use]
    pub const fn new(phase: u64) -> Diffusion {
        Diffusion {
            phase: AtomicI64::new((phase >> 16).cast_signed()),
            debt: AtomicI64::new(0),
        }
    }

    /// Decides a request that may go to either generation.
    pub fn free(&self, weights: &Weights) -> Generation {
        let payment = update(&self.debt, |debt| paid(debt, weights));
        update(&self.phase, |phase| free(phase, payment, weights))
    }

    /// Counts a request that was decided elsewhere, so that free requests compensate for it.
    pub fn counted(&self, weights: &Weights, generation: Generation) {
        update(&self.debt, |debt| ((), counted(debt, weights, generation)));
    }

    #[cfg(test)]
    pub(super) fn accumulated(&self) -> i64 {
        self.phase.load(Relaxed) + self.debt.load(Relaxed)
    }
}

/// Updates an integer atomically. Relaxed ordering is enough because the integers guard no other
/// memory.
fn update<T>(integer: &AtomicI64, step: impl Fn(i64) -> (T, i64)) -> T {
    let mut now = integer.load(Relaxed);
    loop {
        let (answer, next) = step(now);
        // Without a debt, and at weights 0 and 1, nothing changes: do not write, so the cache line
        // stays shared.
        if next == now {
            return answer;
        }
        match integer.compare_exchange_weak(now, next, Relaxed, Relaxed) {
            Ok(_) => return answer,
            Err(seen) => now = seen,
        }
    }
}

/// The part of a debt that a free request pays, and the remaining debt.
///
/// It pays at most the weight of the smaller generation, so that no generation gets more than twice its
/// weight of the free requests. Otherwise one client with a session could send all other clients to
/// one generation.
fn paid(debt: i64, weights: &Weights) -> (i64, i64) {
    let Share::Part(step) = share(weights) else {
        return (0, debt);
    };
    let most = step.min(ONE - step);
    let payment = debt.clamp(-most, most);
    (payment, debt - payment)
}

/// Decides a free request that pays `payment` of the debt. Returns its generation and the next
/// phase.
///
/// A phase in `[0, ONE)` stays in `[0, ONE)` because `step + payment` is in `[0, ONE]`. At weights
/// 0 and 1 the debt is not paid.
fn free(phase: i64, payment: i64, weights: &Weights) -> (Generation, i64) {
    match share(weights) {
        Share::None => (Generation::Old, phase),
        Share::All => (Generation::New, phase),
        Share::Part(step) => match phase + step + payment {
            owed if owed >= ONE => (Generation::New, owed - ONE),
            owed => (Generation::Old, owed),
        },
    }
}

/// The debt after a request that went to `generation` regardless of the debt.
fn counted(debt: i64, weights: &Weights, generation: Generation) -> i64 {
    let Share::Part(step) = share(weights) else {
        return debt;
    };
    let given = match generation {
        Generation::Old => 0,
        Generation::New => ONE,
    };
    (debt + step - given).clamp(-DEBT_LIMIT * ONE, DEBT_LIMIT * ONE)
}

/// The fraction of a request that each request adds for the new generation.
enum Share {
    None,
    /// Above 0 and below [`ONE`].
    Part(i64),
    All,
}

fn share(weights: &Weights) -> Share {
    if weights.is_all_old() {
        return Share::None;
    }
    if weights.is_all_new() {
        return Share::All;
    }
    let new = u128::from(weights.new_weight()) * u128::from(ONE.unsigned_abs());
    let step = new / u128::from(weights.total());
    Share::Part(i64::try_from(step).expect("a part of the whole is below ONE"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::split::weights::testing::any_weights;

    /// A fixed sequence of pseudo-random numbers (`SplitMix64`).
    fn draws(seed: u64) -> impl Iterator<Item = u64> {
        (1..).map(move |n: u64| {
            let z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        })
    }

    fn percent(percent: u8) -> Weights {
        Weights::percent(percent).unwrap()
    }

    fn is_new(generation: Generation) -> u64 {
        generation.index() as u64
    }

    /// How many of `n` free requests go to the new generation.
    fn count_new(diffusion: &Diffusion, weights: &Weights, n: u64) -> u64 {
        (0..n).map(|_| is_new(diffusion.free(weights))).sum()
    }

    /// Whether `|count − n·w| < bound`, in integers, plus `n / 2^48` for the truncation of the share.
    fn meets(count: u64, n: u64, weights: &Weights, bound: i128) -> bool {
        let (total, one) = (i128::from(weights.total()), i128::from(ONE));
        let got = i128::from(count) * total;
        let owed = i128::from(n) * i128::from(weights.new_weight());
        (got - owed).abs() * one < total * (bound * one + i128::from(n))
    }

    /// How far the count is from the sum of the weights in effect, in requests.
    struct Ledger {
        owed: f64,
        given: f64,
    }

    impl Ledger {
        fn new() -> Ledger {
            Ledger {
                owed: 0.0,
                given: 0.0,
            }
        }

        fn enter(&mut self, weights: &Weights, generation: Generation) {
            self.owed += weights.share_of_new();
            self.given += is_new(generation) as f64;
        }

        /// Tolerates floating-point rounding.
        fn within(&self, bound: f64) -> bool {
            (self.given - self.owed).abs() < bound + 1e-9
        }
    }

    #[test]
    fn a_share_is_cut_by_less_than_the_last_bit_and_never_to_an_end() {
        for (old, new) in [(1, 1), (2, 1), (95, 5), (u32::MAX, 1), (1, u32::MAX)] {
            let weights = Weights::new(old, new).unwrap();
            let Share::Part(step) = share(&weights) else {
                panic!("{weights:?} is not an extreme");
            };
            assert!(0 < step && step < ONE);
            let total = i128::from(weights.total());
            let exact = i128::from(ONE) * i128::from(weights.new_weight());
            assert!((0..total).contains(&(exact - i128::from(step) * total)));
        }
    }

    #[test]
    fn a_whole_request_owed_is_given_at_once() {
        let (diffusion, half) = (Diffusion::new(0), percent(50));
        for _ in 0..10 {
            assert_eq!(diffusion.free(&half), Generation::Old);
            assert_eq!(diffusion.free(&half), Generation::New);
        }
    }

    #[test]
    fn five_percent_of_twenty_requests_of_each_of_sixteen_proxies_is_sixteen() {
        for seed in 0..100 {
            let total: u64 = draws(seed)
                .take(16)
                .map(|phase| count_new(&Diffusion::new(phase), &percent(5), 20))
                .sum();
            assert_eq!(total, 16, "seed {seed}");
        }
    }

    #[test]
    fn many_proxies_with_few_requests_each_do_not_starve_the_new_generation() {
        // Five requests at 5% are a quarter of a request for new. One proxy sends none or one,
        // depending on its phase, so sixteen send four on average. The seeds are fixed.
        let totals: Vec<u64> = (0..100)
            .map(|seed| {
                draws(seed)
                    .take(16)
                    .map(|phase| count_new(&Diffusion::new(phase), &percent(5), 5))
                    .sum()
            })
            .collect();
        let mean = totals.iter().sum::<u64>() as f64 / totals.len() as f64;
        assert!((3.5..4.5).contains(&mean), "mean {mean}");
        let starved = totals.iter().filter(|total| **total == 0).count();
        assert!(starved <= 4, "{starved} of 100 got nothing");
    }

    #[test]
    fn hashed_sessions_among_free_requests_leave_the_whole_at_its_weight() {
        // Four in ten requests belong to one of a thousand sessions.
        for share in (10..=90).step_by(10) {
            let weights = percent(share);
            let diffusion = Diffusion::new(0);
            let mut ledger = Ledger::new();
            for draw in draws(u64::from(share)).take(20_000) {
                let generation = if draw % 10 < 4 {
                    let session = (draw >> 32) % 1_000;
                    let generation =
                        crate::split::Key::of(&session.to_be_bytes()).generation(&weights);
                    diffusion.counted(&weights, generation);
                    generation
                } else {
                    diffusion.free(&weights)
                };
                ledger.enter(&weights, generation);
                assert!(ledger.within(16.0), "{share}%");
            }
        }
    }

    #[test]
    fn a_debt_is_bounded_and_paid_once() {
        let (half, limit) = (percent(50), u64::try_from(DEBT_LIMIT).unwrap());
        for leaning in Generation::ALL {
            let diffusion = Diffusion::new(0);
            for _ in 0..100_000 {
                diffusion.counted(&half, leaning);
            }
            let sign = if leaning == Generation::Old { 1 } else { -1 };
            assert_eq!(diffusion.accumulated(), sign * DEBT_LIMIT * ONE);
            // Each request of the burst pays half a request of the debt.
            let burst = (0..).take_while(|_| diffusion.free(&half) != leaning);
            let burst = burst.count() as u64;
            assert!(burst.abs_diff(2 * limit) <= 2, "{burst}");
            assert!(meets(count_new(&diffusion, &half, 1_000), 1_000, &half, 2));
        }
    }

    #[test]
    fn a_debt_waits_while_the_weight_is_at_an_end() {
        for leaning in Generation::ALL {
            let diffusion = Diffusion::new(0);
            for _ in 0..50 {
                diffusion.counted(&percent(50), leaning);
            }
            let owed = diffusion.accumulated();
            for _ in 0..50 {
                for generation in Generation::ALL {
                    diffusion.counted(&Weights::ALL_OLD, generation);
                    diffusion.counted(&Weights::ALL_NEW, generation);
                }
                assert_eq!(diffusion.free(&Weights::ALL_OLD), Generation::Old);
                assert_eq!(diffusion.free(&Weights::ALL_NEW), Generation::New);
            }
            assert_eq!(diffusion.accumulated(), owed);
        }
    }

    #[test]
    fn threads_together_meet_the_weight_as_one_does() {
        const EACH: u64 = 100_000;
        for weights in [percent(5), percent(50), Weights::new(2, 1).unwrap()] {
            let diffusion = Diffusion::new(1 << 40);
            let start = std::sync::Barrier::new(4);
            let count: u64 = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            start.wait();
                            count_new(&diffusion, &weights, EACH)
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).sum()
            });
            assert!(meets(count, 4 * EACH, &weights, 1), "{count}");
        }
    }

    proptest! {
        #[test]
        fn every_prefix_meets_the_weight_to_within_one_request(
            weights in any_weights(), phase in any::<u64>(), n in 1..2_000_u64,
        ) {
            let diffusion = Diffusion::new(phase);
            let mut count = 0;
            for n in 1..=n {
                count += is_new(diffusion.free(&weights));
                prop_assert!(meets(count, n, &weights, 1), "{} of {}", count, n);
                prop_assert!((0..ONE).contains(&diffusion.accumulated()));
            }
        }

        #[test]
        fn every_prefix_meets_weights_that_change(
            phase in any::<u64>(),
            plans in prop::collection::vec((any_weights(), 0..40_u32), 1..20),
        ) {
            let diffusion = Diffusion::new(phase);
            let mut ledger = Ledger::new();
            for (weights, requests) in plans {
                for _ in 0..requests {
                    ledger.enter(&weights, diffusion.free(&weights));
                    prop_assert!(ledger.within(1.0));
                }
            }
        }

        #[test]
        fn proxies_together_miss_by_less_than_their_number(
            phases in prop::collection::vec(any::<u64>(), 1..24),
            plans in prop::collection::vec((any_weights(), 0..40_u32), 1..10),
            turns in any::<u64>(),
        ) {
            let proxies: Vec<_> = phases.into_iter().map(Diffusion::new).collect();
            let mut ledger = Ledger::new();
            let mut turns = draws(turns);
            for (weights, requests) in plans {
                for _ in 0..requests {
                    let turn = turns.next().unwrap() % proxies.len() as u64;
                    let proxy = &proxies[usize::try_from(turn).unwrap()];
                    ledger.enter(&weights, proxy.free(&weights));
                    prop_assert!(ledger.within(proxies.len() as f64));
                }
            }
        }

        /// Regardless of where the sticky requests go: as long as at most one request in
        /// `1 / min(w, 1 − w)` is sticky, the free requests compensate before the next one.
        #[test]
        fn free_requests_make_up_for_sticky_ones_wherever_those_go(
            percents in 1..=99_u8, phase in any::<u64>(), spare in 0..5_u32,
            sticky in prop::collection::vec(prop::sample::select(&Generation::ALL[..]), 1..60),
        ) {
            let weights = percent(percents);
            let rarer = u32::from(percents.min(100 - percents));
            let period = 100_u32.div_ceil(rarer) + spare;
            let diffusion = Diffusion::new(phase);
            let mut ledger = Ledger::new();
            for generation in sticky {
                diffusion.counted(&weights, generation);
                ledger.enter(&weights, generation);
                prop_assert!(ledger.within(2.0));
                for _ in 1..period {
                    ledger.enter(&weights, diffusion.free(&weights));
                    prop_assert!(ledger.within(2.0));
                }
            }
        }

        /// Without sticky requests, the sequence depends only on the phase.
        #[test]
        fn free_requests_alone_create_no_debt(
            weights in any_weights(), phase in any::<u64>(), n in 1..500_u32,
        ) {
            let diffusion = Diffusion::new(phase);
            let mut acc = (phase >> 16).cast_signed();
            for _ in 0..n {
                let (expected, next) = free(acc, 0, &weights);
                acc = next;
                prop_assert_eq!(diffusion.free(&weights), expected);
                prop_assert_eq!(diffusion.accumulated(), acc);
            }
        }

        #[test]
        fn sessions_move_the_share_of_free_requests_to_at_most_twice_a_weight(
            percents in 1..=99_u8, phase in any::<u64>(), free in 1..500_u64, busy in 0..50_u32,
            generation in prop::sample::select(&Generation::ALL[..]),
        ) {
            let weights = percent(percents);
            let diffusion = Diffusion::new(phase);
            let mut new = 0;
            for _ in 0..free {
                for _ in 0..busy {
                    diffusion.counted(&weights, generation);
                }
                new += is_new(diffusion.free(&weights));
            }
            let most = |share: u8| (2 * u64::from(share) * free).div_ceil(100) + 1;
            prop_assert!(new <= most(percents), "{new} of {free} to new");
            prop_assert!(free - new <= most(100 - percents), "{new} of {free} to new");
        }

        #[test]
        fn a_payment_never_exceeds_the_debt(
            weights in any_weights(), debt in -DEBT_LIMIT * ONE..=DEBT_LIMIT * ONE,
        ) {
            let (payment, left) = paid(debt, &weights);
            prop_assert_eq!(payment + left, debt);
            prop_assert!(left.abs() <= debt.abs() && left.signum() * debt.signum() >= 0);
        }
    }
}
