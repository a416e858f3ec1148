//! Decides whether a generation can shrink, to which sizes, and what has to happen first.

use std::time::Duration;

use super::{
    Intent, Pod, RemovalOrder, ScalingAction, Serves, Sizes, TrialVerdict, Wait,
    assessment::Assessment,
    limits::growth,
    observation::{LastWorker, RoleReplicas},
};
use crate::rollout::Role;
use crate::split::{Generation, Weights};

/// A generation that may shrink as far as capacity permits.
pub(super) struct Shrink {
    pub generation: Generation,
    pub sizes: Sizes,
    /// The units that stay.
    pub units: u32,
    /// The ready units that certainly stay. Can be more than `units` if several numbers of units have the same sizes.
    capacity: u32,
    /// The split that gives the generation no more than its remaining units can serve.
    pub split: Option<Weights>,
    /// How many of the pods that leave the generation are replaced.
    replaces: u32,
}

/// The next reduction, if capacity permits one.
pub(super) fn shrink(assessment: &Assessment) -> Option<Result<Shrink, Wait>> {
    let first = assessment.gaining().other();
    let generations = [first, first.other()];
    let mut surplus = generations.into_iter();
    surplus
        .find_map(|generation| to(assessment, generation, *assessment.targets.of(generation)))
        .or_else(|| {
            { generations }
                .into_iter()
                .find_map(|generation| trim(assessment, generation))
        })
}

/// Removes an incomplete unit that a crash has left, if there is no capacity to complete it.
fn trim(assessment: &Assessment, generation: Generation) -> Option<Result<Shrink, Wait>> {
    let is_refused = matches!(growth(assessment, generation), Some(Err(_)));
    let whole = assessment.units(generation).desired;
    if is_refused {
        to(assessment, generation, whole)
    } else {
        None
    }
}

/// Shrinks `generation` towards this number of units, as far as capacity permits.
fn to(
    assessment: &Assessment,
    generation: Generation,
    target: u32,
) -> Option<Result<Shrink, Wait>> {
    let own = assessment.units(generation);
    let other = assessment.units(generation.other()).usable;
    if let Some(leave) = leave(assessment, generation) {
        return Some(leave);
    }
    if own.begun <= target {
        return None;
    }
    let needed = assessment.floor().min(own.capacity + other);
    // Workers that are not ready may still become so, unless their generation does not serve at all. Incomplete units make
    // room, but the last one is removed only once the other generation serves: before that, nothing shows that the last worker
    // may be removed.
    let least = match assessment.is_out(generation) {
        _ if own.desired == 0 && other == 0 => target.max(1),
        true => target,
        false => target.max(assessment.floor().saturating_sub(other).min(own.desired)),
    };
    let shape = &assessment.settings.shape;
    for units in least..own.begun {
        let mut sizes = shape.sizes(generation, units);
        for (role, size) in &mut sizes {
            *size = (*size).min(own.sizes.get(role).copied().unwrap_or_default());
        }
        let stays = assessment.capacity_after(generation, &sizes);
        if stays + other < needed {
            continue;
        }
        if sizes == own.sizes {
            return None;
        }
        if units == 0 && other == 0 {
            return Some(Err(Wait::NoOther(generation)));
        }
        return Some(Ok(Shrink {
            generation,
            sizes,
            units,
            capacity: stays,
            split: weights(generation, stays, other),
            replaces: 0,
        }));
    }
    None
}

/// The split in proportion to `own` units of `generation` and `other` units of the other generation.
fn weights(generation: Generation, own: u32, other: u32) -> Option<Weights> {
    let (old, new) = match generation {
        Generation::Old => (own, other),
        Generation::New => (other, own),
    };
    Weights::new(old, new).ok()
}

/// The pods that `generation` loses because of its size. Each of them serves until it is replaced, so replacing them is
/// treated like shrinking the generation now: an owner may have accepted a size that another client set.
fn leave(assessment: &Assessment, generation: Generation) -> Option<Result<Shrink, Wait>> {
    let own = assessment.units(generation);
    let other = assessment.units(generation.other()).usable;
    let roles = assessment.seen.generations.of(generation).roles.values();
    let all = roles.map(|workers| workers.leaving.len()).sum::<usize>() as u32;
    if all == 0 {
        return None;
    }
    let capacity = own.capacity + own.leaving;
    let spare = (capacity + other).saturating_sub(assessment.floor());
    // All pods that do not serve may be removed, unless there are no others.
    let idle = all - own.leaving;
    let idle = match capacity + other {
        0 => idle - 1,
        _ => idle,
    };
    let serving = own.leaving.min(spare);
    if idle + serving == 0 {
        return Some(Err(Wait::NoOther(generation)));
    }
    let stays = capacity - serving;
    Some(Ok(Shrink {
        generation,
        sizes: own.sizes.clone(),
        units: own.desired + all - idle - serving,
        capacity: stays,
        split: weights(generation, stays, other),
        replaces: idle + serving,
    }))
}

