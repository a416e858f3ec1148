//! The actions of a rollout in order, and what it waits for.

mod back;
mod earlier_leader;
mod in_place;
mod people;
mod waits;

use super::*;

const PD: [(Role, u32); 2] = [(Role::Prefill, 4), (Role::Decode, 2)];
const FOUR: [(Role, u32); 1] = [(Role::Worker, 4)];

fn run(settings: RolloutSettings) -> (ScalingDecision, String) {
    let (decision, way) = Cluster::of(settings).run(500);
    (decision, way.join(" "))
}

#[test]
fn four_workers_move_one_by_one_and_old_keeps_its_last_until_its_streams_have_ended() {
    let mut four = settings(&FOUR);
    four.handover = Handover {
        clients: ClientHandover::Automatic,
        retire: Retire::Delete,
    };
    let (decision, way) = run(four);
    assert_eq!(decision.progress, Progress::Complete);
    assert_eq!(
        way,
        "new+1 3:1 old-3 new+2 1:1 old-2 new+3 1:3 old-1 new+4 0:1 old-0 save clients>new Delete"
    );
}

/// After the end, the Service of the clients is its owner's.
#[test]
fn clients_that_somebody_routes_back_after_the_end_are_not_moved_again() {
    for retire in [Retire::Keep, Retire::ScaleToZero] {
        let mut four = settings(&FOUR);
        four.handover = Handover {
            clients: ClientHandover::Automatic,
            retire,
        };
        let mut cluster = Cluster::of(four);
        let (decision, _) = cluster.run(500);
        assert_eq!(decision.progress, Progress::Complete);
        cluster.handed_over = true;
        cluster.service = Generation::Old;
        let (decision, way) = cluster.run(500);
        assert_eq!(way, [""; 0]);
        let expected = match retire {
            Retire::Keep => vec![Wait::Clients],
            // It is over.
            _ => Vec::new(),
        };
        assert_eq!(decision.waits, expected);
        // On the way back, and forward again, they follow the rollout.
        cluster.handed_over = false;
        cluster.service = Generation::New;
        cluster.retired = false;
        cluster.settings.intent = Intent::Abort;
        let way = cluster.run(500).1.join(" ");
        assert!(way.contains("clients>old"), "{way}");
        cluster.settings.intent = Intent::Run;
        let way = cluster.run(500).1.join(" ");
        assert!(way.contains("clients>new"), "{way}");
    }
}

#[test]
fn a_size_that_is_given_may_differ_from_the_one_that_old_has() {
    for is_given in [true, false] {
        let mut four = settings(&FOUR);
        if is_given {
            four.given = [Role::Worker].into();
        }
        let mut cluster = Cluster::of(four);
        for object in cluster.generation_mut(Generation::Old).values_mut() {
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
        for object in cluster.generation_mut(Generation::New).values_mut() {
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

#[test]
fn blue_green_is_a_surge_of_100_percent() {
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
    canary.strategy.steps = vec![ScaleStep {
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
fn a_budget_slows_a_rollout_down_to_what_it_has() {
    let mut four = settings(&FOUR);
    four.strategy.max_surge = Amount::Percent(100);
    four.strategy.gpu_budget = Some(48);
    let (_, way) = run(four);
    assert!(way.starts_with("new+2 1:1 old-2 new+4"), "{way}");
}

#[test]
fn a_controller_that_starts_again_completes_half_written_sizes() {
    let mut cluster = Cluster::of(settings(&PD));
    let read = cluster.versions();
    let grow = ScalingAction::Grow {
        generation: Generation::New,
        sizes: [(Role::Prefill, 1), (Role::Decode, 1)].into(),
    };
    assert!(!cluster.apply(&grow, &read, 1, false));
    let (decision, way) = cluster.run(500);
    assert_eq!(way[0], "new+1/1");
    assert_eq!(decision.desired, PerGeneration { old: 0, new: 4 });
}

#[test]
fn generations_of_another_shape_move_in_the_units_of_the_larger_one() {
    let mut shapes = settings(&PD);
    let new: Sizes = [(Role::Worker, 3)].into();
    let old = PD.into_iter().collect();
    shapes.shape = Shape::of(PerGeneration { old, new }).unwrap();
    shapes.gpus.new = [(Role::Worker, 16)].into();
    let (decision, way) = run(shapes);
    let sizes: Vec<_> = way.split(' ').filter(|one| !one.contains(':')).collect();
    assert_eq!(
        decision.desired,
        PerGeneration { old: 0, new: 4 },
        "{sizes:?}"
    );
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
    let shrink = ScalingAction::Shrink {
        generation: Generation::Old,
        sizes: [(Role::Worker, 3)].into(),
    };
    assert_eq!(decision.action, Some(shrink));
}

#[test]
fn workers_that_were_taken_away_get_no_requests_while_they_are_still_ready() {
    let mut four = settings(&FOUR);
    four.handover.clients = ClientHandover::Automatic;
    let mut cluster = Cluster::of(four);
    assert_eq!(cluster.run(500).0.progress, Progress::Complete);
    // Nothing has removed the last pod yet.
    let object = cluster.objects.old.get_mut(&Role::Worker).unwrap();
    object.pods = vec![9];
    let decision = decide(&cluster.settings, &cluster.read());
    assert_eq!((decision.action, decision.ready.old), (None, 1));
}
