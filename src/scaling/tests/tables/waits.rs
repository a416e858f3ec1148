//! What a rollout waits for, and what it refuses.

use super::*;

#[test]
fn frontends_that_cannot_be_retired_are_reported_before_the_first_write_and_at_the_end() {
    let mut four = settings(&FOUR);
    four.handover.retire = Retire::ScaleToZero;
    let mut cluster = Cluster::of(four);
    cluster.retire_obstacle = Some("there is no Deployment old".to_owned());
    let (decision, way) = cluster.run(500);
    let retire_obstacle = Wait::CannotRetire("there is no Deployment old".to_owned());
    assert_eq!(way, [""; 0]);
    assert_eq!(decision.progress, Progress::Refused);
    assert_eq!(decision.waits, std::slice::from_ref(&retire_obstacle));
    // The owner requests it while the rollout is under way.
    cluster.settings.handover.retire = Retire::Keep;
    cluster.settings.strategy.partition = 2;
    cluster.run(500);
    cluster.settings.handover.retire = Retire::Delete;
    cluster.settings.strategy.partition = 0;
    cluster.service = Generation::New;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.last().map(|last| &**last), Some("old-0"));
    assert_eq!(decision.progress, Progress::Forward);
    assert_eq!(decision.waits, [retire_obstacle]);
    cluster.retire_obstacle = None;
    assert_eq!(cluster.run(500).0.progress, Progress::Complete);
}

#[test]
fn old_does_not_shrink_before_new_is_judged_good() {
    let mut four = settings(&FOUR);
    four.strategy.analysis = Some(OnFailure::RollBack);
    let mut cluster = Cluster::of(four);
    cluster.verdict = TrialVerdict::Inconclusive;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "new+1 4:1");
    assert!(decision.waits.contains(&Wait::Verdict));
    cluster.settings.intent = Intent::Promote;
    assert!(cluster.run(500).1.join(" ").ends_with("old-0"));
}

#[test]
fn a_worker_that_never_becomes_ready_does_not_reduce_old() {
    let mut four = settings(&FOUR);
    four.strategy.ready_timeout = seconds(300);
    let mut cluster = Cluster::of(four);
    cluster.new_is_broken = true;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "new+1");
    assert_eq!(decision.progress, Progress::Stalled);
}

