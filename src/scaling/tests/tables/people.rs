//! What owners request, and what other clients do, at a bad moment.

use super::*;

/// A rollout that paused at half and continues.
fn from_half() -> Cluster {
    let mut half = settings(&FOUR);
    half.strategy.partition = 2;
    let mut cluster = Cluster::of(half);
    assert_eq!(cluster.run(500).0.progress, Progress::Partition);
    cluster.settings.strategy.partition = 0;
    cluster
}

#[test]
fn promote_and_abort_wait_until_the_owner_accepts_the_size_that_another_client_has_set() {
    for (intent, new) in [(Intent::Promote, 4), (Intent::Abort, 0)] {
        let mut cluster = from_half();
        cluster.settings.intent = intent;
        cluster.resize(Generation::Old, Role::Worker, 3, false, false);
        let (decision, way) = cluster.run(500);
        assert_eq!(way, [""; 0], "{intent:?}");
        assert_eq!(decision.progress, Progress::Contested);
        cluster.accepts_sizes = true;
        let (decision, _) = cluster.run(500);
        assert_eq!(decision.desired, PerGeneration { old: 4 - new, new });
    }
}

#[test]
fn an_abort_of_a_superseded_rollout_ends_with_old_alone() {
    let mut cluster = from_half();
    cluster.settings.superseded = true;
    cluster.settings.intent = Intent::Abort;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
    assert_eq!(way.join(" "), "old+3 3:1 new-1 old+4 1:0 new-0");
    // The third generation is accepted, and the intent is still to go back.
    cluster.settings.superseded = false;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
    assert_eq!(way, [""; 0]);
}

#[test]
fn scaling_by_an_autoscaler_during_a_hold_is_contested_afterwards() {
    let mut cluster = from_half();
    cluster.settings.intent = Intent::Hold;
    cluster.scaler = Some("hpa/decode".to_owned());
    cluster.resize(Generation::Old, Role::Worker, 4, false, false);
    let (decision, way) = cluster.run(500);
    assert_eq!((decision.progress, way), (Progress::Held, Vec::new()));
    cluster.settings.intent = Intent::Run;
    let (decision, way) = cluster.run(500);
    assert_eq!((decision.progress, way), (Progress::Contested, Vec::new()));
    let scaler = Wait::Scaler(Generation::Old, "hpa/decode".to_owned());
    assert!(decision.waits.contains(&scaler), "{:?}", decision.waits);
    // It is gone, but its size stays.
    cluster.scaler = None;
    assert_eq!(cluster.run(500).0.progress, Progress::Contested);
}

#[test]
fn a_hold_between_the_split_and_the_shrink_changes_neither() {
    let mut cluster = Cluster::of(settings(&FOUR));
    let lowered = Weights::new(3, 1).unwrap();
    while cluster.split != lowered {
        let action = decide(&cluster.settings, &cluster.read()).action;
        if let Some(action) = action {
            assert!(cluster.apply(&action, &cluster.versions(), usize::MAX, true));
        }
        cluster.pass();
    }
    cluster.settings.intent = Intent::Hold;
    let (decision, way) = cluster.run(500);
    assert_eq!((decision.progress, way), (Progress::Held, Vec::new()));
    cluster.settings.intent = Intent::Run;
    assert_eq!(cluster.run(500).1[0], "old-3");
}

#[test]
fn requests_move_to_new_when_it_is_warm_and_not_when_it_is_ready() {
    let mut cluster = Cluster::of(settings(&FOUR));
    let mut was_cold = false;
    loop {
        let seen = cluster.read();
        let worker = &seen.generations.new.roles[&Role::Worker];
        let (ready, warm) = (worker.ready, worker.warm);
        was_cold |= ready > warm;
        let action = decide(&cluster.settings, &seen).action;
        if let Some(ScalingAction::Split(_)) = action {
            assert_eq!((was_cold, warm), (true, 1));
            return;
        }
        if let Some(action) = action {
            assert!(cluster.apply(&action, &cluster.versions(), usize::MAX, true));
        }
        cluster.pass();
    }
}

#[test]
fn continuation_moves_the_streams_of_all_but_the_last_worker() {
    let mut four = settings(&FOUR);
    four.strategy.continuation = true;
    let mut cluster = Cluster::of(four);
    cluster.open_known = false;
    cluster.grace = seconds(1);
    let (decision, way) = cluster.run(500);
    assert!(way.join(" ").ends_with("old-1 new+4 0:1"), "{way:?}");
    let unknown = Wait::Streams {
        generation: Generation::Old,
        open: None,
        fit: 0,
    };
    assert_eq!(decision.waits, [unknown]);
}

