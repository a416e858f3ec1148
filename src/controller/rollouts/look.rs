//! One look at a rollout: accept it, or observe it and decide. Contains no policy.

use kube::CustomResourceExt;
use serde_json::Value as Json;

use super::job::{Step, Work};
use super::observe::{self, Looked, Observed};
use super::status::{self, Told};
use super::{Early, Rollouts, Subject, accept, manager, memory, update, write};
use crate::error_chain::error_chain;
use crate::k8s::Object;
use crate::managed_update;
use crate::resource::rollout_status::{AcceptedStatus, DynamoRolloutStatus, RolloutPhase};
use crate::resource::status::{AnalysisStatus, AnalysisVerdict, Phase, condition};
use crate::resource::{DynamoRolloutSpec, DynamoUpdateConfig, DynamoUpdateConfigStatus};
use crate::scaling::{self, Action, Progress, Seen, Sizes};
use crate::split::{Generation, Weights};

/// A rollout that was accepted, and how it is to be.
struct Plan<'a> {
    spec: &'a DynamoRolloutSpec,
    accepted: &'a AcceptedStatus,
}

impl Rollouts {
    /// What is to be done for a rollout now.
    pub(super) fn work(&self, subject: Subject) -> Result<Work, Early> {
        let before = subject.before;
        let spec = match DynamoRolloutSpec::read(&subject.rollout.data["spec"]) {
            Ok(spec) => spec,
            Err(problems) => return Ok(refused(subject, "Invalid", problems.to_string())),
        };
        let is_over = before.phase.is_some_and(RolloutPhase::is_over);
        let has_begun = before
            .phase
            .is_some_and(|phase| !matches!(phase, RolloutPhase::Pending | RolloutPhase::Refused));
        let accepted = before.accepted.as_ref().filter(|accepted| {
            let is_other = accept::is_other_source(accepted, &spec)
                || accept::is_other_target(accepted, &spec);
            !is_other || (has_begun && !is_over)
        });
        let spec = &spec;
        match accepted {
            Some(accepted) => self.go_on(subject, &Plan { spec, accepted }),
            None => self.accept(subject, spec),
        }
    }

    /// Begins a rollout: its status says what it moves, and nothing else is written.
    fn accept(&self, subject: Subject, spec: &DynamoRolloutSpec) -> Result<Work, Early> {
        let now = write::now();
        let namespace = &subject.key.namespace;
        let accepted = match accept::accept(&self.observer.cache, namespace, spec, now) {
            Ok(accepted) => accepted,
            Err(error) if error.is_early() => return Err(Early),
            Err(error) => return Ok(refused(subject, "NotAccepted", error_chain(&error))),
        };
        let generation = subject.rollout.metadata.generation;
        let mut status = DynamoRolloutStatus {
            accepted: Some(accepted),
            phase: Some(RolloutPhase::Pending),
            observed_generation: generation,
            ..DynamoRolloutStatus::default()
        };
        let memory = status.memory.get_or_insert_default();
        memory.recorded_generation = generation;
        Ok(Work::status(subject, status))
    }

    /// Goes on with a rollout that was accepted.
    fn go_on(&self, subject: Subject, plan: &Plan) -> Result<Work, Early> {
        let (key, rollout) = (subject.key, subject.rollout);
        let kind = DynamoUpdateConfig::api_resource();
        let found = self.observer.cache.one(&kind, &key.namespace, &key.name);
        let update = found.map_err(|_| Early)?;
        let is_owned = |update: &Object| update::is_owned(update, rollout);
        if !update.as_ref().is_none_or(is_owned) {
            let why = format!(
                "there is a DynamoUpdateConfig {} already, which this rollout has not made: delete it or give the rollout \
                 another name",
                key.name
            );
            return Ok(refused(subject, "NameTaken", why));
        }
        if !self.shows(key, &update) {
            return Err(Early);
        }
        let is_of = |update: &&Object| update::is_of(update, plan.accepted);
        let split = update.as_ref().filter(is_of);
        let split = split.and_then(|update| update::split(update));
        let split = split.unwrap_or(Weights::ALL_OLD);
        let wanted = update::spec(plan.spec, plan.accepted, split);
        let annotations = update::annotations(rollout);
        let is_as = |update: &&Object| update::is_as(update, &wanted, &annotations);
        let Some(update) = update.as_ref().filter(is_as) else {
            let step = Step::Update {
                before: update,
                spec: wanted,
                annotations,
            };
            return Ok(Work::step(subject, subject.before.clone(), step));
        };
        self.decide(subject, plan, update)
    }

