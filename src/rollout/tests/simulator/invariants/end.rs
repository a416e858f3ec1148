//! The phases of the end come in order, each with its conditions.

use std::collections::BTreeSet;

use super::*;

pub(super) fn the_end_is_in_order(before: &Fixture, decision: &Decision, next: Weights) {
    let seen = &before.seen;
    let generation = seen.resource_generation;
    let all_applied = seen.proxies.iter().all(|proxy| {
        proxy
            .state
            .as_ref()
            .is_ok_and(|state| state.applied == generation)
    });
    let open = |of: fn(PerGeneration<u64>) -> u64| {
        let open = seen.proxies.iter().map(|proxy| {
            proxy
                .state
                .as_ref()
                .ok()
                .map(|state| of(state.open_streams))
        });
        open.sum::<Option<u64>>()
    };
    let old_streams = open(|open| open.old);
    let (from, to) = (before.memory.phase, decision.phase);
    if decision.rule == Rule::Superseded {
        assert_eq!(
            decision.desired.old_draining, seen.old_draining,
            "it changes nothing"
        );
    } else {
        assert_eq!(decision.desired.old_draining, to.old_drains());
    }
    if to.old_drains() {
        assert!(
            next.is_all_new() && seen.split.is_all_new(),
            "old has left the split"
        );
    }
    // What each proxy reports to have applied.
    let every = |is_so: fn(&ProxyState) -> bool| {
        let states = seen.proxies.iter().map(|proxy| proxy.state.as_ref());
        states.clone().count() > 0 && states.clone().all(|state| state.is_ok_and(is_so))
    };
    let have_left = all_applied && every(|state| state.leaves_old);
    let all_drain = have_left && seen.old_draining && every(|state| state.old_drains);
    if to == Phase::Draining && !from.old_drains() {
        assert!(have_left, "draining begins when all give old nothing");
    }
    let confirmed = before.memory.complete_with.as_ref();
    let was_confirmed = confirmed == Some(&before.settings.new_frontends);
    if to.old_drains() && seen.proxies.is_empty() {
        assert_eq!(to, Phase::Complete);
        assert!(
            from == Phase::Complete || was_confirmed,
            "no proxies means no confirmation"
        );
    }
    if to == Phase::Draining && decision.memory.complete_with.is_some() {
        let confirms = |state: &ProxyState| {
            state.applied == generation && state.leaves_old && state.old_drains
        };
        let mut answers = seen
            .proxies
            .iter()
            .filter_map(|one| one.state.as_ref().ok());
        assert!(
            answers.all(confirms),
            "only a missing report leaves the confirmation as it is"
        );
    }
    if to == Phase::Complete && from != Phase::Complete && !seen.proxies.is_empty() {
        assert_eq!(from, Phase::Draining, "no phase is skipped");
        let elapsed = before.now.since(before.memory.phase_since);
        let is_over = before
            .settings
            .drain_deadline
            .is_some_and(|limit| elapsed >= limit);
        assert!(all_drain, "complete is when all let old drain");
        assert!(
            old_streams == Some(0) || is_over,
            "complete is when no stream is left or time is over"
        );
    }
    if to == Phase::Complete && !seen.proxies.is_empty() {
        assert!(all_drain, "complete is not kept while one may send to old");
    }
    if decision.last_old_worker_dispensable {
        assert!(seen.is_current && seen.sees_elsewhere && !seen.is_being_deleted);
        assert_eq!(seen.goes_back, Some(false));
        assert!(to == Phase::Complete && seen.superseded_by.is_none());
        let new = &seen.frontends.new;
        let serves = |one: &Frontend| {
            let is_heard = matches!(one.answer, QueryResult::Responded | QueryResult::NotYet);
            is_heard && one.models.contains(MODEL)
        };
        assert!(
            new.endpoints > 0
                && !new.queried.is_empty()
                && new.left_out == 0
                && new.queried.iter().all(serves),
            "each frontend of new was heard to serve"
        );
        new_leaves_old_workers(before);
        assert!(all_drain && old_streams == Some(0));
        assert!(every(|state| state.may_reach_old == Some(0)));
        assert!(seen.updates_to_old.as_ref().is_some_and(Vec::is_empty));
        let around = seen.clients.bypasses.as_ref();
        assert!(around.is_some_and(Vec::is_empty));
        assert_eq!(decision.desired.split, seen.split);
    }
    if decision.safe_to_delete_old {
        assert!(decision.last_old_worker_dispensable);
        let clients = &seen.clients;
        assert_eq!(
            (clients.reach_new, clients.reach_old),
            (Some(true), Some(false))
        );
        assert!(clients.other_ways.as_ref().is_some_and(Vec::is_empty));
        assert!(clients.deleted_with_old.as_ref().is_some_and(Vec::is_empty));
        assert_eq!(open(|open| open.old + open.new), Some(0));
        let least = before.settings.quiet_period;
        let quiet = |proxy: &ObservedProxy| {
            let quiet_for = proxy.state.as_ref().ok().and_then(|state| state.quiet_for);
            quiet_for.is_some_and(|quiet| quiet >= least)
        };
        assert!(seen.proxies.iter().all(quiet));
    }
}

/// No frontend of new lists a namespace that one of old lists, or that it listed while old still has workers.
fn new_leaves_old_workers(before: &Fixture) {
    let (old, new) = (&before.seen.frontends.old, &before.seen.frontends.new);
    let all = || old.queried.iter().chain(&new.queried);
    assert!(all().all(|one| !one.has_more_namespaces && one.left_out == 0));
    let listed = |generation: &Frontends| -> BTreeSet<String> {
        let each = generation.queried.iter();
        each.flat_map(|one| one.namespaces.clone()).collect()
    };
    let (mut of_old, of_new) = (listed(old), listed(new));
    let mut workers = before.seen.workers.old.values();
    let has_workers = workers.any(|all| all.ready > 0 || all.desired > 0);
    let mut queried = old.queried.iter();
    let is_heard =
        queried.all(|one| one.answer == QueryResult::Responded) && !old.queried.is_empty();
    if has_workers && !is_heard {
        of_old.extend(before.memory.namespaces.clone());
        assert!(
            !of_old.is_empty() || of_new.is_empty(),
            "it is not known which workers old has"
        );
    }
    assert!(
        of_old.is_disjoint(&of_new),
        "new may send requests to the workers of old: {of_old:?} and {of_new:?}"
    );
}