#[test]
fn roles_of_one_replica_move_by_a_surge_and_are_refused_without_one() {
    let ones = [(Role::Prefill, 1), (Role::Decode, 1)];
    assert_eq!(run(settings(&ones)).1, "new+1/1 0:1 old-0/0");
    for unavailable in [Amount::Count(1), Amount::Percent(100)] {
        let mut without = settings(&ones);
        without.strategy.max_surge = Amount::Count(0);
        without.strategy.max_unavailable = unavailable;
        let (decision, way) = run(without);
        assert_eq!(
            (decision.progress, &*way),
            (Progress::Refused, ""),
            "{unavailable:?}"
        );
    }
    // Beside a larger role, the one replica of decode moves last, and never leaves prefill alone.
    let mut unequal = settings(&[(Role::Prefill, 4), (Role::Decode, 1)]);
    unequal.strategy.max_surge = Amount::Count(0);
    unequal.strategy.max_unavailable = Amount::Count(1);
    let (decision, way) = run(unequal);
    assert_eq!(decision.desired, PerGeneration { old: 0, new: 4 });
    let sizes: Vec<_> = way.split(' ').filter(|one| !one.contains(':')).collect();
    assert_eq!(
        sizes,
        [
            "old-3/1", "new+1/1", "old-2/1", "new+2/1", "old-1/1", "new+3/1", "old-0/0", "new+4/1"
        ]
    );
}

#[test]
fn a_percentage_rounds_up_for_the_surge_and_down_for_what_is_unavailable() {
    let mut three = settings(&[(Role::Worker, 3)]);
    three.strategy.max_surge = Amount::Percent(25);
    three.strategy.max_unavailable = Amount::Percent(25);
    assert_eq!(
        run(three).1,
        "new+1 2:1 old-2 new+2 1:2 old-1 new+3 0:1 old-0"
    );
}

#[test]
fn a_partition_of_at_least_the_whole_size_moves_nothing() {
    for partition in [4, 5, 100_000] {
        let mut four = settings(&FOUR);
        four.strategy.partition = partition;
        let (decision, way) = run(four);
        assert_eq!((decision.progress, &*way), (Progress::Partition, ""));
    }
}

#[test]
fn a_budget_below_one_unit_is_refused() {
    let mut four = settings(&FOUR);
    four.strategy.gpu_budget = Some(7);
    let (decision, way) = run(four);
    assert_eq!((decision.progress, &*way), (Progress::Refused, ""));
    let budget = Wait::Budget {
        used: 32,
        more: 0,
        budget: 7,
    };
    assert!(decision.waits.contains(&budget), "{:?}", decision.waits);
}

/// Without decode workers, neither generation has a whole unit, and their prefill workers leave no room for one.
#[test]
fn halves_of_units_that_another_client_has_left_on_both_generations_make_room_for_old() {
    let mut pd = settings(&PD);
    pd.strategy.max_surge = Amount::Count(0);
    pd.strategy.max_unavailable = Amount::Count(1);
    pd.strategy.partition = 2;
    let mut cluster = Cluster::of(pd);
    assert_eq!(cluster.run(500).0.progress, Progress::Partition);
    for generation in Generation::ALL {
        cluster.resize(generation, Role::Prefill, 3, false, true);
        cluster.resize(generation, Role::Decode, 0, false, true);
    }
    cluster.settings.intent = Intent::Abort;
    let (decision, way) = cluster.run(500);
    assert_eq!(
        decision.progress,
        Progress::RolledBack,
        "{:?} {way:?}",
        decision.waits
    );
}

/// Without surge, there is room for new only where workers of old have been.
#[test]
fn old_without_a_role_makes_room_for_new_and_keeps_a_worker_until_new_serves() {
    let mut pd = settings(&PD);
    pd.strategy.max_surge = Amount::Count(0);
    pd.strategy.max_unavailable = Amount::Count(1);
    pd.strategy.ready_timeout = seconds(300);
    let mut cluster = Cluster::of(pd);
    // Another client has removed the decode workers, and the owner has accepted that.
    cluster.resize(Generation::Old, Role::Decode, 0, false, true);
    cluster.new_is_broken = true;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "old-1/0 new+3/2");
    assert_eq!(decision.progress, Progress::Stalled);
    assert_eq!(cluster.open, PerGeneration { old: 0, new: 0 });
    cluster.new_is_broken = false;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "0:1 old-0/0 new+4/2");
    assert_eq!(decision.waits, [Wait::Clients]);
}

#[test]
fn limits_that_leave_no_room_beside_the_last_worker_of_a_role_are_named() {
    let ones = [(Role::Prefill, 1), (Role::Decode, 1)];
    let mut cluster = Cluster::of(settings(&ones));
    cluster.resize(Generation::Old, Role::Decode, 0, false, true);
    cluster.settings.strategy.max_surge = Amount::Count(0);
    let (decision, way) = cluster.run(500);
    assert_eq!(way, [""; 0]);
    let room = Wait::Surge {
        occupied: 1,
        limit: 1,
    };
    assert_eq!(decision.waits, [Wait::Infeasible, room]);
    cluster.settings.strategy.max_surge = Amount::Count(1);
    assert_eq!(cluster.run(500).1.join(" "), "new+1/1 0:1 old-0/0");
}
