//! Tests that neither flag holds while any requirement is not positively observed.

use super::*;

/// An update that meets all requirements of both flags.
pub(super) fn proven() -> Fixture {
    let mut fixture = Fixture::settled(4, 4);
    fixture.clients_left().scale_old(0).settle();
    let decision = fixture.peek();
    assert_eq!(decision.missing, []);
    assert!(decision.safe_to_delete_old && decision.last_old_worker_dispensable);
    fixture
}

fn state(fixture: &mut Fixture) -> &mut ProxyState {
    fixture.seen.proxies[1].state.as_mut().expect("it answers")
}

fn old_has_a_worker(fixture: &mut Fixture) {
    for role in fixture.seen.workers.old.values_mut() {
        role.ready = 1;
    }
}

#[test]
fn old_is_not_safe_to_delete_while_one_requirement_is_not_met() {
    use DeletionRequirement::*;
    type Hole = (&'static str, fn(&mut Fixture), DeletionRequirement);
    let holes: [Hole; 43] = [
        (
            "a watch that was not heard of late",
            |fixture| fixture.seen.is_current = false,
            CurrentView,
        ),
        (
            "a controller that sees only its own namespace",
            |fixture| fixture.seen.sees_elsewhere = false,
            SeesElsewhere,
        ),
        (
            "the update is being deleted and waits for its finalizer",
            |fixture| fixture.seen.is_being_deleted = true,
            UpdateStays,
        ),
        (
            "the rollout that manages the update is aborted",
            |fixture| fixture.seen.goes_back = Some(true),
            NoWayBack,
        ),
        (
            "the rollout that manages the update is unknown",
            |fixture| fixture.seen.goes_back = None,
            NoWayBack,
        ),
        (
            "a proxy that is not queried, as there are too many",
            |fixture| fixture.seen.proxies[1].state = Err(NoReport::TooMany(4096)),
            NoNewRequestOnOld,
        ),
        (
            "another update rules",
            |fixture| fixture.seen.superseded_by = Some("successor".into()),
            Complete,
        ),
        (
            "old is needed again",
            |fixture| _ = fixture.scale_old(1),
            Complete,
        ),
        (
            "new can no longer serve",
            |fixture| fixture.seen.frontends.new.endpoints = 0,
            NewServes,
        ),
        (
            "new was not heard, though it served when it was",
            |fixture| fixture.seen.frontends.new.queried[0].answer = not_queried(),
            NewServes,
        ),
        (
            "new has more frontends than are queried",
            |fixture| fixture.seen.frontends.new.left_out = 1,
            NewServes,
        ),
        (
            "new lists workers of the same namespace as old",
            |fixture| {
                let frontends = &mut fixture.seen.frontends;
                for generation in [&mut frontends.old, &mut frontends.new] {
                    generation.queried[0].namespaces.insert("shared".into());
                }
            },
            NewLeavesOldWorkers,
        ),
        (
            "new lists workers of more namespaces than are kept",
            |fixture| fixture.seen.frontends.new.queried[0].has_more_namespaces = true,
            NewLeavesOldWorkers,
        ),
        (
            "new lists more models than are checked, whose workers are unknown",
            |fixture| fixture.seen.frontends.new.queried[0].left_out = 1,
            NewLeavesOldWorkers,
        ),
        (
            "the frontends of old do not answer, which listed a worker that is still there",
            |fixture| {
                fixture.memory.namespaces.insert("shared".into());
                old_has_a_worker(fixture);
                let frontends = &mut fixture.seen.frontends;
                frontends.new.queried[0].namespaces.insert("shared".into());
                frontends.old.queried.clear();
            },
            NewLeavesOldWorkers,
        ),
        (
            "the frontends of old were never heard, whose workers are still there",
            |fixture| {
                old_has_a_worker(fixture);
                let frontends = &mut fixture.seen.frontends;
                frontends.new.queried[0].namespaces.insert("any".into());
                frontends.old.queried.clear();
            },
            NewLeavesOldWorkers,
        ),
        (
            "a person gives old a share",
            |fixture| _ = fixture.edit(percent(90)),
            AllToNew,
        ),
        (
            "no proxy is found",
            |fixture| fixture.seen.proxies.clear(),
            ProxySeen,
        ),
        (
            "no proxy answers",
            |fixture| {
                fixture
                    .seen
                    .proxies
                    .iter_mut()
                    .for_each(|proxy| proxy.state = Err(NoReport::NoAnswer))
            },
            ProxySeen,
        ),
        (
            "a frontend without a proxy",
            |fixture| fixture.seen.proxies[1].state = Err(NoReport::NoPort("crossfade".into())),
            NoNewRequestOnOld,
        ),
        (
            "a proxy that was not heard yet",
            |fixture| fixture.seen.proxies[1].state = Err(NoReport::NotYet),
            NoNewRequestOnOld,
        ),
        (
            "a later pod that is not ready and has not heard of the update",
            |fixture| {
                fixture.seen.proxies.push(ObservedProxy {
                    ready: false,
                    ..proxy("late")
                })
            },
            NoNewRequestOnOld,
        ),
        (
            "a proxy at an earlier edit",
            |fixture| state(fixture).applied -= 1,
            NoNewRequestOnOld,
        ),
        (
            "a cap holds at a proxy",
            |fixture| state(fixture).leaves_old = false,
            NoNewRequestOnOld,
        ),
        (
            "old is still a fallback at a proxy",
            |fixture| state(fixture).old_drains = false,
            NoFallbackToOld,
        ),
        (
            "the resource no longer says that old drains",
            |fixture| fixture.seen.old_draining = false,
            NoFallbackToOld,
        ),
        (
            "a request keeps an earlier plan",
            |fixture| state(fixture).may_reach_old = Some(1),
            NoLateRequest,
        ),
        (
            "a proxy does not say whether a request keeps an earlier plan",
            |fixture| state(fixture).may_reach_old = None,
            NoLateRequest,
        ),
        (
            "a stream on old",
            |fixture| state(fixture).open_streams.old = 1,
            NoStreamOnOld,
        ),
        (
            "another update sends its share to old",
            |fixture| fixture.seen.updates_to_old = Some(vec!["back".into()]),
            NoUpdateToOld,
        ),
        (
            "it is not known which updates send to old",
            |fixture| fixture.seen.updates_to_old = None,
            NoUpdateToOld,
        ),
        (
            "a Service leads around the proxies",
            |fixture| fixture.seen.clients.bypasses = Some(vec!["Service direct".into()]),
            NoBypass,
        ),
        (
            "it is not known what bypasses the proxies",
            |fixture| fixture.seen.clients.bypasses = None,
            NoBypass,
        ),
        (
            "a stream of new through old's pods",
            |fixture| state(fixture).open_streams.new = 1,
            NoStreamThroughOldPods,
        ),
        (
            "a client has sent a request just now",
            |fixture| state(fixture).quiet_for = Some(Duration::ZERO),
            QuietPeriod,
        ),
        (
            "a client has sent a request within the quiet period",
            |fixture| state(fixture).quiet_for = Some(seconds(9)),
            QuietPeriod,
        ),
        (
            "a proxy does not say when the last request came",
            |fixture| state(fixture).quiet_for = None,
            QuietPeriod,
        ),
        (
            "the Service of the clients has no ready endpoint of new",
            |fixture| fixture.seen.clients.reach_new = Some(false),
            ClientsReachNew,
        ),
        (
            "no Service of the clients is known",
            |fixture| {
                fixture.seen.clients = Clients {
                    bypasses: Some(Vec::new()),
                    ..Clients::default()
                }
            },
            ClientsReachNew,
        ),
        (
            "clients reach old",
            |fixture| fixture.seen.clients.reach_old = Some(true),
            ClientsLeftOld,
        ),
        (
            "another Service selects old",
            |fixture| fixture.seen.clients.other_ways = Some(vec!["Service legacy".into()]),
            NoOtherRoute,
        ),
        (
            "the Service of the clients is deleted with old",
            |fixture| fixture.seen.clients.deleted_with_old = Some(vec!["Service clients".into()]),
            NewNotOwnedByOld,
        ),
        (
            "it is not known what is deleted with old",
            |fixture| fixture.seen.clients.deleted_with_old = None,
            NewNotOwnedByOld,
        ),
    ];
    let tried: std::collections::BTreeSet<_> = holes
        .iter()
        .map(|(_, _, requirement)| *requirement)
        .collect();
    assert_eq!(
        tried,
        DeletionRequirement::all().collect(),
        "each has a hole"
    );
    for (hole, make, requirement) in holes {
        let mut fixture = proven();
        make(&mut fixture);
        // With a controller that ran all the time, and with one that starts with an empty memory.
        for memory in [fixture.memory.clone(), Memory::default()] {
            let mut fixture = Fixture {
                memory,
                ..fixture.clone()
            };
            let decision = fixture.step();
            assert!(!decision.safe_to_delete_old, "{hole}");
            let is_fresh = fixture.memory.phase != Phase::Complete;
            assert!(
                decision.missing.contains(&requirement) || is_fresh,
                "{hole}: {:?}",
                decision.missing
            );
            let for_last_worker = DeletionRequirement::FOR_LAST_WORKER.contains(&requirement);
            if for_last_worker {
                assert!(!decision.last_old_worker_dispensable, "{hole}");
            }
        }
        let only_deletion = DeletionRequirement::FOR_DELETION.contains(&requirement);
        assert_eq!(
            fixture.step().last_old_worker_dispensable,
            only_deletion,
            "{hole}"
        );
    }
}

#[test]
fn missing_conditions_have_a_text() {
    let said: std::collections::BTreeSet<_> = DeletionRequirement::all()
        .map(DeletionRequirement::missing)
        .collect();
    assert_eq!(
        said.len(),
        DeletionRequirement::FOR_LAST_WORKER.len() + DeletionRequirement::FOR_DELETION.len()
    );
}
