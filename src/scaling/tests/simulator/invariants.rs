//! What must hold at each action, computed from what was read and not with the code under test.

use super::*;

/// What both sides are, as the invariants count them.
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
            ScalingAction::Grow { side, sizes } => {
                assert!(!is.settings.in_place, "it would be one replica too many");
                is.keeps_proportion(*side, sizes);
                is.has_room(*side, sizes);
                let roles = &is.seen.sides.of(*side).roles;
                assert!(
                    { sizes }
                        .iter()
                        .all(|(role, size)| *size >= roles[role].desired)
                );
            }
            ScalingAction::Shrink { side, sizes } => {
                is.keeps_proportion(*side, sizes);
                is.keeps_capacity(*side, sizes);
                is.was_applied();
                is.was_lowered(*side, sizes);
                is.drains(*side, sizes);
                is.had_verdict(*side);
            }
            ScalingAction::Replace { side, role, pods } => {
                let roles = &is.seen.sides.of(*side).roles;
                let sizes = roles.iter().map(|(role, workers)| (*role, workers.desired));
                is.was_applied();
                is.keeps_capacity_without(*side, *role, pods);
                if roles[role].leaving.len() == pods.len() {
                    is.drains(*side, &sizes.collect());
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
            Some(ScalingAction::Grow { side, sizes }) => is.has_room(*side, sizes),
            Some(ScalingAction::Shrink { side, sizes }) => is.keeps_capacity(*side, sizes),
            Some(ScalingAction::Replace { side, role, pods }) => {
                is.keeps_capacity_without(*side, *role, pods);
            }
            _ => {}
        }
    }
}

