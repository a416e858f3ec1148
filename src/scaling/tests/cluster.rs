//! A modelled cluster: objects with versions, pods that start and end, proxies, streams and clients. A tick is ten seconds.

mod actions;
mod object;

use std::collections::BTreeMap;

pub(super) use self::object::Object;
use self::object::WARM;
use super::*;

/// Seconds per tick.
pub(super) const TICK: u64 = 10;

/// How many streams the clients have open if all are served.
const CLIENTS: u64 = 100;

#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub settings: RolloutSettings,
    pub tick: u64,
    pub objects: PerGeneration<BTreeMap<Role, Object>>,
    pub serves: PerGeneration<Serves>,
    pub scaler: Option<String>,
    pub split: Weights,
    pub split_version: u64,
    pub applied: Vec<Option<Weights>>,
    pub open: PerGeneration<u64>,
    pub open_known: bool,
    pub verdict: TrialVerdict,
    pub service: Generation,
    pub service_version: u64,
    pub selector_saved: bool,
    pub retired: bool,
    pub accepts_sizes: bool,
    pub retire_obstacle: Option<String>,
    pub lost: PerGeneration<Option<String>>,
    pub needs_last_worker: bool,
    /// Pods of new never become ready.
    pub new_is_broken: bool,
    pub quota: Option<u32>,
    pub pods_left: Option<u32>,
    pub resources_left: BTreeMap<String, u64>,
    /// What one replica takes of them.
    pub resources: BTreeMap<String, u64>,
    pub handed_over: bool,
    pub grace: Duration,
    pub p99: Option<Duration>,
    resized_at: u64,
    /// Since when nothing has been resized and every worker has been ready.
    at_rest_since: u64,
    unready_since: u64,
    applied_since: u64,
    /// Since when old's proxies get no client.
    quiet_since: u64,
}

/// The versions of what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Versions {
    pub objects: BTreeMap<(bool, Role), u64>,
    pub split: u64,
    /// The state of the clients' Service, and of what has been retired.
    pub service: u64,
}

impl Versions {
    /// Whether this was read after `written`, or together with it.
    pub fn include(&self, written: &Self) -> bool {
        let written_objects = written.objects.iter();
        self.split >= written.split && self.service >= written.service && { written_objects }
            .all(|(key, version)| self.objects.get(key) >= Some(version))
    }
}

impl Cluster {
    /// Old is whole and ready, new has nothing.
    pub fn of(settings: RolloutSettings) -> Self {
        let objects = |generation: Generation, part: bool| {
            let full = settings.shape.full(generation).iter();
            full.map(|(role, size)| {
                let size = if part { *size } else { 0 };
                let object = Object {
                    version: 1,
                    desired: size,
                    observed: 1,
                    pods: vec![WARM; size as usize],
                    ..Object::default()
                };
                (*role, object)
            })
            .collect()
        };
        Self {
            objects: PerGeneration {
                old: objects(Generation::Old, true),
                new: objects(Generation::New, false),
            },
            tick: 0,
            serves: PerGeneration {
                old: Serves::Yes,
                new: Serves::Yes,
            },
            scaler: None,
            split: Weights::ALL_OLD,
            split_version: 1,
            applied: vec![Some(Weights::ALL_OLD); 2],
            open: PerGeneration {
                old: CLIENTS,
                new: 0,
            },
            open_known: true,
            verdict: TrialVerdict::Pass,
            service: Generation::Old,
            service_version: 1,
            selector_saved: false,
            retired: false,
            accepts_sizes: false,
            retire_obstacle: None,
            lost: PerGeneration::default(),
            needs_last_worker: false,
            new_is_broken: false,
            quota: None,
            pods_left: None,
            resources_left: BTreeMap::new(),
            resources: BTreeMap::new(),
            handed_over: false,
            grace: seconds(600),
            p99: Some(seconds(300)),
            resized_at: 0,
            at_rest_since: 0,
            unready_since: 0,
            applied_since: 0,
            quiet_since: 0,
            settings,
        }
    }

    pub fn generation(&self, generation: Generation) -> &BTreeMap<Role, Object> {
        self.objects.of(generation)
    }

    pub fn generation_mut(&mut self, generation: Generation) -> &mut BTreeMap<Role, Object> {
        self.objects.of_mut(generation)
    }

    pub fn versions(&self) -> Versions {
        let generations = Generation::ALL.into_iter();
        let objects = generations.flat_map(|generation| {
            let objects = self.generation(generation).iter();
            objects
                .map(move |(role, object)| ((generation == Generation::New, *role), object.version))
        });
        Versions {
            objects: objects.collect(),
            split: self.split_version,
            service: self.service_version,
        }
    }

    /// Sets the size of a role, as one write. In place, one number is the size of both generations.
    pub fn resize(
        &mut self,
        generation: Generation,
        role: Role,
        size: u32,
        ours: bool,
        records: bool,
    ) {
        (self.resized_at, self.at_rest_since) = (self.tick, self.tick);
        let rest = self.settings.shape.units() - size.min(self.settings.shape.units());
        let both = [(generation, size), (generation.other(), rest)];
        let sizes = if self.settings.in_place { 2 } else { 1 };
        for (generation, size) in both.into_iter().take(sizes) {
            let object = self
                .generation_mut(generation)
                .get_mut(&role)
                .expect("the role exists");
            object.desired = size;
            object.version += 1;
            object.ours = ours;
            if records {
                object.recorded = Some(size);
            }
        }
    }

