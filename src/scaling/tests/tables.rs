//! The way of a rollout, action by action, and what it waits for.

use super::*;

const PD: [(Role, u32); 2] = [(Role::Prefill, 4), (Role::Decode, 2)];
const FOUR: [(Role, u32); 1] = [(Role::Worker, 4)];

fn run(settings: RolloutSettings) -> (Decision, String) {
    let (decision, way) = Cluster::of(settings).run(500);
    (decision, way.join(" "))
}

#[test]
fn four_workers_move_one_by_one_and_old_keeps_its_last_until_its_streams_have_ended() {
    let mut four = settings(&FOUR);
    four.handover = Handover {
        clients: Switch::Automatic,
        retire: Retire::Delete,
    };
    let (decision, way) = run(four);
    assert_eq!(decision.progress, Progress::Complete);
    assert_eq!(
        way,
        "new+1 3:1 old-3 new+2 1:1 old-2 new+3 1:3 old-1 new+4 0:1 old-0 save clients>new Delete"
    );
}

#[test]
fn frontends_that_cannot_be_retired_are_reported_before_the_first_write_and_at_the_end() {
    let mut four = settings(&FOUR);
    four.handover.retire = Retire::ScaleToZero;
    let mut cluster = Cluster::of(four);
    cluster.unretirable = Some("there is no Deployment old".to_owned());
    let (decision, way) = cluster.run(500);
    let unretirable = Wait::Unretirable("there is no Deployment old".to_owned());
    assert_eq!(way, [""; 0]);
    assert_eq!(decision.progress, Progress::Refused);
    assert_eq!(decision.waits, std::slice::from_ref(&unretirable));
    // The owner asks for it when the rollout is under way.
    cluster.settings.handover.retire = Retire::Keep;
    cluster.settings.strategy.partition = 2;
    cluster.run(500);
    cluster.settings.handover.retire = Retire::Delete;
    cluster.settings.strategy.partition = 0;
    cluster.service = Generation::New;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.last().map(|last| &**last), Some("old-0"));
    assert_eq!(decision.progress, Progress::Forward);
    assert_eq!(decision.waits, [unretirable]);
    cluster.unretirable = None;
    assert_eq!(cluster.run(500).0.progress, Progress::Complete);
}

#[test]
fn a_size_that_is_given_may_differ_from_the_one_that_old_has() {
    for is_given in [true, false] {
        let mut four = settings(&FOUR);
        if is_given {
            four.given = [Role::Worker].into();
        }
        let mut cluster = Cluster::of(four);
        for object in cluster.side_mut(Generation::Old).values_mut() {
            object.desired = 2;
        }
        cluster.service = Generation::New;
        let (decision, way) = cluster.run(500);
        let expected = match is_given {
            true => Progress::Complete,
            false => Progress::Contested,
        };
        assert_eq!(decision.progress, expected, "{is_given}: {way:?}");
    }
}

#[test]
fn new_may_have_a_unit_of_its_own_before_the_first_write() {
    let with_a_unit = |settings: RolloutSettings| {
        let mut cluster = Cluster::of(settings);
        for object in cluster.side_mut(Generation::New).values_mut() {
            object.desired = 1;
        }
        cluster
    };
    let (decision, way) = with_a_unit(settings(&PD)).run(500);
    assert_eq!(decision.waits, [Wait::Clients]);
    assert!(way[0] == "3:1" && way[1] == "old-3/2", "{way:?}");
    let mut four = settings(&FOUR);
    four.gpus.old = [(Role::Worker, 8)].into();
    four.gpus.new = [(Role::Worker, 8)].into();
    four.strategy.gpu_budget = Some(16);
    let (decision, way) = with_a_unit(four).run(500);
    assert_eq!(way, [""; 0]);
    assert_eq!(decision.progress, Progress::Refused, "{:?}", decision.waits);
}

#[test]
fn prefill_and_decode_keep_their_proportion() {
    let (_, way) = run(settings(&PD));
    let sizes: Vec<_> = way.split(' ').filter(|one| !one.contains(':')).collect();
    assert_eq!(
        sizes,
        [
            "new+1/1", "old-3/2", "new+2/1", "old-2/1", "new+3/2", "old-1/1", "new+4/2", "old-0/0"
        ]
    );
}

