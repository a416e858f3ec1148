//! From the counts of proxies to what was counted between two looks.

use std::time::Duration;

use crate::analysis::{
    Accumulator, Attempts, Counts, GenerationCounts, MAX_STRATA, Reading, Stratum,
};
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
    let generation = GenerationCounts {
        attempts,
        first_event: Sketch::new([(40, started)], 0),
        ..GenerationCounts::default()
    };
    Counts([(stratum, [generation.clone(), generation])].into())
}

fn reading(proxy: &str, process: &str, uptime: u64, started: u64) -> Reading {
    Reading {
        proxy: proxy.to_owned(),
        process: process.to_owned(),
        age: Duration::ZERO,
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
        let now = Duration::from_secs(now);
        let [counts] = self.0.since_last(readings, now, [Duration::ZERO]);
        begun(&counts)
    }
}

#[test]
fn only_what_was_counted_since_the_comparison_began_counts_and_once() {
    let mut looks = Looks(Accumulator::default());
    assert_eq!(looks.at(100, vec![reading("a", "1", 5000, 700)]), 0);
    assert_eq!(looks.at(105, vec![reading("a", "1", 5005, 730)]), 30);
    assert_eq!(looks.at(110, vec![reading("a", "1", 5010, 730)]), 0);
    // It was not seen for a look, and is counted from where it was.
    assert_eq!(looks.at(115, vec![]), 0);
    assert_eq!(looks.at(120, vec![reading("a", "1", 5020, 760)]), 30);
}

#[test]
fn what_was_counted_in_a_long_gap_is_ignored() {
    let mut looks = Looks(Accumulator::default());
    looks.at(0, vec![reading("a", "1", 5000, 700)]);
    for now in [5, 10, 15, 20, 49] {
        assert_eq!(looks.at(now, vec![]), 0);
    }
    assert_eq!(looks.at(50, vec![reading("a", "1", 5050, 2200)]), 0);
    assert_eq!(looks.at(51, vec![reading("a", "1", 5051, 2201)]), 1);
    // Another one started in the meantime, but was not seen until later.
    assert_eq!(looks.at(52, vec![reading("b", "1", 40, 900)]), 0);
    assert_eq!(looks.at(53, vec![reading("b", "1", 41, 902)]), 2);
    // If all looks are far apart, there is no gap.
    assert_eq!(looks.at(153, vec![reading("b", "1", 141, 1902)]), 1000);
    // If the caller pauses while the reports go on, the last one may be older than its last look.
    let mut late = reading("b", "1", 141, 1902);
    late.age = Duration::from_secs(1);
    assert_eq!(looks.at(154, vec![late]), 0);
    assert_eq!(looks.at(254, vec![reading("b", "1", 242, 2902)]), 0);
}

#[test]
fn what_may_have_been_counted_before_the_time_in_question_is_left_out() {
    let mut looks = Accumulator::default();
    let mut look = |now, age, counted| {
        let mut reading = reading("a", "1", 5000 + now - age, counted);
        reading.age = Duration::from_secs(age);
        let from = [Duration::ZERO, Duration::from_secs(100), Duration::MAX];
        let counts = looks.since_last([reading], Duration::from_secs(now), from);
        counts.each_ref().map(begun)
    };
    assert_eq!(look(98, 0, 700), [0, 0, 0]);
    // Reported before, and counted in part before.
    assert_eq!(look(100, 1, 710), [10, 0, 0]);
    assert_eq!(look(102, 0, 730), [20, 0, 0]);
    assert_eq!(look(104, 1, 735), [5, 5, 0]);
    assert_eq!(look(105, 0, 745), [10, 10, 0]);
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
    // The old process answers once more, after so long that it is unknown when it counted.
    assert_eq!(looks.at(30, vec![reading("a", "1", 5030, 701)]), 0);
    assert_eq!(looks.at(31, vec![reading("a", "1", 5031, 702)]), 1);
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
    looks.at(50, vec![]);
    assert_eq!(looks.at(60, vec![reading("a", "1", 9, 20)]), 20);
    looks.at(2000, vec![]);
    assert_eq!(looks.at(2005, vec![reading("a", "1", 1975, 900)]), 0);
    assert_eq!(looks.at(2010, vec![reading("a", "1", 1980, 905)]), 5);
}

#[test]
fn forged_values_of_proxies_are_bounded() {
    let mut looks = Looks(Accumulator::default());
    let many = |count: u32| {
        let readings = (0..count).map(|number| reading(&number.to_string(), "1", 1, 1));
        readings.collect::<Vec<_>>()
    };
    looks.at(0, vec![]);
    let first = looks.at(10, many(10_000));
    let again = looks.at(20, many(10_000));
    assert_eq!((first, again), (4096, 0));
    let mut all = Counts::default();
    for class in 0..1000 {
        let [(_, generations)] = [counts(1).0.into_iter().next().unwrap()];
        let class = class.to_string().into();
        all.add(&Counts([(Stratum { class, size: 0 }, generations)].into()));
    }
    assert_eq!(all.0.len(), MAX_STRATA);
}
