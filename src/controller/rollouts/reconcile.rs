//! Reconciles a rollout once: accepts it, or observes it and decides. Contains no policy.

use kube::CustomResourceExt;

use super::super::Key;
use super::super::spec_fields::SpecFields;
use super::job::{RolloutAction, Work};
use super::next::{self, Next};
use super::observe::{self, Lost, ObserveInput};
use super::revisions::Revision;
use super::status::{self, StatusInput};
use super::update_status::is_of_rollout;
use super::{
    NotYetObserved, REFUSED, ReconcileContext, Rollouts, accept, manager, memory, objects,
    revisions, update, write,
};
use crate::error_chain::error_chain;
use crate::k8s::{NotSynced, Object};
use crate::managed_update::{self, Direction};
use crate::resource::rollout_status::{
    AcceptedStatus, DynamoRolloutStatus, RolloutMemory, RolloutPhase,
};
use crate::resource::status::{AnalysisStatus, UpdatePhase, condition};
use crate::resource::{DynamoRolloutSpec, DynamoUpdateConfig, DynamoUpdateConfigStatus};
use crate::rollout::{PerGeneration, TrialVerdict};
use crate::scaling::{
    self, Intent, Progress, RolloutObservation, ScalingAction, ScalingDecision, UnfinishedWrite,
    Wait,
};
use crate::split::{Generation, Weights};

/// The reason of the conditions of a rollout whose `undoTo` is impossible.
const NO_UNDO: &str = "UndoImpossible";

/// An accepted rollout and its progress.
struct AcceptedRollout<'a> {
    spec: &'a DynamoRolloutSpec,
    accepted: &'a AcceptedStatus,
    direction: Direction,
    /// Why the rollout can do nothing except move requests away from what cannot serve, as a reason and text for users.
    obstacle: Option<(&'static str, String)>,
    revisions: &'a [Revision],
}

impl Rollouts {
    /// The work for a rollout now.
    pub(super) fn work(&self, subject: ReconcileContext) -> Result<Work, NotYetObserved> {
        let spec = match DynamoRolloutSpec::read(&subject.rollout.data["spec"]) {
            Ok(spec) => spec,
            Err(problems) => return Ok(refused(subject, "Invalid", problems.to_string())),
        };
        let kind = revisions::resource();
        let objects = match self.observer.cache.of(&kind, &subject.key.namespace) {
            Ok(objects) => objects,
            Err(NotSynced::NotYet(_)) => return Err(NotYetObserved),
            Err(error) => return Ok(refused(subject, "NotSynced", error_chain(&error))),
        };
        let revisions = revisions::of(subject.rollout, &objects);
        let mut keep_error = None;
        if let Some(step) = self.reconcile_revisions(subject, &spec, &revisions)? {
            // Meanwhile, requests still move away from anything that cannot serve.
            keep_error = self.keep_error(subject.key);
            if keep_error.is_none() {
                return Ok(Work::step(subject, subject.before.clone(), step));
            }
        }
        let current = |accepted, direction| AcceptedRollout {
            spec: &spec,
            accepted,
            direction: match keep_error {
                Some(_) => Direction::Impossible,
                None => direction,
            },
            obstacle: keep_error.clone().map(|why| (REFUSED, why)),
            revisions: &revisions,
        };
        let next = next::next(subject.before, &spec, &revisions);
        if self.may_still_retire(subject.key) && matches!(next, Next::Accept | Next::Undo { .. }) {
            // It might retire a generation of the next rollout.
            let why = format!("waiting for {}", Wait::EarlierLeader);
            return Ok(refused(subject, "EarlierLeader", why));
        }
        let why = match next {
            Next::Accept => return self.accept(subject, &spec),
            Next::Continue(accepted, direction) => {
                return self.continue_rollout(subject, &current(accepted, direction));
            }
            Next::Undo { to, at_once } => match self.undo(subject, to, &revisions)? {
                Ok(status) if at_once => return Ok(Work::status(subject, status)),
                Ok(status) => {
                    let accepted = subject
                        .before
                        .accepted
                        .as_ref()
                        .or(status.accepted.as_ref());
                    let accepted = accepted.expect("it has both generations");
                    return self
                        .continue_rollout(subject, &current(accepted, Direction::Superseded));
                }
                Err(why) => why,
            },
            Next::NoRevision(number) => {
                let kept: Vec<_> = { revisions.iter() }
                    .map(|revision| revision.number.to_string())
                    .collect();
                match kept.is_empty() {
                    true => format!("undoTo is {number}, but no revision is kept yet"),
                    false => format!(
                        "undoTo is {number}, but only these revisions are kept: {}",
                        kept.join(", ")
                    ),
                }
            }
        };
        let accepted = subject.before.accepted.as_ref();
        match accepted.filter(|_| next::has_begun(subject.before)) {
            None => Ok(refused(subject, NO_UNDO, why)),
            // Requests still move away from anything that cannot serve.
            Some(accepted) => {
                let mut current = current(accepted, Direction::Impossible);
                current.obstacle = Some((NO_UNDO, why));
                self.continue_rollout(subject, &current)
            }
        }
    }

