//! What happens between two looks.

use super::*;

/// Settings of all kinds.
pub(super) fn any_settings(draw: &mut Draw) -> RolloutSettings {
    let full = 1 + draw.below(6) as u32;
    let pair = [
        (Role::Prefill, full),
        (Role::Decode, 1 + draw.below(4) as u32),
    ];
    let mut settings = match draw.below(3) {
        0 => settings(&[(Role::Worker, full)]),
        _ => settings(&pair),
    };
    // One worker alone cannot be replaced while it serves.
    let is_one = settings.shape.full(Generation::Old).len() == 1 && full > 1;
    settings.in_place = is_one && draw.one_in(2);
    if !settings.in_place && draw.one_in(5) {
        // New has another shape.
        let old = settings.shape.full(Generation::Old).clone();
        let new: Sizes = [(Role::Worker, 1 + draw.below(6) as u32)].into();
        settings.gpus.new = [(Role::Worker, 16)].into();
        settings.shape = Shape::of(PerGeneration { old, new }).expect("sizes are not 0");
    }
    limits(&mut settings, draw);
    let strategy = &mut settings.strategy;
    if draw.one_in(3) {
        strategy.partition = draw.below(7) as u32;
    }
    if draw.one_in(3) {
        strategy.steps = vec![
            ScaleStep {
                new: Amount::Percent(25),
                hold: seconds(10 * draw.below(12)),
            },
            ScaleStep {
                new: Amount::Percent(50),
                hold: seconds(10 * draw.below(12)),
            },
        ];
    }
    strategy.ready_timeout = seconds(100 + draw.below(200));
    strategy.step_interval = seconds([0, 0, 30][draw.below(3) as usize]);
    strategy.drain_deadline = draw.one_in(2).then(|| seconds(draw.below(120)));
    strategy.analysis =
        [None, Some(OnFailure::Hold), Some(OnFailure::RollBack)][draw.below(3) as usize];
    strategy.continuation = draw.one_in(3);
    strategy.allow_short_grace = draw.one_in(3);
    settings.handover = Handover {
        clients: [
            ClientHandover::Automatic,
            ClientHandover::Automatic,
            ClientHandover::Manual,
        ][draw.below(3) as usize],
        retire: [Retire::Keep, Retire::ScaleToZero, Retire::Delete][draw.below(3) as usize],
    };
    settings
}

/// How far both generations may exceed the full size, and fall below it.
fn limits(settings: &mut RolloutSettings, draw: &mut Draw) {
    let strategy = &mut settings.strategy;
    strategy.max_surge = [
        Amount::Count(1),
        Amount::Count(0),
        Amount::Count(2),
        Amount::Percent(50),
        Amount::Percent(100),
    ][draw.below(5) as usize];
    strategy.max_unavailable =
        [Amount::Count(0), Amount::Count(1), Amount::Percent(50)][draw.below(3) as usize];
    if settings.in_place {
        strategy.max_surge = Amount::Count(0);
        if strategy.max_unavailable == Amount::Count(0) {
            strategy.max_unavailable = Amount::Count(1);
        }
    }
    let budget = 8 * (2 + draw.below(20)) as u32;
    strategy.gpu_budget = draw.one_in(3).then_some(budget);
}

impl Simulation {
    pub(super) fn happen(&mut self) {
        if self.draw.one_in(25) {
            self.owner();
        }
        if self.draw.one_in(8) {
            self.cluster();
        }
    }

    /// The owner changes the rollout.
    fn owner(&mut self) {
        let (settings, draw) = (&mut self.cluster.settings, &mut self.draw);
        match draw.below(11) {
            0..=2 => settings.intent = Intent::Run,
            8..=9 => {
                settings.intent = Intent::Run;
                settings.strategy.partition = 0;
                settings.superseded = false;
            }
            3 => settings.intent = Intent::Hold,
            4 => settings.intent = Intent::Promote,
            5 => settings.intent = Intent::Abort,
            // A third revision.
            6 => settings.superseded = true,
            7 => limits(settings, draw),
            _ => settings.strategy.partition = draw.below(5) as u32,
        }
        self.third_generation();
        self.cluster.accepts_sizes = self.draw.one_in(2);
    }

