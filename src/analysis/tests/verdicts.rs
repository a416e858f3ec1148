//! Verdicts of simulated rollouts and of single looks.

use std::time::Duration;

use super::simulator::{Arrivals, Behaviour, LARGE, Traffic, USUAL, rollout};
use super::table;
use crate::analysis::{
    Attempts, Counts, Memory, Metric, Outcomes, Report, Rules, Side, Stratum, Verdict, Why,
};
use crate::latency::Sketch;

/// Looks at `counts`, five seconds each.
fn looks(rules: &Rules, counts: impl IntoIterator<Item = Counts>) -> Report {
    let mut memory = Memory::default();
    let mut report = memory.look(rules, Counts::default(), Duration::ZERO);
    for (number, counts) in (1..).zip(counts) {
        report = memory.look(rules, counts, Duration::from_secs(5 * number));
    }
    report
}

/// Requests of both sides, and how many of new's failed.
fn requests(old: u64, new: u64, failed: u64) -> Counts {
    let side = |started, failed| {
        Side::from(Attempts {
            started,
            ended: started,
            completed: started - failed,
            decided: started,
            failed,
            ..Attempts::default()
        })
    };
    let class = "chat".into();
    Counts(
        [(
            Stratum { class, size: 1 },
            [side(old, 0), side(new, failed)],
        )]
        .into(),
    )
}

/// The same, changed by `change`.
fn changed(mut counts: Counts, change: impl Fn(&mut [Side; 2])) -> Counts {
    counts.0.values_mut().for_each(change);
    counts
}

/// The simulations of the table, with fewer rollouts of an hour's first minutes.
#[test]
fn equal_sides_are_not_failed_and_worse_ones_are_found() {
    for case in table::cases() {
        let (rollouts, seconds) = if case.finds {
            (4, case.seconds)
        } else {
            (6, 300.0)
        };
        let case = table::Case { seconds, ..case };
        // These take an hour; the table has them.
        if case.finds && case.is_slow {
            continue;
        }
        let (failed, _, _) = table::run(&case, rollouts, 7);
        let expected = if case.finds { 1.0 } else { 0.0 };
        assert!(
            (failed - expected).abs() < f64::EPSILON,
            "{}: {failed}",
            case.what
        );
    }
}

#[test]
fn the_metric_that_is_worse_is_named() {
    let traffic = |new| Traffic {
        rate: 50.0,
        percent: 20,
        old: USUAL,
        new,
        earlier: USUAL,
        good_for: 0.0,
        look: 5.0,
        interim_looks: 1,
        only_outcomes: false,
    };
    for (new, metrics) in [
        (
            Behaviour {
                failures: 0.1,
                ..USUAL
            },
            &[Metric::Failures][..],
        ),
        (
            Behaviour {
                first_event: 2.0,
                ..USUAL
            },
            &[Metric::FirstTokenP50, Metric::FirstTokenP95],
        ),
        (
            Behaviour { gap: 2.0, ..USUAL },
            &[Metric::GapP99, Metric::TimePerToken],
        ),
    ] {
        let (time, report) = rollout(3, &Rules::default(), &traffic(new), 600.0);
        let Verdict::Fail(row) = report.verdict else {
            panic!("{:?} {:?}", report.verdict, metrics);
        };
        assert!(metrics.contains(&row.metric) && time.is_some(), "{row:?}");
        assert!(row.confidence >= 0.99 && row.is_worse(), "{row:?}");
    }
}

/// Old's figures are those of new's mix.
#[test]
fn a_mix_that_differs_does_not_show_in_the_figures() {
    let traffic = Traffic {
        rate: 500.0,
        percent: 50,
        old: USUAL,
        new: Behaviour {
            mix: LARGE,
            ..USUAL
        },
        earlier: USUAL,
        good_for: 0.0,
        look: 5.0,
        interim_looks: 1,
        only_outcomes: false,
    };
    let mut arrivals = Arrivals::new(5);
    let report = looks(&Rules::default(), (0..20).map(|_| arrivals.look(&traffic)));
    for row in &report.rows {
        let [Some(old), Some(new)] = row.figures else {
            panic!("{row:?}");
        };
        let off = new / old - 1.0;
        let allowed = if row.metric == Metric::Failures {
            0.3
        } else {
            0.1
        };
        assert!(off.abs() < allowed, "{row:?}");
    }
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.sentence());
}

