//! What must hold at each action, computed from what was read and not with the code under test.

use super::*;

/// What both generations are, as the invariants count them.
struct Counted<'a> {
    settings: &'a RolloutSettings,
    seen: &'a RolloutObservation,
}

impl Simulation {
    /// Checks an action against what was read and, if nothing has happened since then, against what is.
    pub(super) fn keeps_the_invariants(
        &self,
        read: &RolloutObservation,
        decision: &ScalingDecision,
        tick: u64,
    ) {
        let settings = &self.cluster.settings;
        let counted = |seen| Counted { settings, seen };
        self.keeps(&counted(read), decision);
        if self.disturbed_at < tick && read.is_current {
            let mut truth = self.cluster.read();
            // These are of what was read, and change by themselves.
            truth.is_current = true;
            truth.traffic.open = read.traffic.open;
            truth.traffic.split = read.traffic.split;
            self.keeps_in_truth(&counted(&truth), decision);
        }
    }

    fn keeps(&self, is: &Counted, decision: &ScalingDecision) {
        let Some(action) = &decision.action else {
            return;
        };
        if let ScalingAction::Split(split) = action {
            let is_held = is.settings.intent == Intent::Hold;
            assert!(!is_held || is.is_emergency(*split), "a hold moves nothing");
            return is.splits_by_capacity(*split);
        }
        assert!(
            is.seen.is_current,
            "only an emergency is decided on an old view"
        );
        assert_ne!(
            is.settings.intent,
            Intent::Hold,
            "a hold writes nothing else"
        );
        is.nobody_else_scales();
        match action {
            ScalingAction::Grow { generation, sizes } => {
                assert!(!is.settings.in_place, "it would be one replica too many");
                is.keeps_proportion(*generation, sizes);
                is.has_room(*generation, sizes);
                let roles = &is.seen.generations.of(*generation).roles;
                assert!(
                    { sizes }
                        .iter()
                        .all(|(role, size)| *size >= roles[role].desired)
                );
            }
            ScalingAction::Shrink { generation, sizes } => {
                is.keeps_proportion(*generation, sizes);
                is.keeps_capacity(*generation, sizes);
                is.was_applied();
                is.was_lowered(*generation, sizes);
                is.drains(*generation, sizes);
                is.had_verdict(*generation);
            }
            ScalingAction::Replace {
                generation,
                role,
                pods,
            } => {
                let roles = &is.seen.generations.of(*generation).roles;
                let sizes = roles.iter().map(|(role, workers)| (*role, workers.desired));
                is.was_applied();
                is.keeps_capacity_without(*generation, *role, pods);
                if roles[role].leaving.len() == pods.len() {
                    is.drains(*generation, &sizes.collect());
                }
            }
            ScalingAction::Retire(_) => {
                assert!(is.seen.clients.safe_to_delete_old);
                assert_eq!(is.seen.clients.service, Some(Generation::New));
                assert!(is.units(Generation::Old, |workers| workers.desired) == 0);
            }
            ScalingAction::Retarget(Generation::New) => {
                assert!(is.seen.clients.selector_saved, "there is a way back");
                assert!(is.settings.handover.clients == ClientHandover::Automatic);
            }
            _ => {}
        }
    }

    /// What a view of different times must not have hidden.
    fn keeps_in_truth(&self, is: &Counted, decision: &ScalingDecision) {
        match &decision.action {
            Some(ScalingAction::Grow { generation, sizes }) => is.has_room(*generation, sizes),
            Some(ScalingAction::Shrink { generation, sizes }) => {
                is.keeps_capacity(*generation, sizes)
            }
            Some(ScalingAction::Replace {
                generation,
                role,
                pods,
            }) => {
                is.keeps_capacity_without(*generation, *role, pods);
            }
            _ => {}
        }
    }
}