    /// Observes a rollout whose update is as it should be, and decides.
    fn decide(&self, subject: Subject, plan: &Plan, update: &Object) -> Result<Work, Early> {
        let look = Looked {
            key: subject.key,
            rollout: subject.rollout,
            before: subject.before,
            accepted: plan.accepted,
            client_service: &plan.spec.client_service,
            retire: plan.spec.handover.retire,
            update,
            manager: &manager(subject.rollout),
            shows_writes: self.is_certain(subject.key),
            now: write::now(),
        };
        let observed = match observe::observe(&self.observer, &look) {
            Ok(observed) => observed,
            Err(error) if error.is_early() => return Err(Early),
            Err(error) => return Ok(refused(subject, "NotSynced", error_chain(&error))),
        };
        if let Some(why) = unusable(&observed.update_status, update) {
            return Ok(refused(subject, "UpdateUnusable", why));
        }
        let (old, new) = (&observed.objects.old, &observed.objects.new);
        let shows = |(kind, scaled): &(String, crate::k8s::workloads::Scaled)| {
            let (kind, name) = (scaled.sized_kind(kind), accept::name_of(scaled.sized()));
            self.shows_version(subject.key, kind, name, scaled.version())
        };
        if !old.values().chain(new.values()).all(shows) {
            return Err(Early);
        }
        let superseded = accept::is_other_target(plan.accepted, plan.spec);
        let terms = accept::terms(plan.accepted);
        let Some(settings) = managed_update::settings(plan.spec, &terms, superseded) else {
            let why = "nothing of what was accepted can be moved".to_owned();
            return Ok(refused(subject, "Invalid", why));
        };
        let (mut memory, seen) = memory::advance(subject.before, observed.seen.clone(), look.now);
        let decision = scaling::decide(&settings, &seen);
        let goes_back = matches!(decision.progress, Progress::Back | Progress::RolledBack);
        if goes_back && old.len() < plan.accepted.source.roles.len() {
            let why = "the old generation has been deleted, so there is nothing to go back to";
            return Ok(refused(subject, "SourceDeleted", why.to_owned()));
        }
        let has_all = decision.progress == Progress::Complete
            || matches!(decision.action, Some(Action::Retire(_)));
        memory.handed_over = !goes_back && (memory.handed_over || has_all);
        let generation = subject.rollout.metadata.generation;
        let mut status = status::status(Told {
            before: subject.before,
            accepted: plan.accepted,
            update: &subject.key.name,
            seen: &seen,
            decision: &decision,
            memory,
            analysis: analysis(subject.before, &observed.update_status, &seen),
            generation,
            now: look.now,
        });
        if seen.accepts_sizes && decision.progress != Progress::Contested {
            status::accept_sizes(&mut status, &seen.sides, generation);
        }
        let is_news = self.is_news(subject.key, subject.before, &status);
        let mut work = match decision.action {
            Some(action) => self.act(subject, plan, update, observed, action, status),
            None => Work::step(subject, status, Step::Nothing),
        };
        work.write_status |= is_news;
        Ok(work)
    }