impl Counted<'_> {
    fn units(&self, side: Generation, of: impl Fn(&RoleReplicas) -> u32) -> u32 {
        let roles = &self.seen.sides.of(side).roles;
        let full = self.settings.shape.full(side).iter();
        let units = full.map(|(role, full)| of(&roles[role]) * self.whole() / full);
        units.min().expect("there are roles").min(self.whole())
    }

    fn whole(&self) -> u32 {
        let shape = &self.settings.shape;
        let both = Generation::ALL.map(|side| *shape.full(side).values().max().unwrap());
        both[0].max(both[1])
    }

    /// Ready units that serve.
    fn ready(&self, side: Generation) -> u32 {
        self.ready_of(side, |workers| workers.ready)
    }

    fn ready_of(&self, side: Generation, of: impl Fn(&RoleReplicas) -> u32) -> u32 {
        let is_bad = side == Generation::New && self.new_is_bad();
        match self.seen.sides.of(side).serves == Serves::No || is_bad {
            true => 0,
            false => self.units(side, of),
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
    fn keeps_capacity(&self, side: Generation, sizes: &Sizes) {
        let other = self.ready(side.other());
        let before = self.ready(side) + other;
        let roles = &self.seen.sides.of(side).roles;
        let stays = self
            .settings
            .shape
            .full(side)
            .iter()
            .map(|(role, full)| roles[role].ready.min(sizes[role]) * self.whole() / full);
        let stays = match self.ready(side) {
            0 => 0,
            _ => stays.min().unwrap().min(self.whole()),
        };
        let after = stays + other;
        assert!(
            after >= before.min(self.floor()),
            "{after} of {before} units stay: {side} to {sizes:?} of {:?}, {:?}",
            self.seen,
            self.settings
        );
        assert!(before == 0 || after > 0, "something must serve");
    }

    /// No role occupies more than the full size plus the surge, rounded up on both sides, and no more GPUs than allowed.
    fn has_room(&self, side: Generation, sizes: &Sizes) {
        let occupied = |of: Generation| -> Vec<(Role, u32)> {
            let roles = self.seen.sides.of(of).roles.iter();
            let count = roles.map(|(role, workers)| {
                let size = match of == side {
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
                // Less than one replica of each side is rounding.
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
    fn keeps_proportion(&self, side: Generation, sizes: &Sizes) {
        let full = self.settings.shape.full(side);
        let roles = &self.seen.sides.of(side).roles;
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

    /// The side gets no more requests than its part of what stays.
    fn was_lowered(&self, side: Generation, sizes: &Sizes) {
        let split = self.seen.traffic.split;
        let stays = self.ready_of(side, |workers| workers.ready);
        let full = self.settings.shape.full(side);
        let roles = &self.seen.sides.of(side).roles;
        let whole = self.whole();
        let fits = { full.iter() }
            .map(|(role, full)| roles[role].ready.min(sizes[role]) * whole / full)
            .min();
        let stays = stays.min(fits.expect("there are roles"));
        // What is cold gets no more yet.
        let other = self.ready_of(side.other(), |workers| workers.warm);
        let part = |a: u32, b: u32| u64::from(a) * u64::from(b);
        // Without anything that serves, no split is better than another.
        assert!(
            stays + other == 0
                || part(split.of(side), other) <= part(split.of(side.other()), stays),
            "{side} keeps {stays} beside {other} and gets {split:?}: {:?}",
            self.seen
        );
    }

    /// All requests leave a side that cannot serve, or that is bad.
    fn is_emergency(&self, split: Weights) -> bool {
        Generation::ALL.into_iter().any(|side| {
            let serves = self.ready(side) + self.leaving(side) > 0;
            split.of(side) == 0 && !serves
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
    fn drains(&self, side: Generation, sizes: &Sizes) {
        let traffic = &self.seen.traffic;
        if sizes.values().any(|size| *size > 0) {
            return;
        }
        assert_eq!(traffic.split.of(side), 0, "it gets no request");
        let other = self.ready_of(side.other(), |workers| workers.warm);
        assert!(other > 0, "the other side serves");
        let deadline = self.settings.strategy.drain_deadline;
        let is_over = deadline.is_some_and(|deadline| traffic.applied_for >= deadline);
        assert!(is_over || traffic.open.is_some_and(|open| *open.of(side) == 0));
        if side == Generation::Old {
            assert_ne!(self.seen.clients.last_worker, LastWorker::Needed);
        } else {
            assert_eq!(self.seen.clients.direct_to_new, Some(false));
        }
    }

    /// The same if these pods are replaced, which count as ready capacity until then.
    fn keeps_capacity_without(&self, side: Generation, role: Role, pods: &[String]) {
        let is_gone = |leaving: &&PodToReplace| leaving.ready && pods.contains(&leaving.name);
        let leaving = &self.seen.sides.of(side).roles[&role].leaving;
        let gone = match self.leaving(side) {
            0 => 0,
            _ => leaving.iter().filter(is_gone).count() as u32,
        };
        let before: u32 = { Generation::ALL.into_iter() }
            .map(|side| self.ready(side) + self.leaving(side))
            .sum();
        let after = before - gone;
        assert!(
            after >= before.min(self.floor()),
            "{after} of {before} units stay without {pods:?} of {side}: {:?}",
            self.seen
        );
        assert!(before == 0 || after > 0, "something must serve");
    }

    /// Ready pods that have to be replaced, of a side that serves.
    fn leaving(&self, side: Generation) -> u32 {
        let is_bad = side == Generation::New && self.new_is_bad();
        let seen = self.seen.sides.of(side);
        let leaving = seen.roles.values().flat_map(|workers| &workers.leaving);
        match seen.serves == Serves::No || is_bad {
            true => 0,
            false => leaving.filter(|pod| pod.ready).count() as u32,
        }
    }

    /// Old does not shrink while new is known to be bad.
    fn had_verdict(&self, side: Generation) {
        let strategy = &self.settings.strategy;
        let has_verdict = strategy.analysis.is_some() && self.settings.intent == Intent::Run;
        if side == Generation::Old && has_verdict && !self.settings.superseded {
            assert_ne!(self.seen.verdict, TrialVerdict::Fail);
        }
    }

    fn nobody_else_scales(&self) {
        for side in Generation::ALL {
            let side = self.seen.sides.of(side);
            assert_eq!(side.scaler, None);
            for workers in side.roles.values() {
                let is_recorded = workers.recorded.is_none_or(|size| size == workers.desired);
                assert!(workers.ours || is_recorded || self.seen.accepts_sizes);
            }
        }
    }

    /// No side gets more than its part of what is ready and asked for, as long as as much is needed as is promised. What somebody
    /// else has given up may be ready for a moment longer.
    fn splits_by_capacity(&self, split: Weights) {
        let total = u64::from(split.old()) + u64::from(split.new_weight());
        let ready_of = |side| {
            let ready = self.ready_of(side, |workers| workers.ready.min(workers.desired));
            ready + self.leaving(side)
        };
        let all = ready_of(Generation::Old) + ready_of(Generation::New);
        // What is ready but cold is not counted on yet.
        let warm_of = |side| self.ready_of(side, |workers| workers.warm.min(workers.desired));
        let warm = warm_of(Generation::Old) + warm_of(Generation::New);
        let needed = u64::from(warm.min(self.floor()));
        for side in Generation::ALL {
            let ready = match all {
                // Where neither serves as it should, what is ready is better than nothing.
                0 => u64::MAX,
                _ => u64::from(ready_of(side)),
            };
            let other = side.other();
            let is_urgent = split.of(other) == 0 && self.ready(other) + self.leaving(other) == 0;
            let is_bad = side == Generation::Old && self.new_is_bad();
            let load = u64::from(split.of(side)) * needed;
            assert!(
                load <= ready.saturating_mul(total) || is_urgent || is_bad,
                "{side} gets {split:?} with {ready} of {all}"
            );
        }
    }
}
