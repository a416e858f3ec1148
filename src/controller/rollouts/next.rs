//! Decides between which two generations a rollout moves: the accepted ones, those of its spec, or back to a revision. Pure.

use super::accept;
use super::revisions::{self, Revision};
use crate::managed_update::Direction;
use crate::resource::DynamoRolloutSpec;
use crate::resource::rollout_status::{
    AcceptedGeneration, AcceptedStatus, DynamoRolloutStatus, RolloutPhase,
};

/// The next step of a rollout.
#[derive(Debug)]
pub(super) enum Next<'a> {
    /// Continues with the accepted generations.
    Continue(&'a AcceptedStatus, Direction),
    /// Accepts the generations in the spec.
    Accept,
    /// Goes back to a revision that is not one of the accepted generations: immediately, or after the new generation has been
    /// rolled back.
    Undo { to: &'a Revision, at_once: bool },
    /// The revision to undo to is not kept.
    NoRevision(i64),
}

/// The next step of a rollout with this status and spec.
pub(super) fn next<'a>(
    before: &'a DynamoRolloutStatus,
    spec: &DynamoRolloutSpec,
    revisions: &'a [Revision],
) -> Next<'a> {
    let Some(accepted) = &before.accepted else {
        // Until the spec is accepted, it is unknown what serves now.
        let is_kept = |number: &i64| revisions.iter().any(|revision| revision.number == *number);
        return match spec.undo().filter(|number| !is_kept(number)) {
            Some(number) => Next::NoRevision(number),
            None => Next::Accept,
        };
    };
    match spec.undo() {
        Some(number) => undo(before, accepted, number, revisions),
        None => continue_rollout(before, accepted, spec),
    }
}

fn undo<'a>(
    before: &DynamoRolloutStatus,
    accepted: &'a AcceptedStatus,
    number: i64,
    revisions: &'a [Revision],
) -> Next<'a> {
    let Some(to) = { revisions.iter() }.find(|revision| revision.number == number) else {
        return Next::NoRevision(number);
    };
    let is = |generation: &AcceptedGeneration| revisions::is_same(generation, &to.kept.generation);
    match (is(&accepted.source), is(&accepted.target)) {
        (true, _) => Next::Continue(accepted, Direction::RollBack),
        (_, true) => Next::Continue(accepted, Direction::AsSpecified),
        _ => Next::Undo {
            to,
            at_once: has_ended(before) || !has_begun(before),
        },
    }
}

fn continue_rollout<'a>(
    before: &DynamoRolloutStatus,
    accepted: &'a AcceptedStatus,
    spec: &DynamoRolloutSpec,
) -> Next<'a> {
    let is_target = !accept::is_other_target(accepted, spec);
    // An undo has a different source than the spec, which describes the rollout before it.
    let is_source = accepted.undo_to.is_some() || !accept::is_other_source(accepted, spec);
    let is_under_way = has_begun(before) && !has_ended(before);
    match (is_source && is_target, is_under_way) {
        (true, _) => Next::Continue(accepted, Direction::AsSpecified),
        (false, true) if is_target => Next::Continue(accepted, Direction::AsSpecified),
        (false, true) => Next::Continue(accepted, Direction::Superseded),
        (false, false) => Next::Accept,
    }
}

/// Whether one generation serves everything, so that another rollout can begin from it.
fn has_ended(before: &DynamoRolloutStatus) -> bool {
    before.phase.is_some_and(RolloutPhase::is_over) || is_at_new(before)
}

/// Whether anything may have been written for the accepted rollout.
pub(super) fn has_begun(before: &DynamoRolloutStatus) -> bool {
    let phase = before.phase;
    phase.is_some_and(|phase| !matches!(phase, RolloutPhase::Pending | RolloutPhase::Refused))
}

/// Whether the new generation serves everything.
pub(super) fn is_at_new(before: &DynamoRolloutStatus) -> bool {
    let memory = before.memory.as_ref();
    memory.is_some_and(|memory| memory.handed_over)
}