#[test]
fn without_surge_old_shrinks_first() {
    let mut four = settings(&FOUR);
    four.strategy.max_surge = Amount::Count(0);
    four.strategy.max_unavailable = Amount::Count(1);
    let (decision, way) = run(four);
    assert_eq!(
        way,
        "old-3 new+1 2:1 old-2 new+2 1:2 old-1 new+3 0:1 old-0 new+4"
    );
    assert_eq!(decision.waits, [Wait::Clients]);
}

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
    four.handover.clients = Switch::Automatic;
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
    let object = cluster.side_mut(Generation::New).get_mut(&Role::Worker);
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
    let object = cluster.side_mut(Generation::New).get_mut(&Role::Worker);
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

#[test]
fn blue_and_green_is_a_surge_of_all() {
    let mut four = settings(&FOUR);
    four.strategy.max_surge = Amount::Percent(100);
    let (_, way) = run(four);
    assert_eq!(way, "new+4 0:1 old-0");
}

#[test]
fn a_partition_stays_old_and_a_step_holds() {
    let mut half = settings(&PD);
    half.strategy.partition = 2;
    let (decision, way) = run(half);
    assert_eq!(decision.progress, Progress::Partition);
    assert!(way.ends_with("new+2/1 1:1 old-2/1"), "{way}");

    let mut canary = settings(&FOUR);
    canary.strategy.steps = vec![Step {
        new: Amount::Percent(25),
        hold: seconds(100_000),
    }];
    let (decision, way) = run(canary.clone());
    assert!(way.ends_with("3:1 old-3"), "{way}");
    assert_eq!(decision.waits, [Wait::Step(1)]);
    assert_eq!(decision.progress, Progress::Forward);
    canary.intent = Intent::Promote;
    assert!(run(canary.clone()).1.ends_with("old-0"));
    canary.intent = Intent::Run;
    canary.strategy.steps[0].hold = seconds(60);
    assert!(run(canary).1.ends_with("old-0"));
}

#[test]
fn a_partition_that_rises_takes_new_back_to_it() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.settings.strategy.partition = 1;
    cluster.run(500);
    cluster.settings.strategy.partition = 3;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.desired, Sides { old: 3, new: 1 });
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
    four.handover.clients = Switch::Automatic;
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
fn a_bad_generation_loses_all_requests_at_once_and_is_taken_back() {
    let mut four = settings(&FOUR);
    four.strategy.analysis = Some(OnFailure::RollBack);
    four.strategy.partition = 2;
    let mut cluster = Cluster::of(four);
    cluster.run(500);
    cluster.verdict = Verdict::Fail;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::RolledBack);
    assert_eq!(way.join(" "), "1:0 old+3 new-0 old+4");

    cluster = Cluster::of(cluster.settings);
    cluster.settings.strategy.analysis = Some(OnFailure::Hold);
    cluster.verdict = Verdict::Fail;
    let (decision, way) = cluster.run(500);
    assert!(
        decision.waits.contains(&Wait::Failed) && way.is_empty(),
        "{way:?}"
    );
}

#[test]
fn old_does_not_shrink_before_new_is_judged_good() {
    let mut four = settings(&FOUR);
    four.strategy.analysis = Some(OnFailure::RollBack);
    let mut cluster = Cluster::of(four);
    cluster.verdict = Verdict::Inconclusive;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "new+1 4:1");
    assert!(decision.waits.contains(&Wait::Verdict));
    cluster.settings.intent = Intent::Promote;
    assert!(cluster.run(500).1.join(" ").ends_with("old-0"));
}

#[test]
fn a_worker_that_never_becomes_ready_costs_old_nothing() {
    let mut four = settings(&FOUR);
    four.strategy.ready_timeout = seconds(300);
    let mut cluster = Cluster::of(four);
    cluster.new_is_broken = true;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "new+1");
    assert_eq!(decision.progress, Progress::Stalled);
}

