//! The modelled cluster: workers that start and terminate, the proxies' split, streams, and the clients' Service.

use std::collections::BTreeMap;

use super::{
    Scenario,
    pods::{Ending, Pod},
    traffic::Arrivals,
};
use crate::rollout::{PerGeneration, Role};
use crate::scaling::{ScalingAction, Sizes};
use crate::split::{Generation, Weights};

/// The workers of one role.
#[derive(Clone, Debug, Default)]
pub(super) struct Workload {
    pub desired: u32,
    /// Whether this rollout has written its size.
    pub ours: bool,
    /// When its status reflects its size.
    pub observed_at: u64,
    pub pods: Vec<Pod>,
}

/// Stream totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Streams that were started.
    pub begun: u64,
    /// Streams that another worker continued when theirs terminated.
    pub moved: u64,
    /// Streams that ended by themselves on a terminating worker, or on a generation that waited for them before it shrank.
    pub waited_for: u64,
    /// Streams that were cut when the grace period of their worker ended.
    pub cut: u64,
    /// Requests that no worker could take.
    pub refused: u64,
}

/// The cluster. Times are seconds since the start.
pub(super) struct Cluster<'a> {
    pub scenario: &'a Scenario,
    pub now: u64,
    pub generations: PerGeneration<BTreeMap<Role, Workload>>,
    pub split: Weights,
    /// The split that the proxies have applied.
    pub applied: Weights,
    pub applied_at: u64,
    pub service: Generation,
    pub selector_saved: bool,
    pub retired: bool,
    pub changed_at: u64,
    pub unready_since: u64,
    pub rest_since: u64,
    /// Streams that came through the frontends of each generation.
    pub through: PerGeneration<u64>,
    /// When the frontends of old last had a client.
    pub came_to_old_at: u64,
    pub arrivals: Arrivals,
    pub counts: Counts,
    /// The generation whose streams a step waits for.
    pub draining: Option<Generation>,
    /// The GPU-seconds that were used.
    pub gpu_seconds: u64,
    next_pod: u64,
    pub next_worker: usize,
}

impl<'a> Cluster<'a> {
    /// The initial state: old is complete and ready, new has no workers, and the average number of streams is open.
    pub fn of(scenario: &'a Scenario) -> Self {
        let empty = |generation: Generation| {
            let roles = scenario.settings.shape.full(generation).keys();
            roles.map(|role| (*role, Workload::default())).collect()
        };
        let mut cluster = Self {
            scenario,
            now: 0,
            generations: PerGeneration {
                old: empty(Generation::Old),
                new: empty(Generation::New),
            },
            split: Weights::ALL_OLD,
            applied: Weights::ALL_OLD,
            applied_at: 0,
            service: Generation::Old,
            selector_saved: false,
            retired: false,
            changed_at: 0,
            unready_since: 0,
            rest_since: 0,
            through: PerGeneration::default(),
            came_to_old_at: 0,
            arrivals: Arrivals::new(scenario.rate, scenario.stream_p99.as_secs_f64()),
            counts: Counts::default(),
            draining: None,
            gpu_seconds: 0,
            next_pod: 0,
            next_worker: 0,
        };
        for (role, size) in scenario.settings.shape.full(Generation::Old) {
            let pods = (0..*size).map(|_| cluster.pod(0, 0)).collect();
            let workload = Workload {
                desired: *size,
                pods,
                ..Workload::default()
            };
            cluster.generations.old.insert(*role, workload);
        }
        cluster.scale(Generation::New, &scenario.begun);
        for workload in cluster.generations.new.values_mut() {
            workload.ours = false;
        }
        cluster.fill();
        cluster
    }

    fn pod(&mut self, ready_at: u64, warm_at: u64) -> Pod {
        self.next_pod += 1;
        Pod::new(self.next_pod, ready_at, warm_at)
    }

    /// Advances the time by a second.
    pub fn tick(&mut self) {
        self.now += 1;
        if self.applied != self.split && self.now >= self.applied_at {
            self.applied = self.split;
        }
        self.end_streams();
        self.move_off_old();
        self.remove();
        if self.scenario.settings.in_place {
            self.take_places();
        }
        self.clients();
        let rests = self.workloads().all(|workload| {
            let ready = workload.pods.iter().filter(|pod| pod.is_ready(self.now));
            ready.count() == workload.desired as usize
        });
        if rests {
            self.unready_since = self.now;
        } else {
            self.rest_since = self.now;
        }
        self.gpu_seconds += self.gpus();
    }

    fn workloads(&self) -> impl Iterator<Item = &Workload> {
        self.generations
            .old
            .values()
            .chain(self.generations.new.values())
    }

    /// The GPUs of all pods, including terminating ones.
    pub fn gpus(&self) -> u64 {
        let generations = Generation::ALL.into_iter();
        generations.map(|generation| self.gpus_of(generation)).sum()
    }

    /// The same for one generation.
    pub fn gpus_of(&self, generation: Generation) -> u64 {
        let gpus = self.scenario.settings.gpus.of(generation);
        let roles = self.generations.of(generation).iter();
        let each = roles.map(|(role, workload)| {
            let gpus = gpus.get(role).copied().unwrap_or_default();
            u64::from(gpus) * workload.pods.len() as u64
        });
        each.sum()
    }