    /// Whether an earlier leader may have sent a write that retires old, and that may still arrive.
    fn may_still_retire(&self, key: &Key) -> bool {
        self.unfinished(key).contains(&UnfinishedWrite::Retire)
    }

    /// Begins a rollout: writes only the status, which records what the rollout moves.
    fn accept(
        &self,
        subject: ReconcileContext,
        spec: &DynamoRolloutSpec,
    ) -> Result<Work, NotYetObserved> {
        let now = write::now();
        let namespace = &subject.key.namespace;
        let accepted = match accept::accept(&self.observer.cache, namespace, spec, now) {
            Ok(accepted) => accepted,
            Err(error) if error.is_early() => return Err(NotYetObserved),
            Err(error) => return Ok(refused(subject, "NotAccepted", error_chain(&error))),
        };
        let generation = subject.rollout.metadata.generation;
        let mut status = DynamoRolloutStatus {
            accepted: Some(accepted),
            phase: Some(RolloutPhase::Pending),
            observed_generation: generation,
            revisions: subject.before.revisions.clone(),
            ..DynamoRolloutStatus::default()
        };
        let memory = status.memory.get_or_insert_default();
        memory.recorded_generation = generation;
        Ok(Work::status(subject, status))
    }

    /// Continues an accepted rollout.
    fn continue_rollout(
        &self,
        subject: ReconcileContext,
        current: &AcceptedRollout,
    ) -> Result<Work, NotYetObserved> {
        let (key, rollout) = (subject.key, subject.rollout);
        let kind = DynamoUpdateConfig::api_resource();
        let found = self.observer.cache.one(&kind, &key.namespace, &key.name);
        let update = found.map_err(|_| NotYetObserved)?;
        let is_owned = |update: &Object| update::is_owned(update, rollout);
        if !update.as_ref().is_none_or(is_owned) {
            let why = format!(
                "the DynamoUpdateConfig {} already exists and was not created by this rollout: delete it, or give the rollout \
                 another name",
                key.name
            );
            return Ok(refused(subject, "NameTaken", why));
        }
        if !self.shows(key, &update) {
            return Err(NotYetObserved);
        }
        let is_of = |update: &&Object| update::is_of(update, current.accepted);
        let split = update.as_ref().filter(is_of);
        let split = split.and_then(|update| SpecFields::of(update).weights());
        // If the update has been deleted, this was its split. On the way back to a revision, the current generation serves
        // everything at first.
        let known = || subject.before.split?.exact();
        let split = split.or_else(known).unwrap_or(Weights::ALL_OLD);
        let wanted = update::spec(current.spec, current.accepted, split);
        let annotations = update::annotations(rollout);
        let is_as = |update: &&Object| update::is_as(update, &wanted, &annotations);
        let Some(update) = update.as_ref().filter(is_as) else {
            let step = RolloutAction::Update {
                before: update,
                spec: wanted,
                annotations,
            };
            return Ok(Work::step(subject, subject.before.clone(), step));
        };
        self.decide(subject, current, update)
    }

