//! Scenarios whose end, cost and timeline are known.

use super::*;
use crate::rollout::{PerGeneration, Role};
use crate::scaling::{
    Amount, ClientHandover, Handover, Intent, Progress, ScaleStep, Shape, Sizes, Strategy,
};

fn scenario(roles: &[(Role, u32)]) -> Scenario {
    let sizes: Sizes = roles.iter().copied().collect();
    let gpus: std::collections::BTreeMap<_, _> = roles.iter().map(|(role, _)| (*role, 8)).collect();
    let seconds = Duration::from_secs;
    Scenario {
        begun: Sizes::new(),
        settings: RolloutSettings {
            given: [].into(),
            shape: Shape::of(PerGeneration {
                old: sizes.clone(),
                new: sizes,
            })
            .unwrap(),
            gpus: PerGeneration {
                old: gpus.clone(),
                new: gpus,
            },
            strategy: Strategy::default(),
            intent: Intent::Run,
            superseded: false,
            handover: Handover::default(),
            in_place: false,
        },
        startup: seconds(240),
        stable: seconds(5),
        apply: seconds(2),
        stop: seconds(5),
        grace: seconds(1080),
        analysis: None,
        quiet: seconds(10),
        rate: 10.0,
        stream_p99: seconds(540),
        chooses: true,
        moves: None,
    }
}

fn actions(report: &SimulationReport) -> Vec<&str> {
    report.rows.iter().map(|row| &*row.action).collect()
}

#[test]
fn workers_that_new_begins_with_are_the_first_step() {
    let mut begun = scenario(&[(Role::Worker, 2)]);
    begun.begun = [(Role::Worker, 1)].into();
    let report = run(&begun);
    assert_eq!(
        actions(&report)[..2],
        ["split old 1 : new 1", "shrink old to 1"]
    );
    assert_eq!(report.ended, SimulationEnd::At(Progress::Complete));
    let totals = report.totals;
    assert_eq!((totals.gpus_before, totals.gpus_peak), (16, 24));
    assert_eq!(totals.requests_refused, 0);
}

#[test]
fn a_surge_of_one_replaces_one_worker_after_the_other() {
    let report = run(&scenario(&[(Role::Worker, 2)]));
    assert_eq!(
        actions(&report),
        [
            "grow new to 1",
            "split old 1 : new 1",
            "shrink old to 1",
            "grow new to 2",
            "split old 0 : new 1",
            "shrink old to 0",
            "the owner routes clients to new's frontends",
        ]
    );
    assert_eq!(report.ended, SimulationEnd::At(Progress::Complete));
    let totals = report.totals;
    assert_eq!((totals.gpus_before, totals.gpus_peak), (16, 24));
    assert!(totals.time > Duration::from_secs(2 * 245), "{totals:?}");
    assert!(totals.streams_waited_for > 0 && totals.streams_moved == 0);
    assert_eq!((totals.streams_cut, totals.requests_refused), (0, 0));
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    assert!(report.rows.iter().any(|row| {
        let waits = row.waits.iter().map(|waited| &*waited.what);
        { waits }.any(|what| what.starts_with("streams on old to end"))
    }));
    // The same scenario gives the same report.
    assert_eq!(run(&scenario(&[(Role::Worker, 2)])), report);
}

#[test]
fn continuation_moves_streams_instead_of_waiting_for_them() {
    let mut scenario = scenario(&[(Role::Prefill, 4), (Role::Decode, 2)]);
    let waiting = run(&scenario).totals;
    scenario.settings.strategy.continuation = true;
    scenario.settings.strategy.drain_deadline = Some(Duration::from_secs(30));
    let moving = run(&scenario).totals;
    assert!(moving.streams_moved > 0, "{moving:?}");
    assert!(moving.streams_cut == 0 && waiting.streams_cut == 0);
    assert!(moving.time < waiting.time, "{moving:?} {waiting:?}");
    assert!(moving.gpu_hours < waiting.gpu_hours);
    // What is moved off old need not end before its last worker goes.
    scenario.settings.strategy.drain_deadline = None;
    let ending = run(&scenario).totals;
    scenario.moves = Some(Moves {
        after: Duration::from_secs(10),
        rate: 10,
    });
    let moved = run(&scenario).totals;
    assert!(moved.streams_moved > ending.streams_moved && moved.streams_cut == 0);
    assert!(moved.time < ending.time, "{moved:?} {ending:?}");
}

