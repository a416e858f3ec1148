//! Rollouts of one object that has the workers of both generations.

use super::*;

fn in_place(roles: &[(Role, u32)]) -> RolloutSettings {
    let mut settings = settings(roles);
    settings.in_place = true;
    settings.strategy.max_surge = Amount::Count(0);
    settings.strategy.max_unavailable = Amount::Count(1);
    settings
}

#[test]
fn in_place_old_shrinks_and_new_gets_what_it_loses() {
    let mut four = in_place(&FOUR);
    four.handover.clients = ClientHandover::Automatic;
    let (decision, way) = run(four);
    assert_eq!(way, "old-3 2:1 old-2 1:2 old-1 0:1 old-0 save clients>new");
    assert_eq!(decision.progress, Progress::Complete);
    assert_eq!(decision.gpus, 32, "a worker takes the place of another one");
}

#[test]
fn in_place_the_way_back_replaces_the_pods_that_are_new() {
    let mut half = in_place(&FOUR);
    half.strategy.partition = 2;
    let mut cluster = Cluster::of(half);
    let (decision, _) = cluster.run(500);
    assert_eq!(decision.progress, Progress::Partition);
    cluster.settings.intent = Intent::Abort;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
    assert_eq!(way.join(" "), "2:1 new-1 replace1 1:0 new-0 replace1");
}

/// A set keeps pods of new when its partition is raised. Clients that connect to new directly keep them from being replaced.
#[test]
fn in_place_new_continues_with_the_pods_that_were_to_be_replaced() {
    let mut six = in_place(&[(Role::Worker, 6)]);
    six.strategy.partition = 2;
    six.strategy.steps = [25, 50]
        .map(|percent| ScaleStep {
            new: Amount::Percent(percent),
            hold: seconds(100),
        })
        .into();
    let mut cluster = Cluster::of(six);
    let (decision, _) = cluster.run(500);
    assert_eq!(decision.desired, PerGeneration { old: 2, new: 4 });
    for size in [2, 3] {
        let mut cluster = cluster.clone();
        cluster.resize(Generation::New, Role::Worker, size, true, true);
        cluster.pass();
        assert_eq!(
            cluster.objects.new[&Role::Worker].leaving.len(),
            4 - size as usize
        );
        cluster.service = Generation::New;
        cluster.settings.strategy.partition = 0;
        let (decision, way) = cluster.run(500);
        assert_eq!(decision.progress, Progress::Complete, "{way:?}");
        assert!(!way.join(" ").contains("replace"), "{way:?}");
    }
}

/// Another client has raised the partition to the whole set, and the owner has accepted that: pods of new hold all places.
#[test]
fn in_place_pods_that_are_to_leave_are_replaced_in_part_while_nothing_else_serves() {
    let mut cluster = Cluster::of(in_place(&FOUR));
    cluster.settings.strategy.partition = 1;
    cluster.run(500);
    cluster.resize(Generation::New, Role::Worker, 0, false, false);
    let (old, new) = (&mut cluster.objects.old, &mut cluster.objects.new);
    old.get_mut(&Role::Worker).unwrap().pods.clear();
    let object = new.get_mut(&Role::Worker).unwrap();
    object.leaving = (0..4).map(|pod| (pod, 9)).collect();
    object.pods.clear();
    cluster.accepts_sizes = true;
    cluster.settings.intent = Intent::Abort;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack, "{way:?}");
    assert_eq!(
        way.join(" "),
        "0:1 replace1 1:2 replace1 2:1 replace1 1:0 replace1"
    );
}

/// Another client has raised the partition, and the owner has accepted that: one pod of old is ready, and several will be
/// replaced.
fn leaving_three_of_four() -> Cluster {
    let mut cluster = Cluster::of(in_place(&FOUR));
    cluster.settings.strategy.partition = 1;
    cluster.run(500);
    assert_eq!(cluster.split, Weights::new(1, 3).unwrap());
    cluster.resize(Generation::New, Role::Worker, 0, false, false);
    cluster.pass();
    assert_eq!(cluster.objects.new[&Role::Worker].leaving.len(), 3);
    cluster.settings.intent = Intent::Abort;
    cluster
}

#[test]
fn in_place_pods_to_be_replaced_serve_until_others_are_ready() {
    let mut cluster = leaving_three_of_four();
    let decision = decide(&cluster.settings, &cluster.read());
    assert_eq!(decision.progress, Progress::Contested);
    assert_eq!(decision.action, None, "old alone could not serve all");
    cluster.accepts_sizes = true;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
    assert_eq!(
        way.join(" "),
        "1:2 replace1 2:1 replace1 1:0 replace1",
        "three of four stay ready"
    );
}