#[test]
fn what_forbids_a_rollout_is_said_before_the_first_write() {
    let refused = |change: &dyn Fn(&mut Cluster), expected: Wait| {
        let mut cluster = Cluster::of(settings(&FOUR));
        change(&mut cluster);
        let (decision, way) = cluster.run(200);
        assert!(way.is_empty(), "{way:?}");
        assert!(decision.waits.contains(&expected), "{:?}", decision.waits);
        assert_ne!(decision.progress, Progress::Forward);
    };
    refused(
        &|cluster| cluster.settings.strategy.gpu_budget = Some(32),
        Wait::Infeasible,
    );
    refused(
        &|cluster| {
            cluster.settings.gpus.new = [(Role::Worker, 1)].into();
            cluster.settings.strategy.gpu_budget = Some(30);
        },
        Wait::Budget {
            used: 32,
            more: 0,
            budget: 30,
        },
    );
    refused(
        &|cluster| cluster.settings.strategy.max_surge = Amount::Count(0),
        Wait::Infeasible,
    );
    refused(
        &|cluster| cluster.quota = Some(7),
        Wait::Quota { more: 8, left: 7 },
    );
    refused(
        &|cluster| cluster.pods_left = Some(0),
        Wait::PodQuota { more: 1, left: 0 },
    );
    refused(
        &|cluster| cluster.scaler = Some("hpa/decode".to_owned()),
        Wait::Scaler(Generation::Old, "hpa/decode".to_owned()),
    );
    refused(
        &|cluster| cluster.grace = seconds(30),
        Wait::Grace {
            side: Generation::Old,
            grace: Some(seconds(30)),
            p99: Some(seconds(300)),
        },
    );
    refused(
        &|cluster| {
            cluster.settings = settings(&[(Role::Worker, 1)]);
            cluster.settings.strategy.max_surge = Amount::Count(0);
            cluster.settings.strategy.max_unavailable = Amount::Count(1);
            *cluster = Cluster::of(cluster.settings.clone());
        },
        Wait::Infeasible,
    );
}

#[test]
fn a_budget_slows_a_rollout_down_to_what_it_has() {
    let mut four = settings(&FOUR);
    four.strategy.max_surge = Amount::Percent(100);
    four.strategy.gpu_budget = Some(48);
    let (_, way) = run(four);
    assert!(way.starts_with("new+2 1:1 old-2 new+4"), "{way}");
}

#[test]
fn sizes_that_somebody_else_sets_hold_the_rollout_until_they_are_accepted() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.settings.strategy.partition = 2;
    cluster.run(500);
    let object = cluster.objects.old.get_mut(&Role::Worker).unwrap();
    (object.desired, object.ours, object.version) = (4, false, object.version + 1);
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::Contested);
    assert!(way.is_empty(), "{way:?}");
    assert_eq!(
        decision.waits[0].to_string(),
        "old's worker workers were scaled to 4 from 2 by another client"
    );
    cluster.accepts_sizes = true;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::Partition);
    assert_eq!(way.join(" "), "old-2");
}

#[test]
fn a_controller_that_starts_anew_completes_half_written_sizes() {
    let mut cluster = Cluster::of(settings(&PD));
    let read = cluster.versions();
    let grow = Action::Grow {
        side: Generation::New,
        sizes: [(Role::Prefill, 1), (Role::Decode, 1)].into(),
    };
    assert!(!cluster.apply(&grow, &read, 1, false));
    let (decision, way) = cluster.run(500);
    assert_eq!(way[0], "new+1/1");
    assert_eq!(decision.desired, Sides { old: 0, new: 4 });
}

#[test]
fn old_is_not_shrunk_while_its_streams_do_not_fit_what_stays() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.open_known = false;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "new+1 3:1");
    let unknown = Wait::Streams {
        side: Generation::Old,
        open: None,
        fit: 0,
    };
    assert_eq!(decision.waits, [unknown]);
    cluster.settings.strategy.drain_deadline = Some(seconds(600));
    assert_eq!(cluster.run(500).1[0], "old-3");
}

#[test]
fn the_last_worker_of_old_stays_while_it_is_needed() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.needs_last_worker = true;
    let (decision, way) = cluster.run(500);
    assert!(way.join(" ").ends_with("new+4 0:1"), "{way:?}");
    assert_eq!(decision.waits, [Wait::LastWorker]);
}

#[test]
fn no_proxy_is_nobody_who_confirms_the_split() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.applied.clear();
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "new+1 3:1");
    assert_eq!(decision.waits, [Wait::Proxies { applied: 0, all: 0 }]);
}

