//! Long random histories of two generations, their proxies, people and a controller that dies, held against the rules after
//! each step.
//!
//! Deterministic: a history is its seed, which a failure names. What must hold is reckoned here from the world and not by
//! the code that is tested.

use std::collections::VecDeque;

use super::*;
use crate::split::Generation;

/// Histories, and steps in each: 100,000 in all.
const HISTORIES: u64 = 250;
const STEPS: u64 = 400;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }
}

/// What was usable of each side at a moment.
struct Past {
    at: Moment,
    usable: Sides<Ratio>,
}

struct World {
    scene: Scene,
    draw: Draw,
    roles: Vec<(Role, u32)>,
    /// Since the clock last jumped, or an emergency credited a side without a wait.
    past: VecDeque<Past>,
    /// The generation of the resource as the controller last saw it, and since when it sees it.
    change: (u64, Moment),
    /// Was an edit ever taken back?
    is_contested: bool,
}

impl World {
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
        let mut scene = Scene::of(&roles);
        scene.settings.stable = seconds(draw.below(10));
        scene.settings.ack_timeout = seconds(draw.below(40));
        scene.settings.drain_deadline = draw.one_in(2).then(|| seconds(draw.below(300)));
        scene.settings.strict = draw.one_in(4);
        scene.seen.split = percent(draw.below(101) as u8);
        scene.seen.proxies = (0..1 + draw.below(5))
            .map(|i| proxy(&format!("p{i}")))
            .collect();
        let change = (0, scene.now);
        Self {
            scene,
            draw,
            roles,
            past: VecDeque::new(),
            change,
            is_contested: false,
        }
    }

    /// Time passes, and things happen.
    fn pass(&mut self) {
        if self.draw.one_in(100) {
            let jump = self.draw.below(2_000_000_000_000);
            self.scene.now = Moment::from_unix_millis(jump);
            self.past.clear();
        }
        let milliseconds = self.draw.below(4000);
        self.scene.wait(Duration::from_millis(milliseconds));
        for _ in 0..self.draw.below(3) {
            match self.draw.below(10) {
                0..=4 => self.worker(),
                5..=8 => self.proxy(),
                _ => self.rarity(),
            }
        }
        for proxy in &mut self.scene.seen.proxies {
            // Most hear of a change at once.
            if let Some(state) = proxy.state.as_mut().ok().filter(|_| !self.draw.one_in(8)) {
                state.applied = self.scene.seen.resource_generation;
            }
        }
    }

    /// A worker comes or goes, on either side; or a whole side does.
    fn worker(&mut self) {
        let (role, full) = self.roles[self.draw.below(self.roles.len() as u64) as usize];
        let sides = &mut self.scene.seen.workers;
        let is_old = self.draw.one_in(2);
        let side = if is_old {
            &mut sides.old
        } else {
            &mut sides.new
        };
        if self.draw.one_in(12) {
            side.values_mut().for_each(|workers| workers.ready = 0);
            return;
        }
        let workers = side.entry(role).or_default();
        match self.draw.below(8) {
            0 if is_old => workers.desired = self.draw.below(u64::from(full) + 1) as u32,
            0 => workers.desired = self.draw.below(u64::from(full) + 2) as u32,
            1 => (workers.desired, workers.ready) = (0, 0),
            2..=3 => workers.ready = workers.ready.saturating_sub(1),
            _ => workers.ready = workers.desired.min(workers.ready + 1),
        }
    }

    /// Something happens to a proxy.
    fn proxy(&mut self) {
        let count = self.scene.seen.proxies.len() as u64;
        if count == 0 || self.draw.one_in(40) {
            // All are gone, or back.
            let count = self.draw.below(4);
            let names = (0..count).map(|i| self::proxy(&format!("p{i}")));
            self.scene.seen.proxies = names.collect();
            return;
        }
        let generation = self.scene.seen.resource_generation;
        let proxy = &mut self.scene.seen.proxies[self.draw.below(count) as usize];
        match self.draw.below(9) {
            0 => proxy.ready = !proxy.ready,
            1 => proxy.state = Err(Silence::NoAnswer),
            2 => proxy.state = Err(Silence::NotYet),
            3 => proxy.state = Err(Silence::NoPort("crossfade".to_owned())),
            // It follows another update.
            4 => {
                if let Ok(state) = &mut proxy.state {
                    state.applied = 0;
                }
            }
            _ => {
                let open_streams = Sides {
                    old: self.draw.below(3),
                    new: self.draw.below(3),
                };
                let applied = generation.saturating_sub(self.draw.below(2));
                proxy.state = Ok(ProxyState {
                    applied,
                    open_streams,
                });
            }
        }
    }

    /// Frontends, models, and people.
    fn rarity(&mut self) {
        let percentage = percent(self.draw.below(101) as u8);
        let cap = self.draw.below(120) as u8;
        let (scene, draw) = (&mut self.scene, &mut self.draw);
        let seen = &mut scene.seen;
        match draw.below(14) {
            0 => seen.frontends.new.endpoints = draw.below(2) as u32,
            1 => seen.frontends.new.models.clear(),
            2..=3 => seen.frontends.new = frontends(),
            4 => scene.settings.paused = draw.one_in(3),
            5 => scene.settings.cap_percent = Some(cap).filter(|cap| *cap < 100),
            6 => seen.superseded_by = draw.one_in(4).then(|| "other".to_owned()),
            7 => seen.clients_reach_old = [None, Some(true), Some(false)][draw.below(3) as usize],
            // Somebody writes the split that is there, which is theirs from now on.
            8 => seen.split_is_ours = false,
            9 => seen.frontends.new.unheard = draw.one_in(2),
            10 => seen.frontends.old.unheard = draw.one_in(2),
            _ => _ = scene.edit(percentage),
        }
        scene.seen.resource_generation += 1;
    }

    /// One step of the controller, whose writes can get lost, and all that must hold of it.
    fn step(&mut self) {
        let before = self.scene.clone();
        let decision = before.peek();
        self.holds(&before, &decision);
        match self.draw.below(20) {
            // The API server refuses the split: the decision is thrown away, and with it what was seen.
            0 => _ = self.past.pop_back(),
            // The controller dies between its two writes.
            1 => {
                self.scene.write(&decision);
                self.past.pop_back();
            }
            _ => {
                self.scene.step();
                let mut again = self.scene.peek();
                if self.scene.seen.proxies.is_empty() {
                    // Nobody has to apply it first: the end goes on at once.
                    again.events.retain(|event| event.reason != "Draining");
                }
                assert_eq!(
                    (again.split, again.events),
                    (None, vec![]),
                    "a decision applied is at rest"
                );
            }
        }
        if self.draw.one_in(16) {
            let status = serde_json::to_string(&self.scene.memory).unwrap();
            self.scene.memory = serde_json::from_str(&status).unwrap();
        }
    }

    fn holds(&mut self, before: &Scene, decision: &Decision) {
        let (usable, serves) = usable(before);
        self.remember(before, usable);
        let next = decision.split.unwrap_or(before.seen.split);
        self.the_rule_is_right(before, decision, serves, next);
        self.gains_have_waited(before, decision);
        losses_are_at_once(before, decision, usable, next);
        the_end_is_in_order(before, decision, next);
        self.edits_are_told(before, decision);
    }

    fn remember(&mut self, before: &Scene, usable: Sides<Ratio>) {
        let generation = before.seen.resource_generation;
        if self.change.0 != generation {
            self.change = (generation, before.now);
        }
        self.change.1 = self.change.1.min(before.now);
        self.past.push_back(Past {
            at: before.now,
            usable,
        });
        if self.past.len() > 100 {
            self.past.pop_front();
        }
    }

    fn the_rule_is_right(
        &self,
        before: &Scene,
        decision: &Decision,
        serves: Sides<bool>,
        next: Weights,
    ) {
        let settings = &before.settings;
        let is_strictly_held = settings.strict && settings.paused;
        let stays = next == before.seen.split;
        let cap = percent(settings.cap_percent.unwrap_or(100));
        let share = next.share_of_new();
        match (serves.old, serves.new) {
            _ if before.seen.superseded_by.is_some() => assert!(stays),
            (false, false) => assert!(stays),
            _ if is_strictly_held => assert_eq!(decision.rule, Rule::Paused),
            (true, false) => assert_eq!(next, Weights::ALL_OLD),
            (false, true) if settings.strict => assert!(share <= cap.share_of_new()),
            (false, true) => assert_eq!(next, Weights::ALL_NEW),
            (true, true) if settings.paused => {
                let is_override = decision.rule == Rule::OldCannotServe;
                assert!(stays || is_override || share <= cap.share_of_new());
            }
            (true, true) if decision.rule != Rule::OldCannotServe => {
                assert!(share <= cap.share_of_new());
            }
            (true, true) => assert_eq!(next, Weights::ALL_NEW),
        }
    }

    /// What counts more than before has been there for long enough, and the proxies had their time.
    fn gains_have_waited(&mut self, before: &Scene, decision: &Decision) {
        let now = before.now;
        let after = decision
            .memory
            .credit
            .as_ref()
            .expect("there is one after a step");
        for (side, emergency) in Generation::ALL
            .into_iter()
            .zip([Weights::ALL_OLD, Weights::ALL_NEW])
        {
            let Some(earlier) = &before.memory.credit else {
                continue;
            };
            let (earlier, gained) = (earlier.of(side).capacity, after.of(side).capacity);
            let next = decision.split.unwrap_or(before.seen.split);
            let is_rescue = matches!(decision.rule, Rule::OldCannotServe | Rule::NewCannotServe)
                && next == emergency;
            if gained <= earlier || is_rescue {
                continue;
            }
            let generation = before.seen.resource_generation;
            let lags = |proxy: &Proxy| {
                let has_applied = |state: &ProxyState| state.applied == generation;
                proxy.ready && !proxy.state.as_ref().is_ok_and(has_applied)
            };
            let had_time = now.since(self.change.1) >= before.settings.ack_timeout;
            assert!(
                had_time || !before.seen.proxies.iter().any(lags),
                "a gain waits for the proxies"
            );
            let stable = before.settings.stable;
            // A sight in which it had not been there yet must lie long enough back.
            let lacked = self
                .past
                .iter()
                .rev()
                .find(|past| *past.usable.of(side) < gained);
            let first_after = lacked.map(|past| now.since(past.at));
            assert!(
                first_after.is_none_or(|ago| ago >= stable),
                "a gain must last"
            );
        }
    }

    fn edits_are_told(&mut self, before: &Scene, decision: &Decision) {
        let told = decision
            .events
            .iter()
            .any(|event| event.reason == "SplitContested");
        let is_ours = before.seen.split_is_ours;
        assert!(!told || (!is_ours && !before.settings.paused && !before.memory.contested));
        self.is_contested |= told;
    }

    /// Everything heals: the split must become exactly what the workers say.
    fn calm(&mut self) {
        let scene = &mut self.scene;
        scene.settings.paused = false;
        scene.seen.superseded_by = None;
        scene.seen.frontends.new = frontends();
        for (role, full) in &self.roles {
            let whole = Workers {
                ready: *full,
                desired: *full,
            };
            scene.seen.workers.old.insert(*role, whole);
            scene.seen.workers.new.insert(*role, whole);
        }
        scene
            .seen
            .proxies
            .iter_mut()
            .for_each(|proxy| *proxy = self::proxy(&proxy.name));
        scene.seen.frontends.old = frontends();
        scene.seen.resource_generation += 1;
        scene.settle();
        let even = percent(50);
        let cap = percent(scene.settings.cap_percent.unwrap_or(100));
        let wanted = if cap.share_of_new() < 0.5 { cap } else { even };
        assert_eq!(scene.seen.split, wanted, "in a calm");
        assert_eq!(
            scene.memory.full_sizes,
            self.roles.iter().copied().collect()
        );
        self.past.clear();
        // Seen first within the calm.
        self.change = (scene.seen.resource_generation, Moment::default());
    }
}

