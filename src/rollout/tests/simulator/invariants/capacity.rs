//! Checks the capacities in the simulation, and that losses take effect immediately.

use super::*;

/// The capacities in the simulation, and which generations can serve. They depend on the sizes of the roles; new's also on
/// whether it is reachable and serves. While its state is unknown, new keeps what it has.
pub(super) fn usable(fixture: &Fixture) -> (PerGeneration<Ratio>, PerGeneration<bool>) {
    let accepted = Fixture::roles(fixture);
    let share = |workers: &std::collections::BTreeMap<Role, Workers>| {
        let shares = accepted.iter().map(|(role, full)| {
            let ready = workers.get(role).map_or(0, |workers| workers.ready);
            Ratio::new(ready.into(), (*full).into()).expect("sizes are not 0")
        });
        shares.min().expect("there are roles")
    };
    let frontends = &fixture.seen.frontends.new;
    let (old, new) = (
        share(&fixture.seen.workers.old),
        share(&fixture.seen.workers.new),
    );
    let credit = fixture
        .memory
        .credit
        .as_ref()
        .map(|credit| credit.new.capacity);
    let earned = credit.is_none_or(|credit| !credit.is_zero());
    let keeps = !fixture.seen.split.is_all_old() && (fixture.settings.paused || earned);
    let (failing, unknown) = doubtful(fixture);
    let all = frontends.queried.len() as u64;
    let is_open = failing < all && (keeps || unknown == 0);
    let serves = PerGeneration {
        old: !old.is_zero(),
        new: is_open && frontends.endpoints > 0 && !new.is_zero(),
    };
    let new = match (serves.new, credit) {
        (false, _) => Ratio::ZERO,
        (true, credit) => {
            let part = new.part(all - failing, all);
            credit
                .filter(|_| unknown > 0)
                .map_or(part, |credit| part.min(credit))
        }
    };
    (PerGeneration { old, new }, serves)
}

/// How many frontends of new fail, and how many are in an unknown state.
fn doubtful(fixture: &Fixture) -> (u64, u64) {
    let seen = &fixture.seen;
    let proxies: Vec<_> = seen
        .proxies
        .iter()
        .filter_map(|proxy| proxy.state.as_ref().ok())
        .collect();
    let queried = &seen.frontends.new.queried;
    let one_answers = queried
        .iter()
        .any(|one| matches!(one.answer, QueryResult::Responded | QueryResult::Bad(_)));
    let is_vouched_for = proxies
        .iter()
        .any(|state| state.new_serves == Experience::Good);
    let is_complained_of = proxies.iter().any(|state| state.new_is_impaired);
    let (mut failing, mut unknown) = (0, 0);
    for one in queried {
        let serves = one.models.contains(MODEL);
        match one.answer {
            QueryResult::Responded | QueryResult::NotYet if serves => {}
            QueryResult::Responded | QueryResult::Bad(_) => failing += 1,
            QueryResult::NotYet | QueryResult::NotQueried(_) => unknown += 1,
            QueryResult::NoResponse(_) if is_vouched_for && !(one_answers && is_complained_of) => {
                unknown += 1;
            }
            QueryResult::NoResponse(_) if !one_answers && proxies.is_empty() => unknown += 1,
            QueryResult::NoResponse(_) => failing += 1,
        }
    }
    (failing, unknown)
}

/// A generation that lost credited capacity must not get more than its share by the new credits.
pub(super) fn losses_are_at_once(
    before: &Fixture,
    decision: &Decision,
    usable: PerGeneration<Ratio>,
    next: Weights,
) {
    let credit = decision
        .memory
        .credit
        .as_ref()
        .expect("there is one after a step");
    assert!(credit.old.capacity <= usable.old && credit.new.capacity <= usable.new);
    let Some(earlier) = &before.memory.credit else {
        return;
    };
    let by_capacity = matches!(decision.rule, Rule::Capacity | Rule::Cap)
        // With `drainOld`, the cap limits everything, regardless of the capacity.
        && !before.settings.drain_old;
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

impl Fixture {
    /// The roles and their sizes when the update was accepted.
    fn roles(&self) -> Vec<(Role, u32)> {
        let accepted = &self.memory.full_sizes;
        let workers = self.seen.workers.old.iter();
        let first = workers.map(|(role, workers)| (*role, workers.desired.max(workers.ready)));
        first
            .map(|(role, now)| (role, accepted.get(&role).copied().unwrap_or(now).max(1)))
            .collect()
    }
}