#[test]
fn obstacles_are_reported_before_the_first_write() {
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
        &|cluster| {
            cluster.resources = [("requests.cpu".to_owned(), 4000)].into();
            cluster.resources_left = [("requests.cpu".to_owned(), 3500)].into();
        },
        Wait::ResourceQuota {
            entry: "requests.cpu".to_owned(),
            more: 4000,
            left: 3500,
        },
    );
    refused(
        &|cluster| cluster.scaler = Some("hpa/decode".to_owned()),
        Wait::Scaler(Generation::Old, "hpa/decode".to_owned()),
    );
    refused(
        &|cluster| cluster.grace = seconds(30),
        Wait::Grace {
            generation: Generation::Old,
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

/// The roles round to sizes that do not fit at this step, though those before and after it do.
#[test]
fn a_step_that_the_limits_leave_no_room_for_is_refused_before_the_first_write() {
    let roles = [(Role::Prefill, 6), (Role::Decode, 4)];
    let mut both = settings(&roles);
    both.gpus = PerGeneration {
        old: roles.map(|(role, _)| (role, 1)).into(),
        new: roles.map(|(role, _)| (role, 1)).into(),
    };
    both.strategy.max_surge = Amount::Count(0);
    both.strategy.max_unavailable = Amount::Count(2);
    both.strategy.gpu_budget = Some(10);
    let mut cluster = Cluster::of(both.clone());
    cluster.service = Generation::New;
    assert_eq!(cluster.run(500).0.progress, Progress::Complete);
    both.strategy.steps = vec![ScaleStep {
        new: Amount::Count(1),
        hold: Duration::ZERO,
    }];
    let mut cluster = Cluster::of(both);
    cluster.service = Generation::New;
    let (decision, way) = cluster.run(500);
    assert_eq!(way, [""; 0]);
    assert_eq!(decision.progress, Progress::Refused);
    assert!(decision.waits.contains(&Wait::Infeasible));
    cluster.settings.intent = Intent::Promote;
    assert_eq!(cluster.run(500).0.progress, Progress::Complete);
}

/// What old leaves is free again.
#[test]
fn a_quota_that_old_uses_up_admits_a_rollout_that_shrinks_first() {
    for set in [
        (|cluster: &mut Cluster| cluster.quota = Some(0)) as fn(&mut Cluster),
        |cluster| cluster.pods_left = Some(0),
        |cluster| {
            cluster.resources = [("requests.cpu".to_owned(), 4000)].into();
            cluster.resources_left = [("requests.cpu".to_owned(), 0)].into();
        },
    ] {
        let mut four = settings(&FOUR);
        four.gpus.old = [(Role::Worker, 8)].into();
        four.gpus.new = [(Role::Worker, 8)].into();
        four.strategy.max_surge = Amount::Count(0);
        four.strategy.max_unavailable = Amount::Count(1);
        let mut cluster = Cluster::of(four);
        set(&mut cluster);
        let decision = decide(&cluster.settings, &cluster.read());
        assert_eq!(decision.progress, Progress::Forward, "{:?}", decision.waits);
        // New may need more than old leaves.
        if !cluster.resources.is_empty() {
            continue;
        }
        cluster.settings.gpus.new = [(Role::Worker, 16)].into();
        let decision = decide(&cluster.settings, &cluster.read());
        let is_refused = decision.progress == Progress::Refused;
        assert_eq!(is_refused, cluster.quota.is_some(), "{:?}", decision.waits);
    }
}

#[test]
fn a_quota_is_given_in_its_own_unit() {
    let text = |entry: &str, more, left| {
        let entry = entry.to_owned();
        Wait::ResourceQuota { entry, more, left }.to_string()
    };
    assert_eq!(
        text("requests.cpu", 4000, 3500),
        "4 more of requests.cpu: the quota of the namespace has 3500m left"
    );
    let gi = 1_073_741_824_000;
    assert_eq!(
        text("limits.memory", 16 * gi, gi / 2),
        "16Gi more of limits.memory: the quota of the namespace has 512Mi left"
    );
    assert_eq!(
        text("requests.memory", gi, 0),
        "1Gi more of requests.memory: the quota of the namespace has 0 left"
    );
}

#[test]
fn sizes_that_another_client_sets_hold_the_rollout_until_they_are_accepted() {
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
        "another client to stop scaling: it scaled old's workers from 2 to 4"
    );
    cluster.accepts_sizes = true;
    let (decision, way) = cluster.run(500);
    assert_eq!(decision.progress, Progress::Partition);
    assert_eq!(way.join(" "), "old-2");
}

#[test]
fn old_is_not_shrunk_while_its_streams_do_not_fit_what_stays() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.open_known = false;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "new+1 3:1");
    let unknown = Wait::Streams {
        generation: Generation::Old,
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
fn without_a_proxy_the_split_is_not_confirmed() {
    // Nor does anyone then know how long streams last.
    for (p99, done) in [(Some(seconds(300)), "new+1 3:1"), (None, "new+1 4:1")] {
        let mut cluster = Cluster::of(settings(&FOUR));
        cluster.applied.clear();
        cluster.p99 = p99;
        let (decision, way) = cluster.run(500);
        assert_eq!(way.join(" "), done);
        assert_eq!(decision.waits, [Wait::Proxies { applied: 0, all: 0 }]);
        let text = decision.waits[0].to_string();
        assert!(
            text.contains("none was found") && text.contains("`frontends.source`"),
            "{text}"
        );
    }
}

#[test]
fn a_hold_only_moves_requests_that_cannot_be_served() {
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
fn capacity_that_may_be_the_last_is_kept() {
    let mut cluster = Cluster::of(settings(&FOUR));
    cluster.serves.old = Serves::No;
    cluster.new_is_broken = true;
    let (decision, way) = cluster.run(500);
    assert_eq!(way.join(" "), "new+1");
    assert!(decision.waits.contains(&Wait::NoOther(Generation::Old)));
}

#[test]
fn every_wait_has_a_text() {
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
        generation: Generation::Old,
        grace: Some(seconds(30)),
        p99: Some(seconds(540)),
    };
    assert_eq!(
        grace.to_string(),
        "a longer terminationGracePeriodSeconds of old: it is 30 s, but 1% of streams last 540 s or longer"
    );
}