/// The capacities as the world has them, and who can serve: by the sizes of the roles, and for new only if it can be reached
/// and serves. While it is not heard it keeps what it has.
fn usable(scene: &Scene) -> (Sides<Ratio>, Sides<bool>) {
    let accepted = Scene::roles(scene);
    let share = |workers: &std::collections::BTreeMap<Role, Workers>| {
        let shares = accepted.iter().map(|(role, full)| {
            let ready = workers.get(role).map_or(0, |workers| workers.ready);
            Ratio::new(ready.into(), (*full).into()).expect("sizes are not 0")
        });
        shares.min().expect("there are roles")
    };
    let frontends = &scene.seen.frontends.new;
    let (old, new) = (
        share(&scene.seen.workers.old),
        share(&scene.seen.workers.new),
    );
    let credit = scene
        .memory
        .credit
        .as_ref()
        .map(|credit| credit.new.capacity);
    let earned = credit.is_none_or(|credit| !credit.is_zero());
    let keeps = !scene.seen.split.is_all_old() && (scene.settings.paused || earned);
    let is_open = match frontends.unheard {
        true => keeps,
        false => frontends.models.contains(MODEL),
    };
    let serves = Sides {
        old: !old.is_zero(),
        new: is_open && frontends.endpoints > 0 && !new.is_zero(),
    };
    let new = match (serves.new, credit) {
        (false, _) => Ratio::ZERO,
        (true, Some(credit)) if frontends.unheard => new.min(credit),
        _ => new,
    };
    (Sides { old, new }, serves)
}

