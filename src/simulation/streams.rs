//! The streams of the modelled cluster: they start, end, move, or are lost with their worker.

use super::{
    cluster::{Cluster, Counts},
    pods::{Pod, Stream},
};
use crate::rollout::{PerGeneration, Role};
use crate::split::Generation;

impl Cluster<'_> {
    /// Opens streams at random points of their durations.
    pub(super) fn fill(&mut self) {
        for index in 0..self.arrivals.open() {
            let length = self.arrivals.length();
            let end = 1 + index.wrapping_mul(7919) % length;
            self.serve(Generation::Old, end, Generation::Old);
        }
        self.counts = Counts::default();
    }

    /// The role whose workers serve the streams of a generation.
    fn serving(&self, generation: Generation) -> Role {
        let roles = self.generations.of(generation);
        let by_preference = [Role::Decode, Role::Worker, Role::Prefill];
        let first = by_preference
            .into_iter()
            .find(|role| roles.contains_key(role));
        first.unwrap_or(Role::Worker)
    }

    /// The streams that are open on the workers of a generation.
    pub fn open(&self, generation: Generation) -> u64 {
        let pods = self
            .generations
            .of(generation)
            .values()
            .flat_map(|workload| &workload.pods);
        let open: usize = pods.map(Pod::open).sum();
        open as u64 * self.arrivals.stands_for
    }

    /// Streams end by themselves.
    pub(super) fn end_streams(&mut self) {
        let (now, each) = (self.now, self.arrivals.stands_for);
        let mut ended = PerGeneration::<u64>::default();
        let mut waited_for = 0;
        for generation in Generation::ALL {
            let is_awaited = self.draining == Some(generation);
            for pod in self
                .generations
                .of_mut(generation)
                .values_mut()
                .flat_map(|workload| &mut workload.pods)
            {
                let streams = pod.ended(now);
                if is_awaited || pod.ending.is_some() {
                    waited_for += streams.len() as u64;
                }
                for stream in streams {
                    *ended.of_mut(stream.through) += 1;
                }
            }
        }
        self.counts.waited_for += waited_for * each;
        self.through.old -= ended.old;
        self.through.new -= ended.new;
    }

    /// Streams are moved off old once all requests go to new.
    pub(super) fn move_off_old(&mut self) {
        let is_continued = self.scenario.settings.strategy.continuation;
        let Some(moves) = self.scenario.moves.filter(|_| is_continued) else {
            return;
        };
        let since = self.now.saturating_sub(self.applied_at);
        if !self.applied.is_all_new() || since < moves.after.as_secs() {
            return;
        }
        let each = self.arrivals.stands_for;
        let mut left = moves.rate.div_ceil(each) as usize;
        let mut streams = Vec::new();
        for pod in self
            .generations
            .old
            .values_mut()
            .flat_map(|workload| &mut workload.pods)
        {
            let taken = pod.lose(left);
            left -= taken.len();
            streams.extend(taken);
        }
        for stream in streams {
            let is_moved = self.assign(Generation::New, stream);
            // New has a ready worker; otherwise, not all requests would go there.
            debug_assert!(is_moved);
            self.counts.moved += each;
        }
    }

    /// Removes terminated pods, which lose the streams that they still have.
    pub(super) fn remove(&mut self) {
        let now = self.now;
        let mut cut = Vec::new();
        for generation in Generation::ALL {
            for workload in self.generations.of_mut(generation).values_mut() {
                for pod in workload.pods.iter_mut().filter(|pod| pod.is_gone(now)) {
                    cut.extend(pod.lose(usize::MAX));
                }
                workload.pods.retain(|pod| !pod.is_gone(now));
            }
        }
        for stream in &cut {
            *self.through.of_mut(stream.through) -= 1;
        }
        self.counts.cut += cut.len() as u64 * self.arrivals.stands_for;
    }

    /// Simulates arriving requests.
    pub(super) fn clients(&mut self) {
        if self.service == Generation::Old {
            self.came_to_old_at = self.now;
        }
        for _ in 0..self.arrivals.next_second(self.scenario.analysis) {
            let generation = match self.service {
                Generation::Old => self.arrivals.generation(self.applied),
                Generation::New => Generation::New,
            };
            self.arrivals.begun(generation);
            let end = self.now + self.arrivals.length();
            self.serve(generation, end, self.service);
        }
    }

    /// Assigns a stream to a worker of `generation` or, if there is none, to one of the other generation.
    fn serve(&mut self, generation: Generation, end: u64, through: Generation) {
        let taken = self.assign(generation, Stream { end, through })
            || self.assign(generation.other(), Stream { end, through });
        match taken {
            true => {
                *self.through.of_mut(through) += 1;
                self.counts.begun += self.arrivals.stands_for;
            }
            false => self.counts.refused += self.arrivals.stands_for,
        }
    }

    pub(super) fn assign(&mut self, generation: Generation, stream: Stream) -> bool {
        let (now, turn, role) = (self.now, self.next_worker, self.serving(generation));
        let Some(workload) = self.generations.of_mut(generation).get_mut(&role) else {
            return false;
        };
        let mut ready: Vec<_> = { workload.pods.iter_mut() }
            .filter(|pod| pod.is_ready(now))
            .collect();
        if ready.is_empty() {
            return false;
        }
        let next = turn % ready.len();
        ready[next].carry(stream);
        self.next_worker = turn.wrapping_add(1);
        true
    }
}
