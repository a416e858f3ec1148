//! The modelled requests: their rate, and the generation that gets each of them.

use std::collections::VecDeque;

use super::{Samples, lengths::Lengths};
use crate::rollout::PerGeneration;
use crate::split::{Generation, Weights};

/// Maximum number of modelled requests per second, and of modelled streams that are open on average. With more, one modelled
/// stream represents several.
const MAX_RATE: f64 = 100.0;
const MAX_OPEN: f64 = 20_000.0;

/// The arriving requests.
pub(super) struct Arrivals {
    lengths: Lengths,
    /// Modelled requests per second.
    rate: f64,
    /// The number of real requests that each of them represents.
    pub stands_for: u64,
    /// The fraction of a request that is left over from the last second.
    rest: f64,
    /// The split by which requests were last assigned, and what new is owed under it.
    split: Weights,
    credit: i64,
    /// The requests of each of the last seconds, old and new.
    recent: VecDeque<PerGeneration<u64>>,
}

impl Arrivals {
    pub fn new(rate: f64, p99: f64) -> Self {
        let lengths = Lengths::with_p99(p99);
        let open = rate * lengths.mean();
        let stands_for = (rate / MAX_RATE).max(open / MAX_OPEN).ceil().max(1.0);
        Self {
            rate: rate / stands_for,
            stands_for: stands_for as u64,
            lengths,
            rest: 0.0,
            split: Weights::ALL_OLD,
            credit: 0,
            recent: VecDeque::new(),
        }
    }

    /// How many streams are open on average.
    pub fn open(&self) -> u64 {
        (self.rate * self.lengths.mean()).round() as u64
    }

    /// How many requests arrive in the next second.
    pub fn next_second(&mut self, analysis: Option<Samples>) -> u64 {
        let window = analysis.map_or(0, |samples| samples.window.as_secs() as usize);
        self.recent.push_back(PerGeneration::default());
        while self.recent.len() > window.max(1) {
            self.recent.pop_front();
        }
        self.rest += self.rate;
        let whole = self.rest.floor();
        self.rest -= whole;
        whole as u64
    }

    /// The generation to which the split assigns the next request.
    pub fn generation(&mut self, split: Weights) -> Generation {
        if self.split != split {
            (self.split, self.credit) = (split, 0);
        }
        let (old, new) = (i64::from(split.old()), i64::from(split.new_weight()));
        self.credit += new;
        match 2 * self.credit >= old + new {
            true => {
                self.credit -= old + new;
                Generation::New
            }
            false => Generation::Old,
        }
    }

    /// The length of the next stream, in whole seconds.
    pub fn length(&mut self) -> u64 {
        self.lengths.draw().ceil() as u64
    }

    /// Records that `generation` has begun a request.
    pub fn begun(&mut self, generation: Generation) {
        if let Some(second) = self.recent.back_mut() {
            let count = match generation {
                Generation::Old => &mut second.old,
                Generation::New => &mut second.new,
            };
            *count += self.stands_for;
        }
    }

    /// The requests that each generation has begun within the window of the analysis.
    pub fn samples(&self) -> PerGeneration<u64> {
        let sum = |generation| {
            self.recent
                .iter()
                .map(|second| *second.of(generation))
                .sum()
        };
        PerGeneration {
            old: sum(Generation::Old),
            new: sum(Generation::New),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_is_exact_over_its_period() {
        let mut arrivals = Arrivals::new(40.0, 60.0);
        let split = Weights::new(3, 1).unwrap();
        let generations = (0..400).map(|_| arrivals.generation(split));
        let new = generations
            .filter(|generation| *generation == Generation::New)
            .count();
        assert_eq!(new, 100);
        assert_eq!(arrivals.generation(Weights::ALL_OLD), Generation::Old);
    }

    #[test]
    fn a_load_that_is_too_much_to_model_is_modelled_in_larger_pieces() {
        for (rate, p99, stands_for) in [
            (40.0, 540.0, 1),
            (1000.0, 60.0, 10),
            (50.0, 86_400.0, 35),
            (0.01, 1.0, 1),
        ] {
            let mut arrivals = Arrivals::new(rate, p99);
            assert_eq!(arrivals.stands_for, stands_for, "{rate}");
            let count: u64 = (0..1000).map(|_| arrivals.next_second(None)).sum();
            let real = (count * stands_for) as f64;
            assert!((real - 1000.0 * rate).abs() <= stands_for as f64, "{real}");
        }
    }
}