#[test]
fn in_place_pods_that_are_to_leave_and_do_not_serve_are_replaced_at_once() {
    // Those that are not ready, if another one is.
    let mut cluster = leaving_three_of_four();
    cluster.accepts_sizes = true;
    let new = cluster.objects.new.get_mut(&Role::Worker).unwrap();
    new.leaving = [(0, 9), (1, 0), (2, 0)].into();
    cluster.new_is_broken = true;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
    assert_eq!(way.join(" "), "1:1 replace2 1:0 replace1");
    // Those of a generation that does not serve.
    let mut cluster = leaving_three_of_four();
    cluster.accepts_sizes = true;
    cluster.serves.new = Serves::No;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
    assert_eq!(way.join(" "), "1:0 replace3");
}

/// The owner has accepted it, but the needs of the streams have not been checked.
#[test]
fn in_place_pods_that_are_to_leave_get_the_time_that_their_streams_need() {
    let mut cluster = leaving_three_of_four();
    cluster.accepts_sizes = true;
    cluster.grace = seconds(30);
    let (decision, way) = cluster.run(500);
    assert_eq!(way, [""; 0]);
    let short = Wait::Grace {
        generation: Generation::New,
        grace: Some(seconds(30)),
        p99: Some(seconds(300)),
    };
    assert!(decision.waits.contains(&short), "{:?}", decision.waits);
    cluster.settings.strategy.allow_short_grace = true;
    assert_eq!(cluster.run(500).0.progress, Progress::RolledBack);
}

/// What leaves is all that serves once old breaks down.
#[test]
fn in_place_requests_return_to_pods_that_are_to_leave_when_nothing_else_serves() {
    let mut cluster = leaving_three_of_four();
    cluster.accepts_sizes = true;
    cluster.split = Weights::ALL_OLD;
    cluster.serves.old = Serves::No;
    let decision = decide(&cluster.settings, &cluster.read());
    assert_eq!(
        decision.action,
        Some(ScalingAction::Split(Weights::ALL_NEW))
    );
}

#[test]
fn in_place_one_worker_cannot_be_replaced_while_it_serves() {
    for (size, unavailable) in [(1, 1), (4, 0)] {
        let mut settings = in_place(&[(Role::Worker, size)]);
        settings.strategy.max_unavailable = Amount::Count(unavailable);
        let (decision, way) = Cluster::of(settings).run(500);
        assert_eq!(
            (decision.waits, decision.progress),
            (vec![Wait::InPlace], Progress::Refused)
        );
        assert_eq!(way, [""; 0]);
    }
    let mut cluster = Cluster::of(in_place(&[(Role::Worker, 1)]));
    cluster.resize(Generation::New, Role::Worker, 1, false, false);
    cluster.accepts_sizes = true;
    cluster.settings.intent = Intent::Abort;
    let (decision, _) = cluster.run(500);
    assert_eq!(decision.waits, [Wait::InPlace]);
}

#[test]
fn in_place_another_size_or_revision_stops_the_rollout() {
    let mut half = in_place(&FOUR);
    half.strategy.partition = 2;
    let mut cluster = Cluster::of(half);
    cluster.run(500);
    cluster.settings.strategy.partition = 0;
    // The owner has edited the rollout, which accepts a partition, but no other number of replicas.
    cluster.accepts_sizes = true;
    let object = cluster
        .generation_mut(Generation::New)
        .get_mut(&Role::Worker);
    object.unwrap().desired = 3;
    let decision = decide(&cluster.settings, &cluster.read());
    assert_eq!(
        decision.waits,
        [Wait::Resized {
            desired: 5,
            full: 4
        }]
    );
    assert_eq!(decision.progress, Progress::Contested);
    let object = cluster
        .generation_mut(Generation::New)
        .get_mut(&Role::Worker);
    object.unwrap().desired = 2;
    cluster.lost.new = Some("edited again".to_owned());
    let decision = decide(&cluster.settings, &cluster.read());
    assert_eq!(decision.waits, [Wait::Lost("edited again".to_owned())]);
    assert_eq!(
        (decision.progress, decision.action),
        (Progress::Stalled, None)
    );
    // The way back needs no more of new.
    cluster.settings.intent = Intent::Abort;
    let (decision, _) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
}
