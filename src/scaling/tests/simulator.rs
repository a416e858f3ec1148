//! Checks the invariants at each action of long random histories, in a cluster that does everything to break them: reads that
//! are old or of different times, writes that are lost, half done, late or done twice, controllers that crash, pods that die or
//! never become ready, other people who scale, quotas, and owners who change their mind.
//!
//! Histories are deterministic: each is given by its seed, which a failure prints.

#[cfg(test)]
mod changes;
#[cfg(test)]
mod invariants;

use std::collections::VecDeque;

use super::cluster::Versions;
use super::*;

/// Looks of one history.
const LOOKS: u64 = 400;

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct Draw(u64);

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

/// A moment that may be read later.
struct Past {
    seen: RolloutObservation,
    versions: Versions,
    tick: u64,
}

struct Simulation {
    cluster: Cluster,
    draw: Draw,
    past: VecDeque<Past>,
    /// What this process has written.
    written: Option<Versions>,
    /// A write whose result is unknown: it takes effect at this tick, if ever, and nothing is decided before.
    late: Option<(u64, Option<(ScalingAction, Versions)>)>,
    /// When something happened that no controller can know of before it reads.
    disturbed_at: u64,
    /// What was last done, in which versions.
    last: Option<(ScalingAction, Versions)>,
    /// How many times each progress and each action was seen.
    counts: std::collections::BTreeMap<String, u64>,
}

impl Simulation {
    fn of(seed: u64) -> Self {
        let mut draw = Draw(seed);
        loop {
            let cluster = Cluster::of(changes::any_settings(&mut draw));
            if feasible_path(&cluster.settings, &cluster.read()).is_some() {
                return Self {
                    cluster,
                    draw,
                    past: VecDeque::new(),
                    written: None,
                    late: None,
                    disturbed_at: 0,
                    last: None,
                    counts: std::collections::BTreeMap::new(),
                };
            }
        }
    }

    /// Something happens, some time passes, and the controller looks.
    fn look(&mut self) {
        self.happen();
        for _ in 0..self.draw.below(3) {
            self.cluster.pass();
        }
        self.past.push_front(Past {
            seen: self.cluster.read(),
            versions: self.cluster.versions(),
            tick: self.cluster.tick,
        });
        self.past.truncate(12);
        if let Some((due, write)) = self.late.take() {
            if self.cluster.tick < due {
                self.late = Some((due, write));
                return;
            }
            if let Some((action, read)) = write {
                self.cluster.apply(&action, &read, usize::MAX, false);
            }
            // It is read again from the start.
            self.written = None;
            return;
        }
        let (seen, versions, tick) = self.read();
        let decision = decide(&self.cluster.settings, &seen);
        assert_eq!(decision, decide(&self.cluster.settings, &seen));
        *self
            .counts
            .entry(format!("{:?}", decision.progress))
            .or_default() += 1;
        self.keeps_the_invariants(&seen, &decision, tick);
        let Some(action) = decision.action else {
            return;
        };
        self.counts_action(&action);
        self.write(action, versions);
    }

    fn counts_action(&mut self, action: &ScalingAction) {
        let reported = format!("{action:?}");
        let name = reported.split([' ', '(']).next().expect("it has a name");
        *self.counts.entry(name.to_owned()).or_default() += 1;
    }

    /// What the controller reads: often what is, sometimes each part as it was at another time.
    fn read(&mut self) -> (RolloutObservation, Versions, u64) {
        let is_fresh = self.written.is_none() || !self.draw.one_in(3);
        let back = |simulation: &mut Self| match is_fresh {
            true => 0,
            false => simulation.draw.below(simulation.past.len() as u64) as usize,
        };
        let (a, mut b, c) = (back(self), back(self), back(self));
        // Both generations of one object are read at the same time.
        if self.cluster.settings.in_place {
            b = a;
        }
        let [old, new, traffic] = [a, b, c].map(|back| &self.past[back]);
        let mut seen = traffic.seen.clone();
        seen.generations.old = old.seen.generations.old.clone();
        seen.generations.new = new.seen.generations.new.clone();
        seen.accepts_sizes = self.cluster.accepts_sizes;
        let mut versions = traffic.versions.clone();
        for (key, version) in &mut versions.objects {
            let generation = if key.0 { new } else { old };
            *version = generation.versions.objects[key];
        }
        let written = self.written.as_ref();
        seen.is_current = written.is_none_or(|written| versions.include(written));
        let tick = old.tick.min(new.tick).min(traffic.tick);
        (seen, versions, tick)
    }

