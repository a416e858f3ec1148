//! From the counts of proxies to what was counted between two looks.

use std::time::Duration;

use crate::analysis::{Accumulator, Attempts, Counts, MAX_STRATA, Reading, Side, Stratum};
use crate::latency::Sketch;

fn counts(started: u64) -> Counts {
    let stratum = Stratum {
        class: "chat".into(),
        size: 2,
    };
    let attempts = Attempts {
        started,
        ended: started,
        decided: started,
        ..Attempts::default()
    };
    let side = Side {
        attempts,
        first_event: Sketch::new([(40, started)], 0),
        ..Side::default()
    };
    Counts([(stratum, [side.clone(), side])].into())
}

fn reading(proxy: &str, process: &str, uptime: u64, started: u64) -> Reading {
    Reading {
        proxy: proxy.to_owned(),
        process: process.to_owned(),
        uptime: Duration::from_secs(uptime),
        counts: counts(started),
    }
}

/// What new began, per look, and the number of its values.
fn begun(counts: &Counts) -> u64 {
    let [_, new] = counts.total();
    assert_eq!(new.first_event.count(), new.attempts.started);
    new.attempts.started
}

struct Looks(Accumulator);

impl Looks {
    fn at(&mut self, now: u64, readings: Vec<Reading>) -> u64 {
        begun(&self.0.since_last(readings, Duration::from_secs(now)))
    }
}

#[test]
fn only_what_was_counted_since_the_comparison_began_counts_and_once() {
    let mut looks = Looks(Accumulator::default());
    assert_eq!(looks.at(100, vec![reading("a", "1", 5000, 700)]), 0);
    assert_eq!(looks.at(105, vec![reading("a", "1", 5005, 730)]), 30);
    assert_eq!(looks.at(110, vec![reading("a", "1", 5010, 730)]), 0);
    // It was not seen for some looks, and is counted from where it was.
    assert_eq!(looks.at(115, vec![]), 0);
    assert_eq!(looks.at(120, vec![reading("a", "1", 5020, 760)]), 30);
}

#[test]
fn a_restarted_proxy_is_counted_from_zero_and_one_that_joins_late_only_if_it_is_young() {
    let mut looks = Looks(Accumulator::default());
    looks.at(0, vec![reading("a", "1", 5000, 700)]);
    // It has counted 20 since its restart, all of them since the comparison began.
    assert_eq!(looks.at(10, vec![reading("a", "2", 4, 20)]), 20);
    assert_eq!(looks.at(15, vec![reading("a", "2", 9, 25)]), 5);
    // A new pod, and one that was there all the time but could not be asked.
    assert_eq!(
        looks.at(
            20,
            vec![reading("b", "1", 3, 8), reading("c", "1", 900, 5000)]
        ),
        8
    );
    assert_eq!(looks.at(25, vec![reading("c", "1", 905, 5001)]), 1);
    // The old process answers once more.
    assert_eq!(looks.at(30, vec![reading("a", "1", 5030, 701)]), 1);
}

#[test]
fn a_decreasing_count_within_a_process_is_ignored() {
    let mut looks = Looks(Accumulator::default());
    looks.at(0, vec![reading("a", "1", 5000, 700)]);
    assert_eq!(looks.at(5, vec![reading("a", "1", 5005, 3)]), 0);
    assert_eq!(looks.at(10, vec![reading("a", "1", 5010, 10)]), 7);
}

#[test]
fn a_process_that_was_forgotten_is_not_counted_again() {
    let mut looks = Looks(Accumulator::default());
    looks.at(0, vec![]);
    assert_eq!(looks.at(60, vec![reading("a", "1", 30, 20)]), 20);
    looks.at(2000, vec![]);
    assert_eq!(looks.at(2005, vec![reading("a", "1", 1975, 900)]), 0);
    assert_eq!(looks.at(2010, vec![reading("a", "1", 1980, 905)]), 5);
}

#[test]
fn forged_values_of_proxies_are_bounded() {
    let mut looks = Accumulator::default();
    let many = |count: u32| {
        let readings = (0..count).map(|number| reading(&number.to_string(), "1", 1, 1));
        readings.collect::<Vec<_>>()
    };
    looks.since_last(vec![], Duration::ZERO);
    let first = looks.since_last(many(10_000), Duration::from_secs(10));
    let again = looks.since_last(many(10_000), Duration::from_secs(20));
    assert_eq!((begun(&first), begun(&again)), (4096, 0));
    let mut all = Counts::default();
    for class in 0..1000 {
        let [(_, sides)] = [counts(1).0.into_iter().next().unwrap()];
        let class = class.to_string().into();
        all.add(&Counts([(Stratum { class, size: 0 }, sides)].into()));
    }
    assert_eq!(all.0.len(), MAX_STRATA);
}
