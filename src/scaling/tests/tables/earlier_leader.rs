//! A write of an earlier leader that may still arrive.

use super::*;

/// Two of four units are new, and an earlier leader may have sent this.
fn half_way(unfinished: UnfinishedWrite) -> (RolloutSettings, RolloutObservation) {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.settings.strategy.partition = 2;
    let (decision, _) = cluster.run(500);
    assert_eq!(decision.progress, Progress::Partition);
    let mut seen = cluster.read();
    seen.unfinished = vec![unfinished];
    (cluster.settings, seen)
}

fn resize(generation: Generation, size: u32) -> UnfinishedWrite {
    let sizes = [(Role::Worker, size)].into();
    UnfinishedWrite::Resize { generation, sizes }
}

fn waits_for_it(decision: &ScalingDecision) -> bool {
    decision.action.is_none() && decision.waits == [Wait::EarlierLeader]
}

#[test]
fn an_abort_grows_no_generation_and_moves_no_requests_until_the_write_cannot_arrive() {
    for unfinished in [
        resize(Generation::Old, 0),
        resize(Generation::Old, 1),
        resize(Generation::New, 0),
        UnfinishedWrite::Retire,
    ] {
        let (mut settings, mut seen) = half_way(unfinished.clone());
        settings.intent = Intent::Abort;
        let decision = decide(&settings, &seen);
        assert!(waits_for_it(&decision), "{unfinished:?}: {decision:?}");
        assert_eq!(decision.progress, Progress::Back);
        seen.unfinished.clear();
        let decision = decide(&settings, &seen);
        assert!(decision.action.is_some(), "{decision:?}");
    }
}

#[test]
fn no_end_is_reported_while_the_write_may_arrive() {
    let (settings, seen) = half_way(resize(Generation::Old, 1));
    let decision = decide(&settings, &seen);
    assert!(waits_for_it(&decision), "{decision:?}");
    assert_eq!(decision.progress, Progress::Forward);
}

#[test]
fn a_write_whose_result_is_seen_holds_nothing_back() {
    for (unfinished, retired) in [
        (resize(Generation::Old, 2), false),
        (resize(Generation::New, 2), false),
        (UnfinishedWrite::Retire, true),
    ] {
        let (mut settings, mut seen) = half_way(unfinished.clone());
        settings.intent = Intent::Abort;
        seen.clients.retired = retired;
        let decision = decide(&settings, &seen);
        assert!(decision.action.is_some(), "{unfinished:?}: {decision:?}");
    }
}

#[test]
fn the_same_write_is_repeated() {
    let (mut settings, mut seen) = half_way(resize(Generation::New, 3));
    settings.strategy.partition = 0;
    let grown = ScalingAction::Grow {
        generation: Generation::New,
        sizes: [(Role::Worker, 3)].into(),
    };
    assert_eq!(decide(&settings, &seen).action, Some(grown));
    seen.unfinished = vec![resize(Generation::New, 4)];
    assert!(waits_for_it(&decide(&settings, &seen)));
}

#[test]
fn requests_leave_a_generation_that_cannot_serve_immediately() {
    let (settings, mut seen) = half_way(resize(Generation::Old, 1));
    seen.generations.new.serves = Serves::No;
    let action = decide(&settings, &seen).action;
    assert_eq!(action, Some(ScalingAction::Split(Weights::ALL_OLD)));
}

#[test]
fn an_end_without_a_frontend_is_not_reported_as_served() {
    let mut cluster = Cluster::of(settings(&FOUR));
    for (intent, progress, generation) in [
        (Intent::Run, Progress::Complete, Generation::New),
        (Intent::Abort, Progress::RolledBack, Generation::Old),
    ] {
        cluster.settings.intent = intent;
        cluster.service = generation;
        let (decision, _) = cluster.run(500);
        assert_eq!((decision.progress, &*decision.waits), (progress, &[][..]));
        let mut seen = cluster.read();
        match generation {
            Generation::Old => seen.generations.old.frontends = 0,
            Generation::New => seen.generations.new.frontends = 0,
        }
        let decision = decide(&cluster.settings, &seen);
        let expected = &[Wait::Frontend(generation)][..];
        assert_eq!((decision.progress, &*decision.waits), (progress, expected));
    }
}