#[test]
fn a_surge_of_all_takes_twice_the_gpus_and_the_least_time() {
    let mut scenario = scenario(&[(Role::Worker, 4)]);
    let one = run(&scenario).totals;
    scenario.settings.strategy.max_surge = Amount::Percent(100);
    let all = run(&scenario).totals;
    assert_eq!((one.gpus_peak, all.gpus_peak), (40, 64));
    assert!(all.time < one.time);
    assert!(all.gpu_hours > all.gpu_hours_of_old);
}

#[test]
fn a_short_grace_period_is_refused_unless_it_is_allowed_and_then_cuts_streams() {
    let mut scenario = scenario(&[(Role::Worker, 2)]);
    scenario.grace = Duration::from_secs(30);
    let report = run(&scenario);
    let SimulationEnd::Never(Progress::Refused, waits) = &report.ended else {
        panic!("{:?}", report.ended);
    };
    assert!(
        waits[0].contains("terminationGracePeriodSeconds"),
        "{waits:?}"
    );
    assert!(report.rows.is_empty());
    scenario.settings.strategy.allow_short_grace = true;
    let report = run(&scenario);
    assert_eq!(report.ended, SimulationEnd::At(Progress::Complete));
    assert!(report.totals.streams_cut > 0);
    assert!(
        report.notes[0].contains("streams were cut"),
        "{:?}",
        report.notes
    );
}

#[test]
fn a_rollout_that_can_never_end_states_the_reason() {
    let mut budget = scenario(&[(Role::Worker, 2)]);
    budget.settings.strategy.gpu_budget = Some(16);
    let mut held = scenario(&[(Role::Worker, 2)]);
    held.settings.intent = Intent::Hold;
    let mut idle = scenario(&[(Role::Worker, 2)]);
    idle.rate = 0.01;
    idle.settings.strategy.analysis = Some(crate::scaling::OnFailure::Hold);
    idle.analysis = Some(Samples {
        count: 200,
        window: Duration::from_secs(300),
    });
    for (scenario, why) in [
        (budget, "gpuBudget 16"),
        (held, "`intent: Hold` to be lifted"),
        (idle, "the analysis of new to pass"),
    ] {
        let report = run(&scenario);
        let SimulationEnd::Never(_, waits) = &report.ended else {
            panic!("{why}: {:?}", report.ended);
        };
        assert!(waits.iter().any(|wait| wait.contains(why)), "{waits:?}");
    }
}

#[test]
fn steps_partition_and_an_automatic_end_are_in_the_timeline() {
    let mut scenario = scenario(&[(Role::Worker, 4)]);
    let strategy = &mut scenario.settings.strategy;
    strategy.steps = vec![ScaleStep {
        new: Amount::Percent(25),
        hold: Duration::from_secs(3600),
    }];
    strategy.partition = 2;
    let report = run(&scenario);
    assert_eq!(report.ended, SimulationEnd::At(Progress::Partition));
    assert!(report.totals.time > Duration::from_secs(3600));
    scenario.settings.strategy = Strategy::default();
    scenario.settings.handover.clients = ClientHandover::Automatic;
    scenario.settings.handover.retire = crate::scaling::Retire::Delete;
    let report = run(&scenario);
    let actions = actions(&report);
    assert_eq!(
        actions[actions.len() - 3..],
        [
            "save the selector of clientService",
            "route clients to the frontends of new",
            "delete old",
        ]
    );
}

#[test]
fn the_output_formats_of_a_report_agree() {
    let report = run(&scenario(&[(Role::Worker, 2)]));
    let (text, json, svg) = (text(&report), json(&report), svg(&report));
    let end = text::clock(report.totals.time);
    assert!(
        text.contains(&format!("earliest end  {end} (new serves everything)")),
        "{text}"
    );
    assert!(text.contains("   0:00  grow new to 1"), "{text}");
    assert_eq!(json["earliestEndSeconds"], report.totals.time.as_secs());
    assert_eq!(
        json["timeline"].as_array().unwrap().len(),
        report.rows.len()
    );
    assert_eq!(json["peakGpus"], 24);
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains(&end) && !svg.contains("NaN"), "{svg}");
}
