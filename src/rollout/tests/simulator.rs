//! Checks the invariants after each step of long random histories of two generations, their proxies, users and a controller
//! that crashes.
//!
//! Histories are deterministic: each is given by its seed, which a failure prints.

#[cfg(test)]
mod changes;
#[cfg(test)]
mod draw;
#[cfg(test)]
mod invariants;

use std::collections::VecDeque;

use self::draw::Draw;
use self::invariants::Past;
use super::*;

/// Steps per history.
const STEPS: u64 = 400;

/// Later histories that broke a rule once. 881: new was only presumed to serve when it was rolled back.
const FOUND: [u64; 1] = [881];

struct Simulation {
    fixture: Fixture,
    draw: Draw,
    /// For what no split depends on, so that a seed keeps its history.
    listed: Draw,
    roles: Vec<(Role, u32)>,
    /// The latest observations since the clock last jumped or the last calm.
    past: VecDeque<Past>,
    /// The generation of the resource that the controller last saw, and when it first saw it.
    change: (u64, Timestamp),
    /// Whether an edit was ever reverted.
    is_contested: bool,
    /// In how many steps the last worker of old was dispensable, and old safe to delete.
    promised: [u64; 2],
}

impl Simulation {
    fn of(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let full = 1 + draw.below(6) as u32;
        let roles = match draw.below(3) {
            0 => vec![
                (Role::Prefill, full),
                (Role::Decode, 1 + draw.below(3) as u32),
            ],
            _ => vec![(Role::Worker, full)],
        };
        let mut fixture = Fixture::of(&roles);
        fixture.settings.stable = seconds(draw.below(10));
        fixture.settings.ack_timeout = seconds(draw.below(40));
        fixture.settings.drain_deadline = draw.one_in(2).then(|| seconds(draw.below(300)));
        fixture.settings.strict = draw.one_in(4);
        fixture.settings.on_failure =
            [None, Some(OnFailure::Hold), Some(OnFailure::RollBack)][draw.below(3) as usize];
        if draw.one_in(2) {
            let steps = [(5, 10), (25, 0), (100, 0)];
            let steps = steps.map(|(percent, hold)| SplitStep {
                percent,
                hold: seconds(hold),
            });
            fixture.settings.steps = steps.into();
        }
        fixture.seen.split = percent(draw.below(101) as u8);
        fixture.seen.proxies = (0..1 + draw.below(5))
            .map(|i| proxy(&format!("p{i}")))
            .collect();
        let change = (0, fixture.now);
        Self {
            fixture,
            draw,
            listed: Draw(!seed),
            roles,
            past: VecDeque::new(),
            change,
            is_contested: false,
            promised: [0, 0],
        }
    }

    /// Runs one step of a controller whose writes can get lost, and checks it.
    fn step(&mut self) {
        let before = self.fixture.clone();
        let decision = before.peek();
        self.holds(&before, &decision);
        self.promised[0] += u64::from(decision.last_old_worker_dispensable);
        self.promised[1] += u64::from(decision.safe_to_delete_old);
        match self.draw.below(20) {
            // The API server rejects the split, so the decision and the observation are discarded.
            0 => _ = self.past.pop_back(),
            // The controller crashes between its two writes.
            1 => {
                self.fixture.write(&decision);
                self.past.pop_back();
            }
            // It crashes once it has recorded a failure.
            2 if matches!(decision.actions.first(), Some(Action::RecordFailure(_))) => {
                if let Some(Action::RecordFailure(memory)) = decision.actions.first() {
                    self.fixture.memory = (**memory).clone();
                }
                self.past.pop_back();
                assert!(self.fixture.peek().memory.trial.failure.is_some());
            }
            _ => {
                self.fixture.step();
                let mut again = self.fixture.peek();
                if self.fixture.seen.proxies.is_empty() {
                    // Without proxies, nothing has to be applied first, so the end continues immediately.
                    again.events.retain(|event| event.reason != "Draining");
                }
                assert_eq!(
                    (again.actions, again.events),
                    (vec![], vec![]),
                    "a decision applied is at rest"
                );
            }
        }
        if self.draw.one_in(16) {
            let status = serde_json::to_string(&self.fixture.memory).unwrap();
            self.fixture.memory = serde_json::from_str(&status).unwrap();
        }
    }

    /// Heals everything. The split must then match the workers exactly.
    fn calm(&mut self) {
        let fixture = &mut self.fixture;
        fixture.settings.paused = false;
        fixture.settings.drain_old = false;
        // A person tries again without an analysis.
        let analysed = (
            fixture.settings.on_failure.take(),
            std::mem::take(&mut fixture.settings.steps),
        );
        fixture.settings.retry = Some(fixture.now.unix_millis().to_string());
        fixture.seen.trial_result = None;
        fixture.seen.superseded_by = None;
        fixture.seen.frontends.new = frontends();
        for (role, full) in &self.roles {
            let whole = Workers {
                ready: *full,
                desired: *full,
            };
            fixture.seen.workers.old.insert(*role, whole);
            fixture.seen.workers.new.insert(*role, whole);
        }
        fixture
            .seen
            .proxies
            .iter_mut()
            .for_each(|proxy| *proxy = self::proxy(&proxy.name));
        fixture.seen.frontends.old = frontends();
        fixture.seen.resource_generation += 1;
        fixture.settle();
        let even = percent(50);
        let cap = percent(fixture.settings.cap_percent.unwrap_or(100));
        let wanted = if cap.share_of_new() < 0.5 { cap } else { even };
        assert_eq!(fixture.seen.split, wanted, "in a calm");
        assert_eq!(
            fixture.memory.full_sizes,
            self.roles.iter().copied().collect()
        );
        (fixture.settings.on_failure, fixture.settings.steps) = analysed;
        self.past.clear();
        // The generation was first seen during the calm.
        self.change = (fixture.seen.resource_generation, Timestamp::default());
    }
}

/// Prints the seed of the history if it fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the history of seed {} broke a rule", self.0);
        }
    }
}

/// Checks this many histories, and that they cover all phases and contested edits.
fn histories(count: u64) {
    let mut phases = std::collections::BTreeMap::new();
    let mut contested = 0;
    let mut promised = [0, 0];
    for seed in (0..count).chain(FOUND) {
        let _named = Named(seed);
        let mut simulation = Simulation::of(seed);
        // Step once so that the accepted sizes are recorded before anything changes.
        simulation.fixture.step();
        for step in 1..=STEPS {
            simulation.pass();
            simulation.step();
            *phases
                .entry(simulation.fixture.memory.phase.as_str())
                .or_insert(0_u64) += 1;
            if step % 100 == 0 {
                simulation.calm();
            }
        }
        contested += u64::from(simulation.is_contested);
        promised = [0, 1].map(|i| promised[i] + simulation.promised[i]);
    }
    assert!(
        phases.len() == 5 && phases.values().all(|steps| *steps > 2 * count),
        "{phases:?}"
    );
    assert!(contested > count / 2, "{contested}");
    // And steps at which each flag is true, or nothing was tested of it.
    assert!(promised.iter().all(|steps| *steps > 0), "{promised:?}");
}

#[test]
fn ten_thousand_steps_of_random_histories_break_no_rule() {
    histories(25);
}

#[test]
#[ignore = "takes a minute in a debug build: make scaling-laws"]
fn a_hundred_thousand_steps_of_random_histories_break_no_rule() {
    histories(250);
}