impl Counted<'_> {
    fn units(&self, generation: Generation, of: impl Fn(&RoleReplicas) -> u32) -> u32 {
        let roles = &self.seen.generations.of(generation).roles;
        let full = self.settings.shape.full(generation).iter();
        let units = full.map(|(role, full)| of(&roles[role]) * self.whole() / full);
        units.min().expect("there are roles").min(self.whole())
    }

    fn whole(&self) -> u32 {
        let shape = &self.settings.shape;
        let both =
            Generation::ALL.map(|generation| *shape.full(generation).values().max().unwrap());
        both[0].max(both[1])
    }

    /// Ready units that serve.
    fn ready(&self, generation: Generation) -> u32 {
        self.ready_of(generation, |workers| workers.ready)
    }

    fn ready_of(&self, generation: Generation, of: impl Fn(&RoleReplicas) -> u32) -> u32 {
        let is_bad = generation == Generation::New && self.new_is_bad();
        match self.seen.generations.of(generation).serves == Serves::No || is_bad {
            true => 0,
            false => self.units(generation, of),
        }
    }

    fn new_is_bad(&self) -> bool {
        let settings = self.settings;
        let goes_back = settings.intent == Intent::Abort || settings.superseded;
        let is_analysed = match settings.strategy.analysis {
            Some(OnFailure::RollBack) => true,
            Some(OnFailure::Hold) => goes_back,
            None => false,
        };
        is_analysed && self.seen.verdict == TrialVerdict::Fail && settings.intent != Intent::Promote
    }

    fn floor(&self) -> u32 {
        let unavailable = match self.settings.strategy.max_unavailable {
            Amount::Count(count) => count,
            Amount::Percent(percent) => {
                let down = percent * self.whole() / 100;
                // Both limits 0 by a percentage count as one.
                let surge = self.surge();
                if surge == 0 && percent > 0 {
                    down.max(1)
                } else {
                    down
                }
            }
        };
        self.whole() - unavailable.min(self.whole() - 1)
    }

    fn surge(&self) -> u32 {
        match self.settings.strategy.max_surge {
            Amount::Count(count) => count,
            Amount::Percent(percent) => (percent * self.whole()).div_ceil(100),
        }
    }

    /// Ready capacity stays at or above the full size less `maxUnavailable`, or loses nothing where the world has taken more.
    fn keeps_capacity(&self, generation: Generation, sizes: &Sizes) {
        let other = self.ready(generation.other());
        let before = self.ready(generation) + other;
        let roles = &self.seen.generations.of(generation).roles;
        let stays = self
            .settings
            .shape
            .full(generation)
            .iter()
            .map(|(role, full)| roles[role].ready.min(sizes[role]) * self.whole() / full);
        let stays = match self.ready(generation) {
            0 => 0,
            _ => stays.min().unwrap().min(self.whole()),
        };
        let after = stays + other;
        assert!(
            after >= before.min(self.floor()),
            "{after} of {before} units stay: {generation} to {sizes:?} of {:?}, {:?}",
            self.seen,
            self.settings
        );
        assert!(before == 0 || after > 0, "something must serve");
    }

    /// No role occupies more than the full size plus the surge, rounded up in both generations, and no more GPUs than allowed.
    fn has_room(&self, generation: Generation, sizes: &Sizes) {
        let occupied = |of: Generation| -> Vec<(Role, u32)> {
            let roles = self.seen.generations.of(of).roles.iter();
            let count = roles.map(|(role, workers)| {
                let size = match of == generation {
                    true => sizes[role],
                    false => workers.desired,
                };
                (*role, size.max(workers.present) + workers.terminating)
            });
            count.collect()
        };
        let (limit, mut parts, mut gpus) = (self.whole() + self.surge(), 0.0, 0);
        for of in Generation::ALL {
            let full = self.settings.shape.full(of);
            let part = |(role, count): &(Role, u32)| {
                // Less than one replica of each generation is rounding.
                f64::from(count.saturating_sub(1)) / f64::from(full[role])
            };
            let occupied = occupied(of);
            parts += occupied.iter().map(part).fold(0.0, f64::max);
            let each = { occupied }.into_iter().map(|(role, count)| {
                count
                    * self
                        .settings
                        .gpus
                        .of(of)
                        .get(&role)
                        .copied()
                        .unwrap_or_default()
            });
            gpus += each.sum::<u32>();
        }
        let most = f64::from(limit) / f64::from(self.whole());
        assert!(parts < most, "{parts} of {most}");
        if let Some(budget) = self.settings.strategy.gpu_budget {
            assert!(gpus <= budget, "{gpus} of {budget} GPUs");
        }
    }

    /// Every role that is written is within one replica of its part of some number of units.
    fn keeps_proportion(&self, generation: Generation, sizes: &Sizes) {
        let full = self.settings.shape.full(generation);
        let roles = &self.seen.generations.of(generation).roles;
        let fits = |units: u32| {
            sizes.iter().all(|(role, size)| {
                let part = f64::from(units * full[role]) / f64::from(self.whole());
                *size == roles[role].desired || (f64::from(*size) - part).abs() < 1.0
            })
        };
        assert!((0..=self.whole()).any(fits), "{sizes:?}");
        let one = |role: Role| sizes[&role] == 0;
        let some_empty = sizes.keys().any(|role| one(*role));
        let written = |role: &Role| sizes[role] != roles[role].desired;
        let all_empty = sizes.keys().all(|role| one(*role) || !written(role));
        assert!(
            !some_empty || all_empty || sizes.keys().any(|role| roles[role].desired == 0),
            "{sizes:?}"
        );
    }

    /// The generation gets no more requests than its part of what stays.
    fn was_lowered(&self, generation: Generation, sizes: &Sizes) {
        let split = self.seen.traffic.split;
        let stays = self.ready_of(generation, |workers| workers.ready);
        let full = self.settings.shape.full(generation);
        let roles = &self.seen.generations.of(generation).roles;
        let whole = self.whole();
        let fits = { full.iter() }
            .map(|(role, full)| roles[role].ready.min(sizes[role]) * whole / full)
            .min();
        let stays = stays.min(fits.expect("there are roles"));
        // What is cold gets no more yet.
        let other = self.ready_of(generation.other(), |workers| workers.warm);
        let part = |a: u32, b: u32| u64::from(a) * u64::from(b);
        // Without anything that serves, no split is better than another.
        assert!(
            stays + other == 0
                || part(split.of(generation), other) <= part(split.of(generation.other()), stays),
            "{generation} keeps {stays} beside {other} and gets {split:?}: {:?}",
            self.seen
        );
    }

    /// All requests leave a generation that cannot serve, or that is bad.
    fn is_emergency(&self, split: Weights) -> bool {
        Generation::ALL.into_iter().any(|generation| {
            let serves = self.ready(generation) + self.leaving(generation) > 0;
            split.of(generation) == 0 && !serves
        })
    }

    /// Every proxy has applied the split.
    fn was_applied(&self) {
        let traffic = &self.seen.traffic;
        assert!(!traffic.applied.is_empty());
        let all = traffic.applied.iter();
        assert!({ all }.all(|applied| *applied == Some(traffic.split)));
    }

    /// The last unit goes after its last request and its last stream.
    fn drains(&self, generation: Generation, sizes: &Sizes) {
        let traffic = &self.seen.traffic;
        if sizes.values().any(|size| *size > 0) {
            return;
        }
        assert_eq!(traffic.split.of(generation), 0, "it gets no request");
        let other = self.ready_of(generation.other(), |workers| workers.warm);
        assert!(other > 0, "the other generation serves");
        let deadline = self.settings.strategy.drain_deadline;
        let is_over = deadline.is_some_and(|deadline| traffic.applied_for >= deadline);
        assert!(is_over || traffic.open.is_some_and(|open| *open.of(generation) == 0));
        if generation == Generation::Old {
            assert_ne!(self.seen.clients.last_worker, LastWorker::Needed);
        } else {
            assert_eq!(self.seen.clients.direct_to_new, Some(false));
        }
    }

    /// The same if these pods are replaced, which count as ready capacity until then.
    fn keeps_capacity_without(&self, generation: Generation, role: Role, pods: &[String]) {
        let is_gone = |leaving: &&PodToReplace| leaving.ready && pods.contains(&leaving.name);
        let leaving = &self.seen.generations.of(generation).roles[&role].leaving;
        let gone = match self.leaving(generation) {
            0 => 0,
            _ => leaving.iter().filter(is_gone).count() as u32,
        };
        let before: u32 = { Generation::ALL.into_iter() }
            .map(|generation| self.ready(generation) + self.leaving(generation))
            .sum();
        let after = before - gone;
        assert!(
            after >= before.min(self.floor()),
            "{after} of {before} units stay without {pods:?} of {generation}: {:?}",
            self.seen
        );
        assert!(before == 0 || after > 0, "something must serve");
    }

    /// Ready pods that have to be replaced, of a generation that serves.
    fn leaving(&self, generation: Generation) -> u32 {
        let is_bad = generation == Generation::New && self.new_is_bad();
        let seen = self.seen.generations.of(generation);
        let leaving = seen.roles.values().flat_map(|workers| &workers.leaving);
        match seen.serves == Serves::No || is_bad {
            true => 0,
            false => leaving.filter(|pod| pod.ready).count() as u32,
        }
    }

    /// Old does not shrink while new is known to be bad.
    fn had_verdict(&self, generation: Generation) {
        let strategy = &self.settings.strategy;
        let has_verdict = strategy.analysis.is_some() && self.settings.intent == Intent::Run;
        if generation == Generation::Old && has_verdict && !self.settings.superseded {
            assert_ne!(self.seen.verdict, TrialVerdict::Fail);
        }
    }

    fn nobody_else_scales(&self) {
        for generation in Generation::ALL {
            let generation = self.seen.generations.of(generation);
            assert_eq!(generation.scaler, None);
            for workers in generation.roles.values() {
                let is_recorded = workers.recorded.is_none_or(|size| size == workers.desired);
                assert!(workers.ours || is_recorded || self.seen.accepts_sizes);
            }
        }
    }

    /// No generation gets more than its part of what is ready and asked for, as long as as much is needed as is promised. What
    /// somebody else has given up may be ready for a moment longer.
    fn splits_by_capacity(&self, split: Weights) {
        let total = u64::from(split.old()) + u64::from(split.new_weight());
        let ready_of = |generation| {
            let ready = self.ready_of(generation, |workers| workers.ready.min(workers.desired));
            ready + self.leaving(generation)
        };
        let all = ready_of(Generation::Old) + ready_of(Generation::New);
        // What is ready but cold is not counted on yet.
        let warm_of =
            |generation| self.ready_of(generation, |workers| workers.warm.min(workers.desired));
        let warm = warm_of(Generation::Old) + warm_of(Generation::New);
        let needed = u64::from(warm.min(self.floor()));
        for generation in Generation::ALL {
            let ready = match all {
                // Where neither serves as it should, what is ready is better than nothing.
                0 => u64::MAX,
                _ => u64::from(ready_of(generation)),
            };
            let other = generation.other();
            let is_urgent = split.of(other) == 0 && self.ready(other) + self.leaving(other) == 0;
            let is_bad = generation == Generation::Old && self.new_is_bad();
            let load = u64::from(split.of(generation)) * needed;
            assert!(
                load <= ready.saturating_mul(total) || is_urgent || is_bad,
                "{generation} gets {split:?} with {ready} of {all}"
            );
        }
    }
}