#[test]
fn a_hold_moves_nothing_but_what_cannot_be_served() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.settings.strategy.partition = 2;
    cluster.run(500);
    cluster.settings.intent = Intent::Hold;
    cluster.settings.strategy.partition = 0;
    assert!(cluster.run(500).1.is_empty());
    cluster.serves.new = Serves::No;
    let (decision, way) = cluster.run(500);
    assert_eq!(
        (decision.progress, way.join(" ")),
        (Progress::Held, "1:0".to_owned())
    );
}

#[test]
fn limits_that_leave_no_way_on_are_named_while_it_runs() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.settings.strategy.partition = 2;
    cluster.run(500);
    cluster.settings.strategy.partition = 0;
    cluster.settings.strategy.max_surge = Amount::Count(0);
    let (decision, way) = cluster.run(500);
    assert!(way.is_empty(), "{way:?}");
    let room = Wait::Surge {
        occupied: 4,
        limit: 4,
    };
    assert_eq!(decision.waits, [Wait::Infeasible, room]);
}

#[test]
fn sides_of_another_shape_move_in_the_units_of_the_larger_one() {
    let mut shapes = settings(&PD);
    let new: Sizes = [(Role::Worker, 3)].into();
    let old = PD.into_iter().collect();
    shapes.shape = Shape::of(Sides { old, new }).unwrap();
    shapes.gpus.new = [(Role::Worker, 16)].into();
    let (decision, way) = run(shapes);
    let sizes: Vec<_> = way.split(' ').filter(|one| !one.contains(':')).collect();
    assert_eq!(decision.desired, Sides { old: 0, new: 4 }, "{sizes:?}");
}

#[test]
fn what_may_be_the_last_capacity_stays() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.serves.old = Serves::No;
    cluster.new_is_broken = true;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "new+1");
    assert!(decision.waits.contains(&Wait::NoOther(Generation::Old)));
}

#[test]
fn workers_that_restart_are_not_taken_for_workers_that_are_not_needed() {
    let mut four = settings(&FOUR);
    four.strategy.max_surge = Amount::Count(0);
    four.strategy.max_unavailable = Amount::Count(1);
    let mut cluster = Cluster::of(four);
    let object = cluster.objects.old.get_mut(&Role::Worker).unwrap();
    object.pods[2..].fill(0);
    let decision = decide(&cluster.settings, &cluster.read());
    let shrink = Action::Shrink {
        side: Generation::Old,
        sizes: [(Role::Worker, 3)].into(),
    };
    assert_eq!(decision.action, Some(shrink));
}

#[test]
fn workers_that_were_taken_away_get_no_requests_while_they_are_still_ready() {
    let mut four = settings(&FOUR);
    four.handover.clients = Switch::Automatic;
    let mut cluster = Cluster::of(four);
    assert_eq!(cluster.run(500).0.progress, Progress::Complete);
    // Nothing has removed the last pod yet.
    let object = cluster.objects.old.get_mut(&Role::Worker).unwrap();
    object.pods = vec![9];
    let decision = decide(&cluster.settings, &cluster.read());
    assert_eq!((decision.action, decision.ready.old), (None, 1));
}

/// The proxies of an earlier generation follow other plans until they have applied the split again.
#[test]
fn clients_come_back_only_to_proxies_that_have_applied_the_split() {
    let mut four = settings(&FOUR);
    four.handover.clients = Switch::Automatic;
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
    assert_eq!(decision.action, Some(Action::Retarget(Generation::Old)));
}

#[test]
fn new_is_not_taken_back_while_a_person_sends_clients_to_it() {
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

#[test]
fn every_wait_is_said_in_words() {
    assert_eq!(
        Wait::Budget {
            used: 32,
            more: 8,
            budget: 36
        }
        .to_string(),
        "8 more GPUs: 32 of gpuBudget 36 are in use"
    );
    let grace = Wait::Grace {
        side: Generation::Old,
        grace: Some(seconds(30)),
        p99: Some(seconds(540)),
    };
    assert_eq!(
        grace.to_string(),
        "a longer terminationGracePeriodSeconds of old: it is 30 s, but 1 % of streams last 540 s or longer"
    );
}