impl Shrink {
    /// Whether the split in the resource gives the generation no more than its remaining units can serve.
    pub fn is_lowered(&self, assessment: &Assessment) -> bool {
        let Some(split) = self.split else {
            return true;
        };
        let (own, other) = (self.generation, self.generation.other());
        let is = assessment.seen.traffic.split;
        let part = |a: u32, b: u32| u64::from(a) * u64::from(b);
        part(is.of(own), split.of(other)) <= part(is.of(other), split.of(own))
    }

    /// The preconditions for moving requests off the generation.
    pub fn before_lowering(&self, assessment: &Assessment) -> Vec<Wait> {
        let (settings, seen) = (assessment.settings, assessment.seen);
        let mut waits = unobserved(assessment);
        let is_forward = self.generation == Generation::Old;
        if is_forward {
            if seen.generations.new.serves == Serves::Unknown {
                waits.push(Wait::Serving(Generation::New));
            }
            waits.extend(verdict_wait(assessment, self.is_lowered(assessment)));
            if seen.unchanged_for < settings.strategy.step_interval && !self.is_lowered(assessment)
            {
                waits.push(Wait::Interval);
            }
        } else if seen.clients.direct_to_new != Some(false) && self.units < assessment.floor() {
            // Only new serves clients that connect to it directly.
            waits.push(Wait::DirectClients);
        }
        waits.extend(self.grace(assessment));
        waits
    }

    /// The preconditions for shrinking the generation, once requests have been moved.
    pub fn before_shrinking(&self, assessment: &Assessment) -> Vec<Wait> {
        let traffic = &assessment.seen.traffic;
        let mut waits = Vec::new();
        if !assessment.is_applied() {
            return vec![assessment.unapplied()];
        }
        let deadline = assessment.settings.strategy.drain_deadline;
        let is_over = deadline.is_some_and(|deadline| traffic.applied_for >= deadline);
        if !is_over {
            waits.extend(self.streams(assessment));
        }
        if self.generation == Generation::Old && self.units == 0 {
            match assessment.seen.clients.last_worker {
                LastWorker::Dispensable => {}
                LastWorker::Streams if is_over => {}
                LastWorker::Streams | LastWorker::Needed => waits.push(Wait::LastWorker),
            }
        }
        waits
    }

    /// Whether the open streams fit the remaining units.
    fn streams(&self, assessment: &Assessment) -> Option<Wait> {
        let generation = self.generation;
        // Without a loss of capacity, streams that fitted before still fit.
        let before = assessment.units(generation);
        let loses = self.capacity < before.capacity + before.leaving;
        if self.units > 0 && (assessment.settings.strategy.continuation || !loses) {
            return None;
        }
        let Some(open) = assessment.seen.traffic.open else {
            return Some(Wait::Streams {
                generation,
                open: None,
                fit: 0,
            });
        };
        let (own, other) = (*open.of(generation), *open.of(generation.other()));
        let (stays, rest) = (
            u64::from(self.units.max(self.capacity)),
            u64::from(assessment.units(generation.other()).usable),
        );
        // Its share of all streams plus an eighth, because their lengths differ, plus one per unit, because there are no
        // fractions of streams.
        let total = u128::from(own) + u128::from(other);
        let part = total * u128::from(stays) * 9 / (8 * u128::from((stays + rest).max(1)));
        let fit = u64::try_from(part).unwrap_or(u64::MAX) + stays;
        (own > fit).then_some(Wait::Streams {
            generation,
            open: Some(own),
            fit,
        })
    }