#[test]
fn without_traffic_or_with_little_there_is_no_verdict() {
    let rules = Rules::default();
    let idle = looks(&rules, [requests(0, 0, 0)]);
    assert_eq!(idle.verdict, Verdict::Inconclusive(Why::NoTraffic));
    let few = looks(&rules, [requests(5000, 199, 0)]);
    assert_eq!(
        few.verdict,
        Verdict::Inconclusive(Why::TooFew("new", 199, 200))
    );
    assert_eq!(
        few.sentence(),
        "Not enough data: new began 199 requests in 5 s; 200 are needed."
    );
    let none = looks(&rules, [requests(5000, 0, 0)]);
    assert_eq!(
        none.verdict,
        Verdict::Inconclusive(Why::TooFew("new", 0, 200))
    );
    let alone = looks(&rules, [requests(0, 5000, 4000)]);
    assert_eq!(
        alone.verdict,
        Verdict::Inconclusive(Why::TooFew("old", 0, 200)),
        "nothing to compare with"
    );
    // Six minutes later, what came before counts no more.
    let mut reads = vec![requests(5000, 500, 0)];
    reads.extend((0..72).map(|_| Counts::default()));
    let ended = looks(&rules, reads);
    assert_eq!(ended.verdict, Verdict::Inconclusive(Why::NoTraffic));
}

#[test]
fn requests_without_streams_pass_by_their_outcomes() {
    let report = looks(&Rules::default(), (0..10).map(|_| requests(200, 100, 0)));
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.sentence());
}

/// Two dead sides are equal.
#[test]
fn new_passes_only_if_it_completed_enough_requests() {
    let rules = Rules::default();
    // Both sides fail everything, or all clients give up.
    let fail = |sides: &mut [Side; 2]| {
        for side in sides {
            let attempts = &mut side.attempts;
            (attempts.completed, attempts.failed) = (0, attempts.started);
        }
    };
    let give_up = |sides: &mut [Side; 2]| {
        sides
            .iter_mut()
            .for_each(|side| side.attempts.completed = 0)
    };
    for dead in [
        changed(requests(2000, 1000, 0), fail),
        changed(requests(2000, 1000, 0), give_up),
    ] {
        let report = looks(&rules, (0..10).map(|_| dead.clone()));
        let why = Why::FewCompleted(0, 200);
        assert_eq!(report.verdict, Verdict::Inconclusive(why));
        assert_eq!(
            report.sentence(),
            "Not enough data: new completed 0 requests in 50 s; 200 are needed."
        );
    }
    for (completed, passes) in [(199, false), (200, true)] {
        let few = changed(requests(2000, 1000, 0), |[_, new]| {
            new.attempts.completed = completed
        });
        let report = looks(&rules, [few]);
        assert_eq!(
            report.verdict == Verdict::Pass,
            passes,
            "{}",
            report.sentence()
        );
    }
}

/// Frontends whose workers are gone still tell their models.
#[test]
fn new_that_fails_most_requests_of_a_class_does_not_pass_though_old_fails_them_as_well() {
    let counts = |failed| {
        let mut counts = changed(requests(1000, 500, failed), |[old, new]| {
            old.attempts.failed = new.attempts.failed * 2;
        });
        let [others] = requests(1000, 500, 0)
            .0
            .into_values()
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let class = "other".into();
        counts.0.insert(Stratum { class, size: 1 }, others);
        counts
    };
    for (failed, passes) in [(250, true), (251, false), (500, false)] {
        let report = looks(&Rules::default(), [counts(failed)]);
        let sentence = report.sentence();
        assert_eq!(report.verdict == Verdict::Pass, passes, "{sentence}");
        let all = "New fails 100.0 % of requests, old 100.0 % (500 and 1,000 in 5 s), of the API class 'chat'; that is too many for a pass.";
        assert!(failed < 500 || sentence == all, "{sentence}");
    }
}

