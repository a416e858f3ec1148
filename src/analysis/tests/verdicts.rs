//! What a single look passes, and how its result is described.

use super::fixture::{changed, looks};
use crate::analysis::requests;
use crate::analysis::{
    Attempts, Counts, GenerationCounts, Margins, Metric, NoVerdict, Stratum, Verdict,
};
use crate::latency::Sketch;

#[test]
fn without_traffic_or_with_little_there_is_no_verdict() {
    let margins = Margins::default();
    let idle = looks(&margins, [requests(0, 0, 0)]);
    assert_eq!(idle.verdict, Verdict::Inconclusive(NoVerdict::NoTraffic));
    let few = looks(&margins, [requests(5000, 199, 0)]);
    assert_eq!(
        few.verdict,
        Verdict::Inconclusive(NoVerdict::TooFew("new", 199, 200))
    );
    assert_eq!(
        few.sentence(),
        "Not enough data: new received only 199 requests in 5 s; at least 200 are needed."
    );
    let none = looks(&margins, [requests(5000, 0, 0)]);
    assert_eq!(
        none.verdict,
        Verdict::Inconclusive(NoVerdict::TooFew("new", 0, 200))
    );
    let alone = looks(&margins, [requests(0, 5000, 4000)]);
    assert_eq!(
        alone.verdict,
        Verdict::Inconclusive(NoVerdict::TooFew("old", 0, 200)),
        "nothing to compare with"
    );
    // Six minutes later, what came before counts no more.
    let mut reads = vec![requests(5000, 500, 0)];
    reads.extend((0..72).map(|_| Counts::default()));
    let ended = looks(&margins, reads);
    assert_eq!(ended.verdict, Verdict::Inconclusive(NoVerdict::NoTraffic));
}

#[test]
fn requests_without_streams_pass_by_their_outcomes() {
    let report = looks(&Margins::default(), (0..10).map(|_| requests(200, 100, 0)));
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.sentence());
}

/// Two dead generations are equal.
#[test]
fn new_passes_only_if_it_completed_enough_requests() {
    let margins = Margins::default();
    // Both generations fail everything, or all clients give up.
    let fail = |generations: &mut [GenerationCounts; 2]| {
        for generation in generations {
            let attempts = &mut generation.attempts;
            (attempts.completed, attempts.failed) = (0, attempts.started);
        }
    };
    let give_up = |generations: &mut [GenerationCounts; 2]| {
        generations
            .iter_mut()
            .for_each(|generation| generation.attempts.completed = 0)
    };
    for dead in [
        changed(requests(2000, 1000, 0), fail),
        changed(requests(2000, 1000, 0), give_up),
    ] {
        let report = looks(&margins, (0..10).map(|_| dead.clone()));
        let why = NoVerdict::FewCompleted(0, 200);
        assert_eq!(report.verdict, Verdict::Inconclusive(why));
        assert_eq!(
            report.sentence(),
            "Not enough data: new completed no requests in 50 s; at least 200 are needed."
        );
    }
    for (completed, passes) in [(199, false), (200, true)] {
        let few = changed(requests(2000, 1000, 0), |[_, new]| {
            new.attempts.completed = completed
        });
        let report = looks(&margins, [few]);
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
        let report = looks(&Margins::default(), [counts(failed)]);
        let sentence = report.sentence();
        assert_eq!(report.verdict == Verdict::Pass, passes, "{sentence}");
        let all = "New fails 100.0% of its requests, and old fails 100.0% (500 and 1,000 requests of the API class 'chat' in 5 s); that is too many for a pass.";
        assert!(failed < 500 || sentence == all, "{sentence}");
    }
}

/// A rare class is compared with old's, so that a client whose requests no server accepts does not stop every update.
#[test]
fn new_that_fails_most_requests_of_a_rare_class_does_not_pass_if_old_answers_them() {
    let counts = |[old, new]: [u64; 2], [old_failed, new_failed]: [u64; 2]| {
        let mut counts = requests(12_000, 12_000, 0);
        let rare = changed(requests(old, new, 0), |[old, new]| {
            (old.attempts.failed, new.attempts.failed) = (old_failed, new_failed);
        });
        let [generations] = <[_; 1]>::try_from(rare.0.into_values().collect::<Vec<_>>()).unwrap();
        let class = "embeddings".into();
        counts.0.insert(Stratum { class, size: 1 }, generations);
        counts
    };
    for (all, failed, passes) in [
        ([5, 5], [0, 5], false),
        ([50, 50], [25, 26], false),
        ([0, 5], [0, 5], false),
        ([50, 50], [25, 25], true),
        // Too few to tell.
        ([4, 4], [0, 4], true),
        // No server accepts them.
        ([50, 50], [50, 50], true),
    ] {
        let report = looks(&Margins::default(), [counts(all, failed)]);
        let sentence = report.sentence();
        assert_eq!(
            report.verdict == Verdict::Pass,
            passes,
            "{all:?}: {sentence}"
        );
        assert!(passes || sentence.contains("'embeddings'"), "{sentence}");
    }
}

