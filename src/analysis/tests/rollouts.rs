//! Verdicts of simulated rollouts.

use super::fixture::looks;
use super::simulator::{Arrivals, Behaviour, LARGE, Traffic, USUAL, rollout};
use super::table;
use crate::analysis::{Margins, Metric, Verdict};

/// The simulations of the table, with fewer rollouts of an hour's first minutes.
#[test]
fn equal_generations_are_not_failed_and_worse_ones_are_found() {
    for case in table::cases() {
        let (rollouts, seconds) = if case.finds {
            (2, case.seconds)
        } else {
            (2, 300.0)
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
        percent: 20,
        ..table::traffic(new)
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
        let (time, report) = rollout(3, &Margins::default(), &traffic(new), 600.0);
        let Verdict::Fail(row) = report.verdict else {
            panic!("{:?} {:?}", report.verdict, metrics);
        };
        assert!(metrics.contains(&row.metric) && time.is_some(), "{row:?}");
        assert!(row.confidence >= 0.99 && row.is_worse(), "{row:?}");
    }
}

/// Old's figures are those of new's mix.
#[test]
fn a_different_mix_of_requests_does_not_change_the_figures() {
    let traffic = Traffic {
        rate: 500.0,
        percent: 50,
        ..table::traffic(Behaviour {
            mix: LARGE,
            ..USUAL
        })
    };
    let mut arrivals = Arrivals::new(5);
    let report = looks(
        &Margins::default(),
        (0..20).map(|_| arrivals.look(&traffic)),
    );
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

/// All requests of one look are slow, and none before or after.
#[test]
fn one_pause_decides_nothing() {
    let margins = Margins::default();
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
    let report = looks(&margins, counts);
    assert!(
        !matches!(report.verdict, Verdict::Fail(_)),
        "{}",
        report.sentence()
    );
}