/// Of a request that is stuck, nothing is known until it ends.
#[test]
fn new_whose_requests_hang_does_not_pass() {
    let hang = |old: u64, new: u64| {
        let mut counts = requests(2000, 1000, 0);
        for sides in counts.0.values_mut() {
            for (side, hung) in sides.iter_mut().zip([old, new]) {
                side.attempts.started += hung;
            }
        }
        counts
    };
    for (old, new, passes) in [(0, 0, true), (0, 10, true), (0, 40, false), (80, 40, true)] {
        let report = looks(&Rules::default(), [hang(old, new)]);
        let is = report.verdict == Verdict::Pass;
        assert_eq!(is, passes, "{old} {new}: {}", report.sentence());
        if !passes {
            let expected = "40 of new's requests have no result (in flight, or failed in a session and not answered by old), a larger part than of old's.";
            assert_eq!(report.sentence(), expected);
        }
    }
}

#[test]
fn new_that_looks_worse_without_enough_evidence_does_not_pass() {
    let report = looks(&Rules::default(), [requests(1000, 250, 2)]);
    let Verdict::Inconclusive(Why::Unclear(row)) = &report.verdict else {
        panic!("{:?}", report.verdict);
    };
    assert!(row.metric == Metric::Failures && row.confidence < 0.99);
    assert_eq!(
        report.sentence(),
        "New fails 0.80 % of requests, old 0.0 % (250 and 1,000 in 5 s); that is not enough evidence yet."
    );
}

#[test]
fn a_failure_is_found_at_once_and_stays() {
    let rules = Rules::default();
    let mut memory = Memory::default();
    memory.look(&rules, Counts::default(), Duration::ZERO);
    let report = memory.look(&rules, requests(90, 10, 9), Duration::from_secs(2));
    assert_eq!(
        report.sentence(),
        "New fails 90.0 % of requests, old 0.0 % (10 and 90 in 2 s)."
    );
    for second in 3..1000 {
        let report = memory.look(&rules, requests(90, 10, 0), Duration::from_secs(second));
        assert!(matches!(report.verdict, Verdict::Fail(_)));
    }
}