/// Whoever has less than what counted has no more than its part of what counts now.
fn losses_are_at_once(before: &Scene, decision: &Decision, usable: Sides<Ratio>, next: Weights) {
    let credit = decision
        .memory
        .credit
        .as_ref()
        .expect("there is one after a step");
    assert!(credit.old.capacity <= usable.old && credit.new.capacity <= usable.new);
    let Some(earlier) = &before.memory.credit else {
        return;
    };
    let by_capacity = matches!(decision.rule, Rule::Capacity | Rule::Cap);
    let exact = Ratio::weights(credit.old.capacity, credit.new.capacity);
    let Some(exact) = exact.filter(|_| by_capacity) else {
        return;
    };
    if usable.new < earlier.new.capacity {
        assert!(next.share_of_new() <= exact.share_of_new(), "new lost");
    }
    if usable.old < earlier.old.capacity && decision.rule == Rule::Capacity {
        assert!(next.share_of_new() >= exact.share_of_new(), "old lost");
    }
}

fn the_end_is_in_order(before: &Scene, decision: &Decision, next: Weights) {
    let seen = &before.seen;
    let generation = seen.resource_generation;
    let all_applied = seen.proxies.iter().all(|proxy| {
        proxy
            .state
            .as_ref()
            .is_ok_and(|state| state.applied == generation)
    });
    let open = |of: fn(Sides<u64>) -> u64| {
        let open = seen.proxies.iter().map(|proxy| {
            proxy
                .state
                .as_ref()
                .ok()
                .map(|state| of(state.open_streams))
        });
        open.sum::<Option<u64>>()
    };
    let old_streams = open(|open| open.old);
    let (from, to) = (before.memory.phase, decision.phase);
    if decision.rule == Rule::Superseded {
        assert_eq!(
            decision.old_draining, seen.old_draining,
            "it changes nothing"
        );
    } else {
        assert_eq!(decision.old_draining, to.old_drains());
    }
    if to.old_drains() {
        assert!(
            next.is_all_new() && seen.split.is_all_new(),
            "old has left the split"
        );
    }
    if to == Phase::Draining && from != Phase::Draining {
        assert!(
            all_applied && from != Phase::Complete,
            "draining begins when all know"
        );
    }
    if to == Phase::Complete && from != Phase::Complete {
        assert_eq!(from, Phase::Draining, "no phase is skipped");
        let is_empty = all_applied && seen.old_draining && old_streams == Some(0);
        let elapsed = before.now.since(before.memory.phase_since);
        let is_over = before
            .settings
            .drain_deadline
            .is_some_and(|limit| elapsed >= limit);
        assert!(
            is_empty || is_over,
            "complete is when no stream is left or time is over"
        );
    }
    if decision.last_old_worker_dispensable {
        assert!(to == Phase::Complete && old_streams == Some(0));
    }
    if decision.safe_to_delete_old {
        assert!(decision.last_old_worker_dispensable && seen.clients_reach_old == Some(false));
        assert_eq!(open(|open| open.old + open.new), Some(0));
    }
}

