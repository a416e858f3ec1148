//! When a failure is found, and that it is counted once.

use std::time::Duration;

use crate::analysis::requests;
use crate::analysis::{
    Attempts, Counts, GenerationCounts, Margins, Memory, Outcomes, Stratum, Verdict,
};

#[test]
fn a_failure_is_found_at_once_and_stays() {
    let margins = Margins::default();
    let mut memory = Memory::default();
    memory.look(&margins, Counts::default(), Duration::ZERO);
    let report = memory.look(&margins, requests(90, 10, 9), Duration::from_secs(2));
    assert_eq!(
        report.sentence(),
        "New fails 90.0% of its requests, and old fails 0.0% (10 and 90 requests in 2 s)."
    );
    for second in 3..1000 {
        let report = memory.look(&margins, requests(90, 10, 0), Duration::from_secs(second));
        assert!(matches!(report.verdict, Verdict::Fail(_)));
    }
}

#[test]
fn the_counts_of_an_interim_evaluation_count_once() {
    let margins = Margins::default();
    let counts = requests(18, 2, 2);
    let confidence = |interim_looks: u64| {
        let mut memory = Memory::default();
        memory.look(&margins, Counts::default(), Duration::ZERO);
        for number in 1..=interim_looks {
            let now = Duration::from_millis(50 * number);
            assert!(!memory.interim_look(&margins, &Outcomes::from(&counts), now));
        }
        let report = memory.look(&margins, counts.clone(), Duration::from_secs(1));
        assert!(!matches!(report.verdict, Verdict::Fail(_)));
        report.rows[0].confidence
    };
    let reads = confidence(0);
    assert!(reads > 0.0);
    for interim_looks in [1, 2, 9] {
        assert!(
            (confidence(interim_looks) - reads).abs() < 1e-12,
            "{interim_looks}"
        );
    }
}

#[test]
fn an_interim_look_finds_a_crash_and_the_next_look_says_so() {
    let margins = Margins::default();
    let mut memory = Memory::default();
    let crash = requests(90, 10, 9);
    let outcomes = Outcomes::from(&crash);
    // Before the first look there is nothing to count from.
    assert!(!memory.interim_look(&margins, &outcomes, Duration::from_millis(50)));
    memory.look(&margins, Counts::default(), Duration::from_millis(100));
    assert!(!memory.interim_look(&margins, &outcomes, Duration::from_millis(150)));
    assert!(memory.interim_look(&margins, &outcomes, Duration::from_millis(200)));
    let report = memory.look(&margins, crash, Duration::from_millis(200));
    assert!(matches!(report.verdict, Verdict::Fail(_)));
    // It is known by now.
    assert!(!memory.interim_look(&margins, &Outcomes::default(), Duration::from_millis(250)));
}

/// Hours of good traffic do not delay the verdict on a crash.
#[test]
fn a_late_crash_is_found_as_soon() {
    let margins = Margins::default();
    let mut memory = Memory::default();
    memory.look(&margins, Counts::default(), Duration::ZERO);
    for look in 1..=720 {
        let report = memory.look(
            &margins,
            requests(225, 25, 0),
            Duration::from_secs(5 * look),
        );
        assert!(!matches!(report.verdict, Verdict::Fail(_)));
    }
    let report = memory.look(&margins, requests(90, 10, 9), Duration::from_secs(3602));
    assert!(
        matches!(report.verdict, Verdict::Fail(_)),
        "{:?}",
        report.rows[0]
    );
}

/// At a share of 10% of 50 requests a second, new's next ten requests come within two seconds.
#[test]
fn a_late_crash_is_found_after_at_most_seven_failures_at_any_time() {
    let margins = Margins::default();
    for good in [0, 720, 7200] {
        let mut memory = Memory::default();
        memory.look(&margins, Counts::default(), Duration::ZERO);
        for look in 1..=good {
            memory.look(
                &margins,
                requests(225, 25, 0),
                Duration::from_secs(5 * look),
            );
        }
        let began = Duration::from_secs(5 * good);
        let failures = (1..).find(|number| {
            let now = began + Duration::from_millis(200) * *number;
            let report = memory.look(&margins, requests(9, 1, 1), now);
            matches!(report.verdict, Verdict::Fail(_))
        });
        assert!(
            failures.is_some_and(|failures| failures <= 7),
            "{good} {failures:?}"
        );
    }
}

/// Streams that began while new had half of the requests fail after it has nearly none.
#[test]
fn failures_of_earlier_requests_do_not_count_against_the_few_that_begin_now() {
    let margins = Margins::default();
    let mut memory = Memory::default();
    memory.look(&margins, Counts::default(), Duration::ZERO);
    let counts = |old: [u64; 3], new: [u64; 3]| {
        let generation = |[started, ended, failed]: [u64; 3]| {
            GenerationCounts::from(Attempts {
                started,
                decided: started.max(ended),
                ended,
                failed,
                ..Attempts::default()
            })
        };
        let class = "chat".into();
        Counts(
            [(
                Stratum { class, size: 1 },
                [generation(old), generation(new)],
            )]
            .into(),
        )
    };
    for look in 1..=100_u64 {
        let (old, new) = if look <= 60 {
            ([125, 125, 1], [125, 125, 1])
        } else if look <= 72 {
            ([249, 125, 1], [1, 125, 1])
        } else {
            ([249, 249, 2], [1, 1, 0])
        };
        let report = memory.look(&margins, counts(old, new), Duration::from_secs(5 * look));
        assert!(
            !matches!(report.verdict, Verdict::Fail(_)),
            "{look}: {}",
            report.sentence()
        );
    }
}