    /// Observes a rollout whose update is up to date, and decides.
    fn decide(
        &self,
        subject: ReconcileContext,
        current: &AcceptedRollout,
        update: &Object,
    ) -> Result<Work, NotYetObserved> {
        let input = ObserveInput {
            key: subject.key,
            rollout: subject.rollout,
            before: subject.before,
            accepted: current.accepted,
            client_service: &current.spec.client_service,
            retire: current.spec.handover.retire,
            update,
            manager: &manager(subject.rollout),
            may_mark: self.may_mark(subject.key),
            shows_writes: self.is_certain(subject.key),
            unfinished: self.unfinished(subject.key).to_vec(),
            now: write::now(),
        };
        let observed = match observe::observe(&self.observer, &input) {
            Ok(observed) => observed,
            Err(error) if error.is_early() => return Err(NotYetObserved),
            Err(error) => return Ok(refused(subject, "NotSynced", error_chain(&error))),
        };
        if let Some(why) = unusable(&observed.update_status, update) {
            return Ok(refused(subject, "UpdateUnusable", why));
        }
        if !self.shows_sizes(subject.key, &observed.objects) {
            return Err(NotYetObserved);
        }
        let terms = accept::terms(current.accepted);
        let Some(mut settings) = managed_update::settings(current.spec, &terms, current.direction)
        else {
            let why = "none of the accepted objects can be scaled".to_owned();
            return Ok(refused(subject, "Invalid", why));
        };
        // The spec may have been edited to name other objects.
        settings.in_place = objects::is_in_place(current.accepted);
        let (mut memory, seen) = memory::advance(subject.before, observed.seen.clone(), input.now);
        let mut decision = scaling::decide(&settings, &seen);
        let mut obstacle = current.obstacle.clone();
        if let Some(why) = needs_lost(&decision, &observed.lost) {
            let mut lost = observed.lost.old.iter().chain(&observed.lost.new);
            if lost.any(|lost| !lost.is_missing) {
                return Ok(refused(subject, why.0, why.1));
            }
            // Requests still move away from anything that cannot serve.
            settings.intent = Intent::Hold;
            decision = scaling::decide(&settings, &seen);
            obstacle = obstacle.or(Some(why));
        }
        remember_end(&mut memory, &decision, &seen);
        let generation = subject.rollout.metadata.generation;
        let mut status = status::status(StatusInput {
            before: subject.before,
            accepted: current.accepted,
            update: &subject.key.name,
            seen: &seen,
            decision: &decision,
            memory,
            analysis: analysis(
                subject.before,
                current.accepted,
                &observed.update_status,
                &seen,
            ),
            revisions: self.status_entries(subject, current.accepted, current.revisions),
            generation,
            now: input.now,
        });
        if seen.accepts_sizes && decision.progress != Progress::Contested {
            status::accept_sizes(&mut status, &seen.generations, generation);
        }
        if let Some((reason, why)) = obstacle {
            status = status::refused(&status, reason, why, generation, input.now);
        }
        let mut work = match decision.action {
            Some(action) => self.act(
                subject,
                (current.spec, current.accepted),
                update,
                observed,
                action,
                status,
            ),
            None => Work::step(subject, status, RolloutAction::Nothing),
        };
        // Writing the status may carry out the action.
        work.write_status |= self.is_changed(subject.key, subject.before, &work.status);
        Ok(work)
    }