    /// Applies an action.
    pub fn apply(&mut self, action: &ScalingAction) {
        match action {
            ScalingAction::Split(split) => {
                self.split = *split;
                self.applied_at = self.now + self.scenario.apply.as_secs();
            }
            ScalingAction::Grow { generation, sizes }
            | ScalingAction::Shrink { generation, sizes } => {
                self.scale(*generation, sizes);
            }
            ScalingAction::Mark {
                generation,
                role,
                pods,
            } => {
                if let Some(workload) = self.generations.of_mut(*generation).get_mut(role) {
                    for pod in &mut workload.pods {
                        pod.marked = pods.contains(&pod.number.to_string());
                    }
                }
            }
            // This happens only on the way back of a rollout within one object, which begins with only old.
            ScalingAction::Replace { .. } => {}
            ScalingAction::SaveSelector => self.selector_saved = true,
            ScalingAction::Retarget(generation) => self.service = *generation,
            ScalingAction::Retire(_) => self.retired = true,
        }
    }

    /// Sets sizes. Within one object, the size of one generation determines that of the other.
    fn scale(&mut self, generation: Generation, sizes: &Sizes) {
        self.resize(generation, sizes);
        if self.scenario.settings.in_place {
            let full = self.scenario.settings.shape.full(generation);
            for (role, workload) in self.generations.of_mut(generation.other()) {
                let whole = full.get(role).copied().unwrap_or_default();
                let rest = sizes.get(role).map(|size| whole.saturating_sub(*size));
                workload.desired = rest.unwrap_or(workload.desired);
                workload.ours = true;
                workload.observed_at = self.now + 1;
            }
        }
    }

    /// Within one object, a replica starts when its predecessor has ended.
    fn take_places(&mut self) {
        let shape = &self.scenario.settings.shape;
        let ready_at = self.now + self.scenario.startup.as_secs();
        let warm_at = ready_at + self.scenario.stable.as_secs();
        for (role, full) in shape.full(Generation::Old) {
            let taken = |generation: &BTreeMap<Role, Workload>| {
                generation
                    .get(role)
                    .map_or(0, |workload| workload.pods.len()) as u32
            };
            let mut free =
                full.saturating_sub(taken(&self.generations.old) + taken(&self.generations.new));
            for generation in Generation::ALL {
                let workload = self.generations.of(generation).get(role);
                let short = workload.map_or(0, |workload| {
                    workload.desired.saturating_sub(workload.present())
                });
                let more = short.min(free);
                let pods: Vec<_> = (0..more).map(|_| self.pod(ready_at, warm_at)).collect();
                if let Some(workload) = self.generations.of_mut(generation).get_mut(role) {
                    workload.pods.extend(pods);
                }
                free -= more;
            }
        }
    }

    fn resize(&mut self, generation: Generation, sizes: &Sizes) {
        for (role, size) in sizes {
            let ready_at = self.now + self.scenario.startup.as_secs();
            let warm_at = ready_at + self.scenario.stable.as_secs();
            let present = self.generations.of(generation).get(role);
            let present = present.map_or(0, Workload::present);
            let more = size.saturating_sub(present);
            let pods: Vec<_> = (0..more).map(|_| self.pod(ready_at, warm_at)).collect();
            let now = self.now;
            if let Some(workload) = self.generations.of_mut(generation).get_mut(role) {
                workload.desired = *size;
                workload.ours = true;
                workload.observed_at = now + 1;
                workload.pods.extend(pods);
            }
            for _ in *size..present {
                self.end_one(generation, *role);
            }
        }
        self.changed_at = self.now;
        self.rest_since = self.now;
    }

    /// Terminates the next pod to be removed.
    fn end_one(&mut self, generation: Generation, role: Role) {
        let (now, scenario) = (self.now, self.scenario);
        let Some(workload) = self.generations.of_mut(generation).get_mut(&role) else {
            return;
        };
        let staying = workload.pods.iter_mut().filter(|pod| pod.ending.is_none());
        // In a set with ordinals, the last one is removed first; otherwise those that are not ready, then those marked.
        let first = staying.max_by_key(|pod| {
            let is_first = scenario.chooses && (!pod.is_ready(now) || pod.marked);
            (is_first, scenario.chooses && !pod.is_ready(now), pod.number)
        });
        let Some(pod) = first else {
            return;
        };
        pod.ending = Some(Ending {
            earliest: now + scenario.stop.as_secs(),
            killed_at: now + scenario.grace.as_secs().max(scenario.stop.as_secs()),
        });
        if scenario.settings.strategy.continuation {
            let streams = pod.lose(usize::MAX);
            self.counts.moved += streams.len() as u64 * self.arrivals.stands_for;
            for stream in streams {
                // On its own generation, else on the other one.
                if !self.assign(generation, stream) && !self.assign(generation.other(), stream) {
                    *self.through.of_mut(stream.through) -= 1;
                    self.counts.moved -= self.arrivals.stands_for;
                    self.counts.cut += self.arrivals.stands_for;
                }
            }
        }
    }
}

impl Workload {
    /// The pods that are not terminating.
    pub fn present(&self) -> u32 {
        let staying = self.pods.iter().filter(|pod| pod.ending.is_none());
        staying.count() as u32
    }
}