    /// The work that `action` is.
    fn act(
        &self,
        subject: Subject,
        plan: &Plan,
        update: &Object,
        observed: Observed,
        action: Action,
        mut status: DynamoRolloutStatus,
    ) -> Work {
        let services = observed.services;
        let told = action.clone();
        let step = match action {
            // No kind says how many streams each of its pods has.
            Action::Mark { .. } => Step::Nothing,
            Action::Replace { side, role, pods } => {
                let workers = observed.objects.of(side).get(&role);
                let half = workers.and_then(|(_, scaled)| scaled.half.as_ref());
                let mut leaving = half.map(|half| half.leaving.clone()).unwrap_or_default();
                leaving.retain(|pod| pods.iter().any(|name| name == accept::name_of(pod)));
                Step::Replace { pods: leaving }
            }
            Action::Split(split) => {
                status.split = Some(memory::split(split));
                Step::Update {
                    before: Some(Object::clone(update)),
                    spec: update::spec(plan.spec, plan.accepted, split),
                    annotations: update::annotations(subject.rollout),
                }
            }
            Action::Grow { side, sizes } | Action::Shrink { side, sizes } => {
                let objects = observed.objects.of(side).clone();
                let empties = empties(&objects, &sizes).then(|| side.as_str().to_owned());
                let is_told = memory::emptying(subject.before) == empties.as_deref();
                status
                    .memory
                    .get_or_insert_default()
                    .emptying
                    .clone_from(&empties);
                // Of a size of 0, the API server does not tell who has set it. So the status tells it first.
                match is_told || empties.is_none() {
                    true => Step::Scale {
                        side,
                        objects,
                        sizes,
                    },
                    false => Step::Nothing,
                }
            }
            Action::SaveSelector => {
                let selector = services.old.as_ref().and_then(observe::selector);
                status.previous_selector = selector.unwrap_or_default();
                Step::Nothing
            }
            Action::Retarget(side) => {
                let selector = match side {
                    Generation::New => services.new.as_ref().and_then(observe::selector),
                    Generation::Old => Some(subject.before.previous_selector.clone()),
                };
                match (services.old, selector) {
                    (Some(service), Some(selector)) => Step::Select { service, selector },
                    _ => Step::Nothing,
                }
            }
            // First the status says that old may go. A controller that starts anew while objects are deleted goes on.
            Action::Retire(_) if !has_handed_over(subject.before) => Step::Nothing,
            Action::Retire(retire) => Step::Retire {
                retire,
                frontends: observed.frontends,
                workers: match accept::is_in_place(plan.accepted) {
                    // They are those of new.
                    true => accept::Objects::new(),
                    false => observed.objects.old,
                },
            },
        };
        let is_done = match &told {
            Action::SaveSelector => !status.previous_selector.is_empty(),
            _ => !matches!(step, Step::Nothing),
        };
        let mut work = Work::step(subject, status, step);
        work.action = Some(told).filter(|_| is_done);
        work
    }
}

/// Whether a size becomes 0.
fn empties(objects: &accept::Objects, sizes: &Sizes) -> bool {
    let mut emptied = sizes.iter().filter(|(_, size)| **size == 0);
    emptied.any(|(role, _)| {
        objects
            .get(role)
            .is_some_and(|(_, scaled)| scaled.part.asked > 0)
    })
}

fn has_handed_over(before: &DynamoRolloutStatus) -> bool {
    let memory = before.memory.as_ref();
    memory.is_some_and(|memory| memory.handed_over)
}

/// The work for a rollout for which nothing can be done.
fn refused(subject: Subject, reason: &str, why: String) -> Work {
    let generation = subject.rollout.metadata.generation;
    let status = status::refused(subject.before, reason, why, generation, write::now());
    let mut work = Work::status(subject, status);
    work.write_status = work.is_news();
    work
}

/// Why the update of a rollout moves nothing.
fn unusable(status: &DynamoUpdateConfigStatus, update: &Object) -> Option<String> {
    if status.observed_generation != update.metadata.generation {
        return None;
    }
    let is_superseded = status.phase == Some(Phase::Superseded);
    let mut conditions = status.conditions.iter();
    let is_refused =
        conditions.any(|known| known.type_ == condition::ACCEPTED && known.status != "True");
    (is_superseded || is_refused).then(|| {
        let why = status.message.as_deref().unwrap_or_default();
        format!("the DynamoUpdateConfig of this rollout is not in force: {why}")
    })
}

/// What the analysis says of new. A failure is remembered.
fn analysis(
    before: &DynamoRolloutStatus,
    update: &DynamoUpdateConfigStatus,
    seen: &Seen,
) -> Option<AnalysisStatus> {
    let has_failed = seen.verdict == scaling::Verdict::Fail;
    let is_known = |known: &&AnalysisStatus| known.verdict == AnalysisVerdict::Fail && has_failed;
    let known = before.analysis.as_ref().filter(is_known);
    known.or(update.analysis.as_ref()).cloned()
}

/// A status without what changes all the time.
pub(super) fn without_figures(status: &DynamoRolloutStatus) -> Json {
    let mut status = status.clone();
    let sides = [&mut status.source, &mut status.target];
    for side in sides.into_iter().flatten() {
        side.open_streams = None;
    }
    if let Some(analysis) = &mut status.analysis {
        analysis.message.clear();
    }
    let remove_digits = |text: &mut String| text.retain(|letter| !letter.is_ascii_digit());
    status.message.iter_mut().for_each(remove_digits);
    for wait in &mut status.waiting_for {
        remove_digits(&mut wait.what);
    }
    for condition in &mut status.conditions {
        remove_digits(&mut condition.message);
    }
    let mut status = serde_json::json!(status);
    let waits = status["waitingFor"].as_array_mut().into_iter().flatten();
    for wait in waits {
        wait["since"] = Json::Null;
    }
    status
}
