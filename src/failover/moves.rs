//! The pace at which streams are moved off old.

use std::sync::atomic::{AtomicU64, Ordering};

const SECOND: u64 = 1_000_000;

/// The next free turn of a process, in microseconds since it started.
#[derive(Debug, Default)]
pub struct MovePace {
    next: AtomicU64,
}

impl MovePace {
    /// Takes the next turn at `now` or later, of at most `rate` per second. Returns its time. Both times are in microseconds
    /// since the process started.
    pub fn turn(&self, now: u64, rate: u32) -> u64 {
        let apart = SECOND.div_ceil(u64::from(rate.max(1)));
        let mut turn = now;
        let _ = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                turn = next.max(now);
                Some(turn.saturating_add(apart))
            });
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_evenly_spaced_and_the_first_is_immediate() {
        let pace = MovePace::default();
        let turns: Vec<_> = (0..4).map(|_| pace.turn(7, 10)).collect();
        assert_eq!(turns, [7, 100_007, 200_007, 300_007]);
        // Unused turns do not accumulate.
        let later = 60 * SECOND;
        assert_eq!(
            [pace.turn(later, 10), pace.turn(later, 10)],
            [later, later + SECOND / 10]
        );
    }

    #[test]
    fn no_second_has_more_turns_than_the_rate() {
        for rate in [1, 3, 7, 10, 999, 10_000] {
            let pace = MovePace::default();
            let turns: Vec<_> = (0..3 * u64::from(rate))
                .map(|at| pace.turn(at * 10, rate))
                .collect();
            for turns in turns.windows(rate as usize + 1) {
                assert!(turns[rate as usize] - turns[0] >= SECOND, "{rate}");
            }
        }
    }
}