    /// Whether the objects show every size that this process has written.
    fn shows_sizes(&self, key: &Key, objects: &PerGeneration<objects::Objects>) -> bool {
        let mut workers = objects.old.values().chain(objects.new.values());
        workers.all(|(kind, scaled)| {
            let (kind, name) = (scaled.sized_kind(kind), objects::name_of(scaled.sized()));
            self.shows_version(key, kind, name, scaled.version())
        })
    }
}

/// The work for a rollout that cannot make progress.
pub(super) fn refused(subject: ReconcileContext, reason: &str, why: String) -> Work {
    let generation = subject.rollout.metadata.generation;
    let status = status::refused(subject.before, reason, why, generation, write::now());
    let mut work = Work::status(subject, status);
    work.write_status = work.is_changed();
    work
}

/// Remembers how far the end of the rollout has come. On the way back, it has not begun.
fn remember_end(memory: &mut RolloutMemory, decision: &ScalingDecision, seen: &RolloutObservation) {
    let goes_back = goes_back(decision);
    let has_all = decision.progress == Progress::Complete
        || matches!(decision.action, Some(ScalingAction::Retire(_)));
    memory.handed_over = !goes_back && (memory.handed_over || has_all);
    let may_arrive = !seen.is_current || seen.unfinished.contains(&UnfinishedWrite::Retire);
    memory.retiring &= !goes_back || may_arrive;
    // Until a frontend of old serves again, there is nothing to retire once more.
    memory.retired &= !goes_back || seen.generations.old.frontends == 0;
}

/// Whether a rollout is rolling back, or has rolled back.
fn goes_back(decision: &ScalingDecision) -> bool {
    matches!(decision.progress, Progress::Back | Progress::RolledBack)
}

/// Why a decision cannot be carried out: it needs workers whose objects have been deleted.
fn needs_lost(
    decision: &ScalingDecision,
    lost: &PerGeneration<Option<Lost>>,
) -> Option<(&'static str, String)> {
    let old_grows = matches!(
        decision.action,
        Some(ScalingAction::Grow {
            generation: Generation::Old,
            ..
        })
    );
    let to_old = lost
        .old
        .as_ref()
        .filter(|_| goes_back(decision) || old_grows);
    let to_old = to_old.map(|lost| {
        let why = &lost.why;
        let why = format!(
            "the old generation has been deleted, so there is nothing to go back to: {why}"
        );
        ("SourceDeleted", why)
    });
    let to_new = lost.new.as_ref().filter(|_| !goes_back(decision));
    let to_new = to_new.map(|lost| {
        let why = &lost.why;
        let why = format!("{why}: abort the rollout, or name another target");
        ("TargetDeleted", why)
    });
    to_old.or(to_new)
}

/// Why the update of a rollout moves no traffic.
fn unusable(status: &DynamoUpdateConfigStatus, update: &Object) -> Option<String> {
    if status.observed_generation != update.metadata.generation {
        return None;
    }
    let is_superseded = status.phase == Some(UpdatePhase::Superseded);
    let mut conditions = status.conditions.iter();
    let is_refused =
        conditions.any(|known| known.type_ == condition::ACCEPTED && known.status != "True");
    (is_superseded || is_refused).then(|| {
        let why = status.message.as_deref().unwrap_or_default();
        format!("the DynamoUpdateConfig of this rollout is not in force: {why}")
    })
}

/// The analysis result for new. A failure is remembered.
fn analysis(
    before: &DynamoRolloutStatus,
    accepted: &AcceptedStatus,
    update: &DynamoUpdateConfigStatus,
    seen: &RolloutObservation,
) -> Option<AnalysisStatus> {
    let has_failed = seen.verdict == TrialVerdict::Fail;
    let is_known = |known: &&AnalysisStatus| known.verdict == TrialVerdict::Fail && has_failed;
    let known = before.analysis.as_ref().filter(is_known);
    let of_update = update.analysis.as_ref();
    let of_update = of_update.filter(|analysis| is_of_rollout(analysis, accepted));
    known.or(of_update).cloned()
}