    /// Whether workers get enough time to terminate for their streams.
    fn grace(&self, assessment: &Assessment) -> Option<Wait> {
        let strategy = &assessment.settings.strategy;
        let traffic = &assessment.seen.traffic;
        if strategy.continuation || strategy.allow_short_grace {
            return None;
        }
        // All streams have to end before the last unit is removed.
        if traffic
            .open
            .is_some_and(|open| *open.of(self.generation) == 0)
        {
            return None;
        }
        let roles = assessment.seen.generations.of(self.generation).roles.iter();
        let shrinks = |role: &Role, workers: &RoleReplicas| {
            let size = self.sizes.get(role);
            let is_less = size.is_some_and(|size| *size < workers.desired);
            is_less || workers.leaving.iter().any(|pod| pod.ready)
        };
        let mut graces = roles.filter(|(role, workers)| shrinks(role, workers));
        let is_enough = |grace: Option<Duration>| {
            let both = grace.zip(traffic.p99);
            both.is_some_and(|(grace, p99)| grace >= p99)
        };
        let (_, short) = graces.find(|(_, workers)| !is_enough(workers.grace))?;
        // Proxies measure the streams, so without a proxy, the proxy is what is missing.
        if traffic.applied.is_empty() {
            return Some(assessment.unapplied());
        }
        Some(Wait::Grace {
            generation: self.generation,
            grace: short.grace,
            p99: traffic.p99,
        })
    }

    /// The next action: pods are marked first if the kind supports it.
    pub fn action(self, assessment: &Assessment) -> ScalingAction {
        for (role, workers) in &assessment.seen.generations.of(self.generation).roles {
            if !workers.leaving.is_empty() {
                let mut leaving: Vec<_> = workers.leaving.iter().collect();
                leaving.sort_by_key(|pod| pod.ready);
                let leaving = leaving.into_iter().take(self.replaces as usize);
                return ScalingAction::Replace {
                    generation: self.generation,
                    role: *role,
                    pods: leaving.map(|pod| pod.name.clone()).collect(),
                };
            }
            let size = self.sizes.get(role).copied().unwrap_or_default();
            if let RemovalOrder::Marked(pods) = &workers.removes
                && let Some(pods) = to_mark(pods, size)
            {
                return ScalingAction::Mark {
                    generation: self.generation,
                    role: *role,
                    pods,
                };
            }
        }
        ScalingAction::Shrink {
            generation: self.generation,
            sizes: self.sizes,
        }
    }
}

/// The pods to mark so that the right ones are removed when only `size` stay. `None` if enough are marked.
///
/// First those that are not ready, then those with the fewest open streams.
fn to_mark(pods: &[Pod], size: u32) -> Option<Vec<String>> {
    let removed = pods.len().saturating_sub(size as usize);
    let marked = pods.iter().filter(|pod| pod.marked).count();
    if marked >= removed {
        return None;
    }
    let mut order: Vec<&Pod> = pods.iter().collect();
    order.sort_by_key(|pod| (pod.ready, pod.open_streams.unwrap_or(u64::MAX), &pod.name));
    let first = order.into_iter().take(removed);
    Some(first.map(|pod| pod.name.clone()).collect())
}

/// What the analysis of new still prevents. Once old's requests have been moved away, only a failure counts, because nothing is
/// compared while old gets no requests.
pub(super) fn verdict_wait(assessment: &Assessment, is_lowered: bool) -> Option<Wait> {
    let settings = assessment.settings;
    if settings.strategy.analysis.is_none() || settings.intent == Intent::Promote {
        return None;
    }
    match assessment.seen.verdict {
        TrialVerdict::Pass => None,
        TrialVerdict::Fail => Some(Wait::Failed),
        TrialVerdict::Inconclusive => (!is_lowered).then_some(Wait::Verdict),
    }
}

/// The roles whose status reflects an earlier size.
pub(super) fn unobserved(assessment: &Assessment) -> Vec<Wait> {
    let generations = Generation::ALL.into_iter();
    let roles = generations.flat_map(|generation| {
        let roles = assessment.seen.generations.of(generation).roles.iter();
        roles.map(move |(role, workers)| (generation, *role, workers.observed))
    });
    roles
        .filter(|(.., observed)| !observed)
        .map(|(generation, role, _)| Wait::Unobserved(generation, role))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, ready: bool, open_streams: Option<u64>, marked: bool) -> Pod {
        Pod {
            name: name.to_owned(),
            ready,
            open_streams,
            marked,
        }
    }

    #[test]
    fn the_pods_with_the_fewest_streams_are_marked_once() {
        let pods = [
            pod("a", true, Some(3), false),
            pod("b", true, Some(1), false),
            pod("c", false, Some(9), false),
            pod("d", true, None, false),
        ];
        let marked = |size| to_mark(&pods, size);
        assert_eq!(marked(2), Some(vec!["c".to_owned(), "b".to_owned()]));
        assert_eq!(marked(4), None);
        assert_eq!(marked(0).map(|pods| pods.len()), Some(4));
        let again = [
            pod("a", true, Some(0), false),
            pod("b", true, Some(7), true),
        ];
        assert_eq!(to_mark(&again, 1), None, "a mark is not moved");
    }
}