#[test]
fn what_an_interim_look_took_in_counts_once() {
    let rules = Rules::default();
    let counts = requests(18, 2, 2);
    let confidence = |interim_looks: u64| {
        let mut memory = Memory::default();
        memory.look(&rules, Counts::default(), Duration::ZERO);
        for number in 1..=interim_looks {
            let now = Duration::from_millis(50 * number);
            assert!(!memory.interim_look(&rules, &Outcomes::from(&counts), now));
        }
        let report = memory.look(&rules, counts.clone(), Duration::from_secs(1));
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
    let rules = Rules::default();
    let mut memory = Memory::default();
    let crash = requests(90, 10, 9);
    let outcomes = Outcomes::from(&crash);
    // Before the first look there is nothing to count from.
    assert!(!memory.interim_look(&rules, &outcomes, Duration::from_millis(50)));
    memory.look(&rules, Counts::default(), Duration::from_millis(100));
    assert!(!memory.interim_look(&rules, &outcomes, Duration::from_millis(150)));
    assert!(memory.interim_look(&rules, &outcomes, Duration::from_millis(200)));
    let report = memory.look(&rules, crash, Duration::from_millis(200));
    assert!(matches!(report.verdict, Verdict::Fail(_)));
    // It is known by now.
    assert!(!memory.interim_look(&rules, &Outcomes::default(), Duration::from_millis(250)));
}

/// What is in flight has neither failed nor succeeded.
#[test]
fn requests_in_flight_dilute_no_figure_and_pass_nothing() {
    let new = |started, decided, failed| {
        Side::from(Attempts {
            started,
            decided,
            ended: decided,
            failed,
            ..Attempts::default()
        })
    };
    let counts = |new: Side| {
        let mut counts = requests(400, 0, 0);
        for [_, side] in counts.0.values_mut() {
            *side = new.clone();
        }
        counts
    };
    let report = looks(&Rules::default(), [counts(new(63, 43, 43))]);
    assert_eq!(
        report.sentence(),
        "New fails 100.0 % of requests, old 0.0 % (43 and 400 in 5 s)."
    );
    let hangs = looks(&Rules::default(), [counts(new(400, 0, 0))]);
    assert_eq!(
        hangs.sentence(),
        "400 of new's requests have no result (in flight, or failed in a session and not answered by old), a larger part than of old's."
    );
    let mut both = counts(new(400, 0, 0));
    for [old, new] in both.0.values_mut() {
        *old = new.clone();
    }
    assert_eq!(
        looks(&Rules::default(), [both]).sentence(),
        "Not enough data: 0 requests of new were answered or failed in 5 s; 200 are needed."
    );
}

/// Hours of good traffic do not delay the verdict on a crash.
#[test]
fn a_late_crash_is_found_as_soon() {
    let rules = Rules::default();
    let mut memory = Memory::default();
    memory.look(&rules, Counts::default(), Duration::ZERO);
    for look in 1..=720 {
        let report = memory.look(&rules, requests(225, 25, 0), Duration::from_secs(5 * look));
        assert!(!matches!(report.verdict, Verdict::Fail(_)));
    }
    let report = memory.look(&rules, requests(90, 10, 9), Duration::from_secs(3602));
    assert!(
        matches!(report.verdict, Verdict::Fail(_)),
        "{:?}",
        report.rows[0]
    );
}

/// Streams that began while new had half of the requests fail after it has nearly none.
#[test]
fn failures_of_earlier_requests_do_not_count_against_the_few_that_begin_now() {
    let rules = Rules::default();
    let mut memory = Memory::default();
    memory.look(&rules, Counts::default(), Duration::ZERO);
    let counts = |old: [u64; 3], new: [u64; 3]| {
        let side = |[started, ended, failed]: [u64; 3]| {
            Side::from(Attempts {
                started,
                decided: started.max(ended),
                ended,
                failed,
                ..Attempts::default()
            })
        };
        let class = "chat".into();
        Counts([(Stratum { class, size: 1 }, [side(old), side(new)])].into())
    };
    for look in 1..=100_u64 {
        let (old, new) = if look <= 60 {
            ([125, 125, 1], [125, 125, 1])
        } else if look <= 72 {
            ([249, 125, 1], [1, 125, 1])
        } else {
            ([249, 249, 2], [1, 1, 0])
        };
        let report = memory.look(&rules, counts(old, new), Duration::from_secs(5 * look));
        assert!(
            !matches!(report.verdict, Verdict::Fail(_)),
            "{look}: {}",
            report.sentence()
        );
    }
}

/// All requests of one look are slow, and none before or after.
#[test]
fn one_pause_decides_nothing() {
    let rules = Rules::default();
    let mut arrivals = Arrivals::new(11);
    let traffic = Traffic {
        rate: 50.0,
        percent: 20,
        old: USUAL,
        new: USUAL,
        earlier: USUAL,
        good_for: 0.0,
        look: 5.0,
        interim_looks: 1,
        only_outcomes: false,
    };
    let stalled = Traffic {
        new: Behaviour {
            first_event: 20.0,
            ..USUAL
        },
        ..traffic
    };
    let counts =
        (0..200).map(|number| arrivals.look(if number == 100 { &stalled } else { &traffic }));
    let report = looks(&rules, counts);
    assert!(
        !matches!(report.verdict, Verdict::Fail(_)),
        "{}",
        report.sentence()
    );
}

#[test]
fn a_sentence_names_the_figures_of_both_sides() {
    let slow = |bucket, count| Side {
        attempts: Attempts {
            started: count,
            ended: count,
            decided: count,
            ..Attempts::default()
        },
        first_event: Sketch::new([(bucket, count)], 0),
        ..Side::default()
    };
    let class: Box<str> = "chat".into();
    let counts = || {
        let stratum = Stratum {
            class: class.clone(),
            size: 1,
        };
        Counts([(stratum, [slow(300, 1000), slow(340, 100)])].into())
    };
    let report = looks(&Rules::default(), (0..40).map(|_| counts()));
    assert_eq!(
        report.sentence(),
        "New's first token, p50 is 840 ms, old's 356 ms (600 and 6,000 in 30 s)."
    );
}