    /// The replicas of one object are of old or of new: one begins when the one before it has ended.
    fn take_places(&mut self) {
        for role in self
            .generation(Generation::Old)
            .keys()
            .copied()
            .collect::<Vec<_>>()
        {
            let [old, new] =
                Generation::ALL.map(|generation| self.generation(generation)[&role].clone());
            let mut free = self
                .settings
                .shape
                .units()
                .saturating_sub(old.taken() + new.taken());
            // What is deleted below the partition is of old again.
            for generation in Generation::ALL {
                let object = self
                    .generation_mut(generation)
                    .get_mut(&role)
                    .expect("the role exists");
                let more = object
                    .desired
                    .saturating_sub(object.pods.len() as u32)
                    .min(free);
                object.pods.extend(vec![0; more as usize]);
                free -= more;
            }
        }
    }

    /// Ten seconds pass.
    pub fn pass(&mut self) {
        self.tick += 1;
        for generation in Generation::ALL {
            let is_broken = self.new_is_broken && generation == Generation::New;
            let in_place = self.settings.in_place;
            for object in self.generation_mut(generation).values_mut() {
                object.pass(is_broken, in_place.then_some(generation));
            }
        }
        if self.settings.in_place {
            self.take_places();
        }
        let (split, tick) = (self.split, self.tick);
        for proxy in self.applied.iter_mut().flatten() {
            if *proxy != split {
                *proxy = split;
                self.applied_since = tick;
            }
        }
        if self.is_at_rest() {
            self.unready_since = self.tick;
        } else {
            self.at_rest_since = self.tick;
        }
        if self.service == Generation::Old {
            self.quiet_since = self.tick;
        }
        self.streams();
    }

    /// A third of the streams end, and break where a role has no worker any more. Clients begin others where the split says. They
    /// fail where a role has no ready worker, and are sent again with the next ones.
    fn streams(&mut self) {
        for generation in Generation::ALL {
            let carries = self.generation(generation).values().all(Object::carries);
            let open = self.open.of_mut(generation);
            *open = if carries { *open * 2 / 3 } else { 0 };
        }
        let begun = CLIENTS - self.open.old - self.open.new;
        let applied = self.applied.iter().flatten().next().copied();
        let split = applied.unwrap_or(self.split);
        let total = u64::from(split.old()) + u64::from(split.new_weight());
        let new = match self.service {
            Generation::Old => begun * u64::from(split.new_weight()) / total,
            Generation::New => begun,
        };
        for (generation, begun) in [(Generation::Old, begun - new), (Generation::New, new)] {
            if self.generation(generation).values().all(Object::serves) {
                *self.open.of_mut(generation) += begun;
            }
        }
    }

    fn is_at_rest(&self) -> bool {
        let objects = self.objects.old.values().chain(self.objects.new.values());
        { objects }.all(|object| {
            let ready = object.ready();
            object.observed == object.version && ready == object.desired
        })
    }

    /// What is read now.
    pub fn read(&self) -> RolloutObservation {
        let is_applied = !self.applied.is_empty()
            && self
                .applied
                .iter()
                .all(|applied| *applied == Some(self.split));
        let leaves_old = is_applied && self.split.is_all_new();
        let quiet = self.tick - self.quiet_since >= 3 && leaves_old && self.open.old == 0;
        RolloutObservation {
            is_current: true,
            unfinished: Vec::new(),
            generations: PerGeneration {
                old: self.seen(Generation::Old),
                new: self.seen(Generation::New),
            },
            traffic: Traffic {
                split: self.split,
                applied: self.applied.clone(),
                applied_for: seconds((self.tick - self.applied_since) * TICK),
                open: Some(self.open).filter(|_| self.open_known),
                p99: self.p99,
            },
            verdict: self.verdict,
            clients: ClientRouting {
                handed_over: self.handed_over,
                service: Some(self.service),
                selector_saved: self.selector_saved,
                direct_to_new: Some(self.service == Generation::New),
                last_worker: match (leaves_old && !self.needs_last_worker, self.open.old) {
                    (false, _) => LastWorker::Needed,
                    (true, 0) => LastWorker::Dispensable,
                    (true, _) => LastWorker::Streams,
                },
                safe_to_delete_old: quiet && self.service == Generation::New,
                retired: self.retired,
            },
            unchanged_for: seconds((self.tick - self.resized_at) * TICK),
            at_rest_for: seconds((self.tick - self.at_rest_since) * TICK),
            unready_for: seconds((self.tick - self.unready_since) * TICK),
            quota_left: self.quota,
            pods_left: self.pods_left,
            resources_left: self.resources_left.clone(),
            accepts_sizes: self.accepts_sizes,
            retire_obstacle: self.retire_obstacle.clone(),
        }
    }

    fn seen(&self, generation: Generation) -> GenerationObservation {
        let roles = self.generation(generation).iter();
        GenerationObservation {
            roles: roles
                .map(|(role, object)| {
                    let resources = self.resources.clone();
                    let seen = object.seen(self.grace);
                    (*role, RoleReplicas { resources, ..seen })
                })
                .collect(),
            serves: *self.serves.of(generation),
            frontends: 1,
            scaler: self
                .scaler
                .clone()
                .filter(|_| generation == Generation::Old),
            lost: self.lost.of(generation).clone(),
        }
    }
}
