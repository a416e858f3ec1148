//! Keeps the earlier generations of a rollout as revisions, and returns to one of them.

use super::job::RolloutAction;
use super::next;
use super::revisions::Revision;
use super::{
    NotYetObserved, ReconcileContext, Rollouts, accept, memory, objects, revisions, services, write,
};
use crate::error_chain::error_chain;
use crate::k8s::Object;
use crate::resource::DynamoRolloutSpec;
use crate::resource::rollout_status::{
    AcceptedStatus, DynamoRolloutStatus, RevisionStatus, RolloutMemory, RolloutPhase,
};
use crate::split::Weights;

impl Rollouts {
    /// Keeps a generation that has not been kept yet, or deletes one beyond the limit. `None` if there is nothing to do.
    pub(super) fn reconcile_revisions(
        &self,
        subject: ReconcileContext,
        spec: &DynamoRolloutSpec,
        revisions: &[Revision],
    ) -> Result<Option<RolloutAction>, NotYetObserved> {
        let accepted = subject.before.accepted.as_ref();
        let Some(accepted) = accepted.filter(|_| next::has_begun(subject.before)) else {
            return Ok(None);
        };
        if let Some(mut kept) = revisions::missing(accepted, revisions) {
            let (cache, namespace) = (&self.observer.cache, &*subject.key.namespace);
            let selectors = services::selectors(cache, namespace, accepted, &spec.client_service);
            let selectors = selectors.map_err(|_| NotYetObserved)?;
            let saved = &subject.before.previous_selector;
            kept.client_selector = match kept.service {
                Some(_) => selectors.new,
                // Once clients are routed to new, this is the selector that led them to old.
                None if !saved.is_empty() => saved.clone(),
                None => selectors.old,
            };
            let object = revisions::object(subject.rollout, &kept, revisions);
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            return match self.was_kept(subject.key, name) {
                true => Err(NotYetObserved),
                false => Ok(Some(RolloutAction::Keep(object))),
            };
        }
        let limit = spec.revision_history_limit;
        let surplus = revisions::surplus(accepted, spec.undo(), limit, revisions);
        Ok(surplus.map(|revision| RolloutAction::Forget(Object::clone(&revision.object))))
    }

    /// The status that begins the return to a revision, or why that is impossible, as text for users.
    pub(super) fn undo(
        &self,
        subject: ReconcileContext,
        to: &Revision,
        revisions: &[Revision],
    ) -> Result<Result<DynamoRolloutStatus, String>, NotYetObserved> {
        let (before, number) = (subject.before, to.number);
        let Some(accepted) = &before.accepted else {
            return Err(NotYetObserved);
        };
        if to.kept.in_place {
            return Ok(Err(format!(
                "undoTo cannot go back to revision {number}: its workers were in the same object as those of another generation"
            )));
        }
        let (from, service) = next::serving(before, accepted, revisions);
        let Some(service) = service else {
            return Ok(Err(format!(
                "the frontends {} serve now, but no rollout has moved to them, so undoTo cannot go from them to revision \
                 {number}: make it the target of the rollout",
                from.frontends
            )));
        };
        let (cache, namespace) = (&self.observer.cache, &*subject.key.namespace);
        let generation = &to.kept.generation;
        let pair = ((generation, number), (&from, service));
        let undo = accept::undo(cache, namespace, pair.0, pair.1, write::now());
        let (accepted, sizes) = match undo {
            Ok(undo) => undo,
            Err(error) if error.is_early() => return Err(NotYetObserved),
            Err(error) => {
                let why = error_chain(&error);
                return Ok(Err(format!(
                    "undoTo cannot go back to revision {number}: {why}"
                )));
            }
        };
        let generation = subject.rollout.metadata.generation;
        let memory = RolloutMemory {
            recorded_generation: generation,
            // The current generation serves everything, as after a rollout to it.
            handed_over: true,
            ..RolloutMemory::default()
        };
        Ok(Ok(DynamoRolloutStatus {
            accepted: Some(accepted),
            phase: Some(RolloutPhase::Pending),
            observed_generation: generation,
            source: Some(sizes.old),
            target: Some(sizes.new),
            split: Some(memory::split(Weights::ALL_NEW)),
            previous_selector: to.kept.client_selector.clone(),
            revisions: before.revisions.clone(),
            memory: Some(memory),
            ..DynamoRolloutStatus::default()
        }))
    }

    /// The revisions as the status lists them.
    pub(super) fn status_entries(
        &self,
        subject: ReconcileContext,
        accepted: &AcceptedStatus,
        revisions: &[Revision],
    ) -> Vec<RevisionStatus> {
        let (cache, namespace) = (&self.observer.cache, &*subject.key.namespace);
        revisions::status_entries(accepted, revisions, |generation| {
            let found = objects::accepted(cache, namespace, generation);
            // Objects that are not listed yet count as existing.
            found.map_or_else(|error| error.is_early(), |_| true)
        })
    }
}