/// The generation that serves after the accepted rollout has ended, with the Service of its frontends if a rollout ever went
/// to it.
pub(super) fn serving(
    before: &DynamoRolloutStatus,
    accepted: &AcceptedStatus,
    revisions: &[Revision],
) -> (AcceptedGeneration, Option<String>) {
    match is_at_new(before) {
        true => (accepted.target.clone(), Some(accepted.service.clone())),
        false => {
            let service = revisions::service(&accepted.source, revisions);
            (accepted.source.clone(), service)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::revisions::RetainedRevision;
    use super::super::revisions::tests::generation;
    use super::*;
    use crate::resource::rollout_status::RolloutMemory;

    /// A status at `phase` of a rollout from `old` to `new`.
    fn status(old: &str, new: &str, phase: RolloutPhase) -> DynamoRolloutStatus {
        DynamoRolloutStatus {
            phase: Some(phase),
            accepted: Some(AcceptedStatus {
                at: serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap(),
                units: 4,
                source: generation(old),
                target: generation(new),
                service: format!("{new}-frontend:8000"),
                undo_to: None,
            }),
            memory: Some(RolloutMemory {
                handed_over: phase == RolloutPhase::Complete,
                ..RolloutMemory::default()
            }),
            ..DynamoRolloutStatus::default()
        }
    }

    fn spec(old: &str, new: &str, undo_to: Option<i64>) -> DynamoRolloutSpec {
        let frontends = |name: &str| format!("{name}-frontend");
        let spec = json!({
            "source": {"kind": "Deployment", "name": old},
            "target": {"kind": "Deployment", "name": new},
            "frontends": {"source": frontends(old), "target": frontends(new), "service": frontends(new)},
            "clientService": "chat",
            "undoTo": undo_to,
        });
        DynamoRolloutSpec::read(&spec).unwrap()
    }

    /// `v1` to `v3`, under their numbers.
    fn revisions() -> Vec<Revision> {
        let revision = |number: i64| Revision {
            number,
            at: None,
            kept: RetainedRevision {
                generation: generation(&format!("v{number}")),
                service: (number > 1).then(|| format!("v{number}-frontend:8000")),
                ..RetainedRevision::default()
            },
            object: Arc::new(serde_json::from_value(json!({"metadata": {}})).unwrap()),
        };
        (1..=3).map(revision).collect()
    }

    fn reported(status: &DynamoRolloutStatus, spec: &DynamoRolloutSpec) -> String {
        match next(status, spec, &revisions()) {
            Next::Continue(_, direction) => format!("{direction:?}"),
            Next::Accept => "Accept".to_owned(),
            Next::Undo { to, at_once } => format!("undo to {} at once: {at_once}", to.number),
            Next::NoRevision(number) => format!("no {number}"),
        }
    }

    #[test]
    fn the_spec_is_compared_with_the_accepted_rollout() {
        use RolloutPhase::{Complete, Held, Pending, Progressing, Refused, RolledBack};
        let from_2_to_3 = |phase| status("v2", "v3", phase);
        for (phase, old, new, undo, expected) in [
            (Progressing, "v2", "v3", None, "AsSpecified"),
            (Progressing, "v2", "v3", Some(0), "AsSpecified"),
            (Complete, "v2", "v3", None, "AsSpecified"),
            // A third generation: the second is rolled back first, but not after the end.
            (Progressing, "v2", "v4", None, "Superseded"),
            (Held, "v2", "v4", None, "Superseded"),
            (Complete, "v3", "v4", None, "Accept"),
            (RolledBack, "v2", "v4", None, "Accept"),
            (Pending, "v2", "v4", None, "Accept"),
            (Refused, "v1", "v3", None, "Accept"),
            // The generations of the rollout itself.
            (Progressing, "v2", "v3", Some(2), "RollBack"),
            (Complete, "v2", "v3", Some(2), "RollBack"),
            (RolledBack, "v2", "v3", Some(3), "AsSpecified"),
            // Any other one.
            (Progressing, "v2", "v3", Some(1), "undo to 1 at once: false"),
            (Complete, "v2", "v3", Some(1), "undo to 1 at once: true"),
            (RolledBack, "v2", "v3", Some(1), "undo to 1 at once: true"),
            (Complete, "v2", "v3", Some(9), "no 9"),
        ] {
            let reported = reported(&from_2_to_3(phase), &spec(old, new, undo));
            assert_eq!(reported, expected, "{phase:?} {old} {new} {undo:?}");
        }
    }

    /// A hold after the end does not begin the rollout again.
    #[test]
    fn a_rollout_that_is_held_after_its_end_has_ended() {
        let mut held = status("v2", "v3", RolloutPhase::Complete);
        held.phase = Some(RolloutPhase::Held);
        assert_eq!(reported(&held, &spec("v3", "v4", None)), "Accept");
        assert_eq!(
            reported(&held, &spec("v2", "v3", Some(1))),
            "undo to 1 at once: true"
        );
    }

    #[test]
    fn after_an_undo_the_target_of_the_spec_is_what_counts() {
        let mut undone = status("v1", "v3", RolloutPhase::RolledBack);
        undone.accepted.as_mut().unwrap().undo_to = Some(1);
        for (old, new, undo, expected) in [
            ("v2", "v3", Some(1), "RollBack"),
            // The undo is reverted.
            ("v2", "v3", None, "AsSpecified"),
            ("v2", "v3", Some(3), "AsSpecified"),
            ("v1", "v4", Some(1), "RollBack"),
            ("v1", "v4", None, "Accept"),
            ("v2", "v3", Some(2), "undo to 2 at once: true"),
        ] {
            let reported = reported(&undone, &spec(old, new, undo));
            assert_eq!(reported, expected, "{old} {new} {undo:?}");
        }
    }

    #[test]
    fn nothing_is_undone_of_a_rollout_that_was_never_accepted() {
        let none = DynamoRolloutStatus::default();
        assert_eq!(reported(&none, &spec("v2", "v3", Some(9))), "no 9");
        assert_eq!(reported(&none, &spec("v2", "v3", Some(1))), "Accept");
        assert_eq!(reported(&none, &spec("v2", "v3", None)), "Accept");
    }

    #[test]
    fn after_the_end_new_serves_or_old_after_a_rollback() {
        let serving = |phase| {
            let status = status("v1", "v2", phase);
            let accepted = status.accepted.clone().unwrap();
            let (generation, service) = serving(&status, &accepted, &revisions());
            (generation.frontends, service)
        };
        let new = (
            "v2-frontend".to_owned(),
            Some("v2-frontend:8000".to_owned()),
        );
        assert_eq!(serving(RolloutPhase::Complete), new);
        let old = ("v1-frontend".to_owned(), None);
        assert_eq!(serving(RolloutPhase::RolledBack), old);
    }
}
