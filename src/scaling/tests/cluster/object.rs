//! A scaled object and its pods.

use super::*;

/// Ticks until a pod is ready, until it is warm, and until it has ended.
const START: u32 = 2;
pub(super) const WARM: u32 = 4;
pub(super) const END: u32 = 2;

/// The object that scales one role.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Object {
    pub version: u64,
    pub desired: u32,
    pub recorded: Option<u32>,
    pub ours: bool,
    /// The version that its status is of.
    pub observed: u64,
    /// The ages of its pods.
    pub pods: Vec<u32>,
    /// How long its pods that end still take.
    pub ending: Vec<u32>,
    /// In place: the ages of its pods that should belong to the other generation, by name, until they are deleted.
    pub leaving: BTreeMap<u64, u32>,
    /// How many pods have been to leave so far.
    pub named: u64,
}

impl Object {
    /// The places that its pods take.
    pub fn taken(&self) -> u32 {
        self.pods.len() as u32 + self.ending.len() as u32 + self.leaving.len() as u32
    }

    pub fn pass(&mut self, is_broken: bool, in_place: Option<Generation>) {
        self.observed = self.version;
        self.ending.iter_mut().for_each(|left| *left -= 1);
        self.ending.retain(|left| *left > 0);
        for age in self.pods.iter_mut().chain(self.leaving.values_mut()) {
            let most = if is_broken { START - 1 } else { WARM };
            *age = most.min(*age + 1).max(*age);
        }
        // Those that are not ready go first.
        self.pods.sort_unstable_by(|a, b| b.cmp(a));
        while self.pods.len() > self.desired as usize {
            let age = self.pods.pop();
            match in_place {
                Some(Generation::New) => {
                    self.leaving.extend(age.map(|age| (self.named, age)));
                    self.named += 1;
                }
                _ => self.ending.push(END),
            }
        }
        // The size was set back: they may stay.
        let short = self.desired.saturating_sub(self.pods.len() as u32);
        let back = (0..short).map_while(|_| self.leaving.pop_first());
        self.pods.extend(back.map(|(_, age)| age));
        if in_place.is_none() {
            self.pods.resize(self.desired as usize, 0);
        }
    }

    pub fn ready(&self) -> u32 {
        self.pods.iter().filter(|age| **age >= START).count() as u32
    }

    /// Whether a request that arrives now is served. Pods that will be replaced serve until then.
    pub fn serves(&self) -> bool {
        self.ready() > 0 || self.leaving.values().any(|age| *age >= START)
    }

    /// Whether open streams continue. Terminating pods serve their streams until they have ended.
    pub fn carries(&self) -> bool {
        self.serves() || !self.ending.is_empty()
    }

    pub fn seen(&self, grace: Duration) -> RoleReplicas {
        RoleReplicas {
            desired: self.desired,
            observed: self.observed == self.version,
            present: self.pods.len() as u32,
            terminating: (self.ending.len() + self.leaving.len()) as u32,
            leaving: { self.leaving.iter() }
                .map(|(pod, age)| PodToReplace {
                    name: pod.to_string(),
                    ready: *age >= START,
                })
                .collect(),
            ready: self.ready(),
            warm: self.pods.iter().filter(|age| **age >= WARM).count() as u32,
            recorded: self.recorded,
            ours: self.ours,
            grace: Some(grace),
            removes: RemovalOrder::Unready,
            resources: BTreeMap::new(),
        }
    }
}