    /// Writes, if nothing goes wrong.
    fn write(&mut self, action: ScalingAction, read: Versions) {
        match self.draw.below(24) {
            // The controller crashes after some of the writes, or before it records them.
            0 => {
                let writes = self.draw.below(3) as usize;
                self.cluster.apply(&action, &read, writes, false);
                self.written = None;
            }
            // No answer: lost, or late.
            1 | 2 => {
                let due = self.cluster.tick + 2;
                let write = (!self.draw.one_in(2)).then_some((action, read));
                self.late = Some((due, write));
            }
            // Done twice.
            3 => {
                let is_done = self.cluster.apply(&action, &read, usize::MAX, true);
                let is_scaling = matches!(
                    action,
                    ScalingAction::Grow { .. }
                        | ScalingAction::Shrink { .. }
                        | ScalingAction::Split(_)
                );
                let again = self.cluster.apply(&action, &read, usize::MAX, true);
                assert!(!is_done || !again || !is_scaling || self.is_done(&action));
                self.wrote(action, read, is_done);
            }
            _ => {
                let is_done = self.cluster.apply(&action, &read, usize::MAX, true);
                self.wrote(action, read, is_done);
            }
        }
    }

    fn wrote(&mut self, action: ScalingAction, read: Versions, is_done: bool) {
        // After a conflict it is read again from the start.
        self.written = is_done.then(|| self.cluster.versions());
        if !is_done {
            return;
        }
        let this = (action, read);
        // A pod that is deleted already is still in an older list. Deleting it again does nothing.
        let is_harmless = matches!(this.0, ScalingAction::Replace { .. });
        assert!(
            is_harmless || self.last.as_ref() != Some(&this),
            "an action done is not done again: {this:?}"
        );
        self.last = Some(this);
    }

    fn is_done(&self, action: &ScalingAction) -> bool {
        match action {
            ScalingAction::Split(split) => self.cluster.split == *split,
            ScalingAction::Grow { generation, sizes }
            | ScalingAction::Shrink { generation, sizes } => {
                let objects = self.cluster.generation(*generation);
                { sizes }
                    .iter()
                    .all(|(role, size)| objects[role].desired == *size)
            }
            _ => true,
        }
    }

    /// Nothing more happens: the rollout must end with one generation, or at its partition.
    fn calm(&mut self) -> Progress {
        self.heal();
        let cluster = &mut self.cluster;
        let (mut decision, mut way) = cluster.run(2000);
        // A person has moved the clients before new has a whole unit, and follows the message.
        if cluster.service == Generation::New && decision.waits == [Wait::DirectClients] {
            cluster.service = Generation::Old;
            way.extend(cluster.run(2000).1);
            cluster.service = Generation::New;
            (decision, _) = cluster.run(2000);
        }
        let settings = &cluster.settings;
        let whole = settings.shape.units();
        let partition = settings.strategy.partition.min(whole);
        let back = settings.intent == Intent::Abort || settings.superseded;
        let (old, progress) = match (back, partition) {
            (true, _) => (whole, Progress::RolledBack),
            (false, 0) => (0, Progress::Complete),
            (false, partition) => (partition, Progress::Partition),
        };
        assert_eq!(
            decision.progress, progress,
            "{:?} after {way:?} with {settings:?} of {:?}",
            decision.waits, cluster.objects
        );
        for (generation, units) in [(Generation::Old, old), (Generation::New, whole - old)] {
            for (role, size) in settings.shape.sizes(generation, units) {
                let object = &cluster.generation(generation)[&role];
                let is = (object.desired, object.ready(), object.ending.len());
                assert_eq!(is, (size, size, 0), "{generation} {role} {way:?}");
            }
        }
        *self
            .counts
            .entry(format!("{progress:?} at last"))
            .or_default() += 1;
        progress
    }
}

/// Prints the seed of the history if it fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the history of seed {} broke a law", self.0);
        }
    }
}

fn histories(seeds: std::ops::Range<u64>) -> std::collections::BTreeMap<String, u64> {
    let mut counts = std::collections::BTreeMap::new();
    for seed in seeds {
        let _named = Named(seed);
        let mut simulation = Simulation::of(seed);
        for look in 1..=LOOKS {
            simulation.look();
            if look % 100 == 0 {
                let progress = simulation.calm();
                simulation.begin_anew(&progress);
            }
        }
        for (name, count) in simulation.counts {
            *counts.entry(name).or_default() += count;
        }
    }
    counts
}

#[test]
fn twenty_thousand_reconciles_of_an_adverse_cluster_break_no_invariant() {
    let counts = histories(0..50);
    // Everything must have happened.
    for name in [
        "Refused",
        "Forward",
        "Back",
        "Held",
        "Contested",
        "Stalled",
        "Partition",
        "Complete",
        "RolledBack",
        "Split",
        "Grow",
        "Shrink",
        "Replace",
        "Retarget",
        "Retire",
        "Undo",
    ] {
        assert!(
            counts.get(name).is_some_and(|count| *count > 3),
            "{name}: {counts:?}"
        );
    }
}

#[test]
#[ignore = "takes a minute in a release build: make scaling-laws"]
fn a_million_reconciles_of_an_adverse_cluster_break_no_invariant() {
    let given = std::env::var("SCALING_SEEDS").ok();
    let seeds = given.as_deref().unwrap_or("1000..3500");
    let (first, end) = seeds.split_once("..").expect("FIRST..END");
    let seed = |text: &str| text.parse().expect("a seed is a whole number");
    histories(seed(first)..seed(end));
}