/// Of a request that is stuck, nothing is known until it ends.
#[test]
fn new_whose_requests_hang_does_not_pass() {
    let hang = |old: u64, new: u64| {
        let mut counts = requests(2000, 1000, 0);
        for generations in counts.0.values_mut() {
            for (generation, hung) in generations.iter_mut().zip([old, new]) {
                generation.attempts.started += hung;
            }
        }
        counts
    };
    for (old, new, passes) in [(0, 0, true), (0, 10, true), (0, 40, false), (80, 40, true)] {
        let report = looks(&Margins::default(), [hang(old, new)]);
        let is = report.verdict == Verdict::Pass;
        assert_eq!(is, passes, "{old} {new}: {}", report.sentence());
        if !passes {
            let expected = "40 of new's requests have no result yet (still in flight, or failed in a session and not answered by old); this is a larger share than of old's requests.";
            assert_eq!(report.sentence(), expected);
        }
    }
}

#[test]
fn new_that_looks_worse_without_enough_evidence_does_not_pass() {
    let report = looks(&Margins::default(), [requests(1000, 250, 2)]);
    let Verdict::Inconclusive(NoVerdict::Unclear(row)) = &report.verdict else {
        panic!("{:?}", report.verdict);
    };
    assert!(row.metric == Metric::Failures && row.confidence < 0.99);
    assert_eq!(
        report.sentence(),
        "New fails 0.80% of its requests, and old fails 0.0% (250 and 1,000 requests in 5 s); that is not enough evidence yet."
    );
}

/// What is in flight has neither failed nor succeeded.
#[test]
fn requests_in_flight_dilute_no_figure_and_pass_nothing() {
    let new = |started, decided, failed| {
        GenerationCounts::from(Attempts {
            started,
            decided,
            ended: decided,
            failed,
            ..Attempts::default()
        })
    };
    let counts = |new: GenerationCounts| {
        let mut counts = requests(400, 0, 0);
        for [_, generation] in counts.0.values_mut() {
            *generation = new.clone();
        }
        counts
    };
    let report = looks(&Margins::default(), [counts(new(63, 43, 43))]);
    assert_eq!(
        report.sentence(),
        "New fails 100.0% of its requests, and old fails 0.0% (43 and 400 requests in 5 s)."
    );
    let hangs = looks(&Margins::default(), [counts(new(400, 0, 0))]);
    assert_eq!(
        hangs.sentence(),
        "400 of new's requests have no result yet (still in flight, or failed in a session and not answered by old); this is a larger share than of old's requests."
    );
    let mut both = counts(new(400, 0, 0));
    for [old, new] in both.0.values_mut() {
        *old = new.clone();
    }
    assert_eq!(
        looks(&Margins::default(), [both]).sentence(),
        "Not enough data: new answered or failed no requests in 5 s; at least 200 are needed."
    );
}

#[test]
fn a_sentence_names_the_figures_of_both_generations() {
    let slow = |bucket, count| GenerationCounts {
        attempts: Attempts {
            started: count,
            ended: count,
            decided: count,
            ..Attempts::default()
        },
        first_event: Sketch::new([(bucket, count)], 0),
        ..GenerationCounts::default()
    };
    let class: Box<str> = "chat".into();
    let counts = || {
        let stratum = Stratum {
            class: class.clone(),
            size: 1,
        };
        Counts([(stratum, [slow(300, 1000), slow(340, 100)])].into())
    };
    let report = looks(&Margins::default(), (0..40).map(|_| counts()));
    assert_eq!(
        report.sentence(),
        "New's time to first token (p50) is 840 ms, and old's is 356 ms (700 and 7,000 requests in 35 s)."
    );
}
