//! The way back: a higher partition, an abort, and a generation that fails the analysis.

use super::*;

#[test]
fn a_partition_that_rises_takes_new_back_to_it() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.settings.strategy.partition = 1;
    cluster.run(500);
    cluster.settings.strategy.partition = 3;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.desired, PerGeneration { old: 3, new: 1 });
    assert_eq!(way.join(" "), "old+2 1:1 new-2 old+3 3:1 new-1");
}

#[test]
fn an_abort_brings_old_up_before_new_goes_down() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.settings.strategy.partition = 2;
    cluster.run(500);
    cluster.settings.intent = Intent::Abort;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
    assert_eq!(way.join(" "), "old+3 3:1 new-1 old+4 1:0 new-0");
}

#[test]
fn an_abort_after_the_hand_over_brings_the_clients_back_first() {
    let mut four = settings(&FOUR);
    four.handover.clients = ClientHandover::Automatic;
    let mut cluster = Cluster::of(four);
    let (decision, _) = cluster.run(500);
    assert_eq!(decision.progress, Progress::Complete);
    cluster.settings.intent = Intent::Abort;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
    assert_eq!(way[0], "clients>old");
    assert_eq!(way.last().map(|last| &**last), Some("new-0"));
}

#[test]
fn a_failing_generation_loses_all_requests_immediately_and_is_rolled_back() {
    let mut four = settings(&FOUR);
    four.strategy.analysis = Some(OnFailure::RollBack);
    four.strategy.partition = 2;
    let mut cluster = Cluster::of(four);
    cluster.run(500);
    cluster.verdict = TrialVerdict::Fail;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
    assert_eq!(way.join(" "), "1:0 old+3 new-0 old+4");

    cluster = Cluster::of(cluster.settings);
    cluster.settings.strategy.analysis = Some(OnFailure::Hold);
    cluster.verdict = TrialVerdict::Fail;
    let (decision, way) = cluster.run(500);
    assert!(
        decision.waits.contains(&Wait::Failed) && way.is_empty(),
        "{way:?}"
    );
}

/// The proxies of an earlier generation follow other plans until they have applied the split again.
#[test]
fn clients_come_back_only_to_proxies_that_have_applied_the_split() {
    let mut four = settings(&FOUR);
    four.handover.clients = ClientHandover::Automatic;
    let mut cluster = Cluster::of(four);
    cluster.run(500);
    cluster.settings.intent = Intent::Abort;
    cluster.applied[0] = Some(Weights::ALL_OLD);
    let decision = decide(&cluster.settings, &cluster.read());
    assert_eq!(decision.action, None);
    assert_eq!(decision.waits, [Wait::Proxies { applied: 1, all: 2 }]);
    // Where new does not serve at all, nothing is worse than to stay.
    cluster.serves.new = Serves::No;
    let decision = decide(&cluster.settings, &cluster.read());
    assert_eq!(
        decision.action,
        Some(ScalingAction::Retarget(Generation::Old))
    );
}

#[test]
fn new_is_not_taken_back_while_a_user_sends_clients_to_it() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.run(500);
    cluster.service = Generation::New;
    cluster.settings.intent = Intent::Abort;
    let (decision, way) = cluster.run(500);
    assert!(
        !way.iter().any(|action| action.starts_with("new-")),
        "{way:?}"
    );
    assert!(decision.waits.contains(&Wait::DirectClients));
    cluster.service = Generation::Old;
    assert_eq!(cluster.run(500).0.progress, Progress::RolledBack);
}