    /// The caller begins another generation once the one before is taken back.
    fn third_generation(&mut self) {
        let decision = decide(&self.cluster.settings, &self.cluster.read());
        if !self.cluster.settings.superseded || decision.progress != Progress::RolledBack {
            return;
        }
        for object in self.cluster.objects.new.values() {
            assert!(object.desired == 0 && object.pods.is_empty() && object.ending.is_empty());
        }
        assert!(self.cluster.split.is_all_old(), "two generations at most");
        self.cluster.settings.superseded = false;
        self.cluster.verdict = TrialVerdict::Inconclusive;
        self.new_objects();
    }

    fn new_objects(&mut self) {
        for object in self.cluster.objects.new.values_mut() {
            object.version += 1;
            (object.recorded, object.ours) = (None, false);
        }
        self.disturb();
    }

    fn disturb(&mut self) {
        self.disturbed_at = self.cluster.tick;
        // What was read before is from before.
        self.past.clear();
        self.written = None;
    }

    /// The rest of the world.
    fn cluster(&mut self) {
        let generation = match self.draw.one_in(2) {
            true => Generation::Old,
            false => Generation::New,
        };
        let (cluster, draw) = (&mut self.cluster, &mut self.draw);
        let tick = cluster.tick;
        match draw.below(16) {
            0 | 1 => {
                // A pod dies: it ends, and another one takes its place.
                let objects = cluster.generation_mut(generation).values_mut();
                for object in objects.filter(|object| !object.pods.is_empty()) {
                    object.pods[0] = 0;
                    object.ending.push(2);
                }
                self.disturbed_at = tick;
            }
            2 => {
                cluster
                    .generation_mut(generation)
                    .values_mut()
                    .for_each(|object| object.pods.fill(0));
                self.disturbed_at = tick;
            }
            3 => cluster.new_is_broken = draw.one_in(2),
            4 | 5 => {
                let serves = [Serves::Yes, Serves::No, Serves::Unknown][draw.below(3) as usize];
                match generation {
                    Generation::Old => cluster.serves.old = serves,
                    Generation::New => cluster.serves.new = serves,
                }
                self.disturbed_at = tick;
            }
            6 => {
                cluster.serves = PerGeneration {
                    old: Serves::Yes,
                    new: Serves::Yes,
                };
                self.disturbed_at = tick;
            }
            7 => {
                // Scaled by another client.
                let mut size = draw.below(5) as u32;
                if cluster.settings.in_place {
                    size = size.min(cluster.settings.shape.units());
                }
                let objects = cluster.generation(generation).iter();
                let others = objects.filter(|(_, object)| object.desired != size);
                for role in others.map(|(role, _)| *role).collect::<Vec<_>>() {
                    cluster.resize(generation, role, size, false, false);
                }
                self.disturbed_at = tick;
            }
            8 => {
                // They put it back, or the owner accepts it.
                let objects = cluster.generation(generation).iter();
                let recorded = objects.filter_map(|(role, object)| {
                    let recorded = object.recorded.filter(|size| *size != object.desired)?;
                    Some((*role, recorded, object.ours))
                });
                for (role, recorded, ours) in recorded.collect::<Vec<_>>() {
                    cluster.resize(generation, role, recorded, ours, false);
                }
                cluster.accepts_sizes = draw.one_in(2);
                self.disturbed_at = tick;
            }
            9 => cluster.scaler = draw.one_in(6).then(|| "hpa/other".to_owned()),
            10 => {
                let count = draw.below(3) as usize;
                let silent = draw.one_in(4);
                let applied = (!silent).then_some(Weights::ALL_OLD);
                cluster.applied = vec![applied; count];
                self.disturbed_at = tick;
            }
            11 => cluster.open_known = !draw.one_in(3),
            12 => {
                let verdicts = [
                    TrialVerdict::Inconclusive,
                    TrialVerdict::Pass,
                    TrialVerdict::Fail,
                ];
                if cluster.verdict != TrialVerdict::Fail {
                    cluster.verdict = verdicts[draw.below(8).min(2) as usize];
                }
                self.disturbed_at = tick;
            }
            13 => cluster.quota = draw.one_in(2).then(|| 8 * draw.below(3) as u32),
            14 => {
                cluster.grace = seconds([30, 600][draw.below(2) as usize]);
                cluster.p99 = [None, Some(seconds(300))][draw.below(2) as usize];
            }
            _ => cluster.needs_last_worker = draw.one_in(2),
        }
    }