impl Scene {
    /// The roles and their sizes, as they were accepted.
    fn roles(&self) -> Vec<(Role, u32)> {
        let accepted = &self.memory.full_sizes;
        let workers = self.seen.workers.old.iter();
        let first = workers.map(|(role, workers)| (*role, workers.desired.max(workers.ready)));
        first
            .map(|(role, now)| (role, accepted.get(&role).copied().unwrap_or(now).max(1)))
            .collect()
    }
}

/// Names the history that a failure happened in.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the history of seed {} broke a rule", self.0);
        }
    }
}

#[test]
fn a_hundred_thousand_steps_of_random_histories_break_no_rule() {
    let mut phases = std::collections::BTreeMap::new();
    let mut contested = 0;
    for seed in 0..HISTORIES {
        let _named = Named(seed);
        let mut world = World::of(seed);
        // What is accepted is seen before anything happens.
        world.scene.step();
        for step in 1..=STEPS {
            world.pass();
            world.step();
            *phases
                .entry(world.scene.memory.phase.as_str())
                .or_insert(0_u64) += 1;
            if step % 100 == 0 {
                world.calm();
            }
        }
        contested += u64::from(world.is_contested);
    }
    // The histories are worth something: they come by everything.
    assert!(
        phases.len() == 5 && phases.values().all(|count| *count > 500),
        "{phases:?}"
    );
    assert!(contested > HISTORIES / 2, "{contested}");
}