    /// Everything is well from now on.
    pub(super) fn heal(&mut self) {
        if let Some((_, Some((action, read)))) = self.late.take() {
            self.cluster.apply(&action, &read, usize::MAX, false);
        }
        let cluster = &mut self.cluster;
        cluster.serves = PerGeneration {
            old: Serves::Yes,
            new: Serves::Yes,
        };
        cluster.scaler = None;
        cluster.quota = None;
        cluster.new_is_broken = false;
        cluster.open_known = true;
        cluster.needs_last_worker = false;
        cluster.accepts_sizes = true;
        cluster.applied = vec![Some(cluster.split); 2];
        cluster.verdict = TrialVerdict::Pass;
        (cluster.grace, cluster.p99) = (seconds(600), Some(seconds(300)));
        if cluster.settings.intent == Intent::Hold {
            cluster.settings.intent = Intent::Run;
        }
        // The owner may have left no way to the end.
        let is_stuck = |partition: u32| {
            let mut settings = cluster.settings.clone();
            settings.strategy.partition = partition;
            settings.intent = Intent::Run;
            settings.superseded = false;
            settings.strategy.allow_short_grace = true;
            let fresh = Cluster::of(settings);
            decide(&fresh.settings, &fresh.read()).progress == Progress::Refused
        };
        if is_stuck(0) || is_stuck(cluster.settings.strategy.partition) {
            if !cluster.settings.in_place {
                cluster.settings.strategy.max_surge = Amount::Count(1);
            }
            cluster.settings.strategy.gpu_budget = None;
        }
        // A person moves the clients where the controller does not.
        let back = cluster.settings.intent == Intent::Abort || cluster.settings.superseded;
        if cluster.settings.handover.clients == ClientHandover::Manual || cluster.retired {
            let moves = !back && cluster.settings.strategy.partition == 0;
            cluster.service = match moves {
                true => Generation::New,
                false => Generation::Old,
            };
            cluster.retired = false;
        }
    }

    /// Another rollout: of the same two generations, back, or to a revision.
    pub(super) fn begin_anew(&mut self, progress: &Progress) {
        let has_ended = matches!(progress, Progress::Complete | Progress::RolledBack);
        if has_ended && !self.cluster.settings.in_place && self.draw.one_in(3) {
            return self.undo(*progress == Progress::RolledBack);
        }
        let settings = self.cluster.settings.clone();
        let mut next = match self.draw.one_in(3) {
            true => self.cluster.clone(),
            false => Cluster::of(settings),
        };
        next.tick = self.cluster.tick;
        if self.draw.one_in(2) {
            next.settings.superseded = false;
            next.settings.intent = Intent::Run;
        }
        next.accepts_sizes = true;
        // A quota that is used up refuses a rollout that must grow first.
        next.quota = self.draw.one_in(8).then_some(0);
        self.cluster = next;
        self.last = None;
        self.disturb();
    }

    /// The owner goes back to a revision, which is old from now on. New is what serves: the generations are exchanged if that
    /// was old.
    fn undo(&mut self, old_serves: bool) {
        let cluster = &mut self.cluster;
        if old_serves {
            swap(&mut cluster.objects);
            swap(&mut cluster.open);
            swap(&mut cluster.settings.gpus);
            let [new, old] =
                Generation::ALL.map(|generation| cluster.settings.shape.full(generation).clone());
            cluster.settings.shape =
                Shape::of(PerGeneration { old, new }).expect("sizes are not 0");
        }
        for generation in Generation::ALL {
            for object in cluster.generation_mut(generation).values_mut() {
                object.version += 1;
                (object.recorded, object.ours) = (Some(object.desired), true);
            }
        }
        cluster.service = Generation::New;
        cluster.service_version += 1;
        cluster.split = Weights::ALL_NEW;
        cluster.split_version += 1;
        cluster.applied = vec![Some(Weights::ALL_NEW); 2];
        cluster.selector_saved = true;
        cluster.retired = false;
        cluster.settings.intent = Intent::Abort;
        cluster.settings.superseded = false;
        *self.counts.entry("Undo".to_owned()).or_default() += 1;
        self.last = None;
        self.disturb();
    }
}

fn swap<T>(generations: &mut PerGeneration<T>) {
    std::mem::swap(&mut generations.old, &mut generations.new);
}
