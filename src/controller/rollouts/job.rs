//! The work for one rollout, and its result. Contains no policy.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value as Json;

use super::super::{Key, apply};
use super::events::{self, About};
use super::frontends::Owner;
use super::objects::Objects;
use super::write::{Writer, WrittenObject};
use super::{ReconcileContext, revisions, status};
use crate::k8s::workloads::of_kind;
use crate::k8s::{Notice, Object};
use crate::resource::rollout_status::DynamoRolloutStatus;
use crate::scaling::{Retire, ScalingAction, Sizes};
use crate::split::Generation;

/// One action and its inputs.
pub(super) enum RolloutAction {
    Nothing,
    /// Create the update, or write its spec.
    Update {
        before: Option<Object>,
        spec: Json,
        annotations: Json,
    },
    Scale {
        generation: Generation,
        objects: Objects,
        sizes: Sizes,
    },
    /// Mark pods to be removed first.
    Mark {
        pods: Vec<Object>,
    },
    /// Delete pods, which their owner replaces.
    Replace {
        pods: Vec<Object>,
    },
    /// Make a Service select other pods.
    Select {
        service: Object,
        selector: BTreeMap<String, String>,
    },
    Retire {
        retire: Retire,
        frontends: Vec<Owner>,
        workers: Objects,
    },
    /// Keep a revision.
    Keep(Json),
    /// Delete a revision.
    Forget(Object),
}

/// The work for one rollout.
pub(super) struct Work {
    pub key: Key,
    rollout: Object,
    manager: String,
    pub step: RolloutAction,
    before: DynamoRolloutStatus,
    pub status: DynamoRolloutStatus,
    /// Whether to write the status even if there is no action.
    pub write_status: bool,
    /// The action that `step` or writing the status carries out.
    pub action: Option<ScalingAction>,
}

/// The result of some work.
pub(in crate::controller) struct Done {
    pub(super) written: Vec<WrittenObject>,
    /// The rollout after its status was written.
    pub object: Option<Object>,
    /// Why the rest was not done.
    pub failed: Option<apply::Error>,
    /// Whether the step was carried out.
    pub(super) has_stepped: bool,
    /// Whether the step should keep a revision.
    pub(super) keeps: bool,
    /// Whether pods cannot be marked to be removed first.
    pub(super) cannot_mark: bool,
    /// The Events to publish.
    pub events: Vec<Notice>,
    /// The action that was carried out, as a label.
    pub acted: Option<&'static str>,
}

/// The resulting sizes of the other generation, if one object has both.
fn other_sizes(objects: &Objects, sizes: &Sizes) -> Sizes {
    let rest = sizes.iter().filter_map(|(role, size)| {
        let (_, scaled) = objects.get(role)?;
        Some((*role, scaled.half.as_ref()?.other_size(*size)))
    });
    rest.collect()
}

impl Work {
    /// Work that only writes a status.
    pub fn status(subject: ReconcileContext, status: DynamoRolloutStatus) -> Self {
        let mut work = Self::step(subject, status, RolloutAction::Nothing);
        work.write_status = true;
        work
    }

    /// Work with an action.
    pub fn step(
        subject: ReconcileContext,
        status: DynamoRolloutStatus,
        step: RolloutAction,
    ) -> Self {
        Self {
            key: subject.key.clone(),
            rollout: Object::clone(subject.rollout),
            manager: super::manager(subject.rollout),
            step,
            before: subject.before.clone(),
            status,
            write_status: false,
            action: None,
        }
    }

    /// Whether the status differs from the previous one.
    pub fn is_changed(&self) -> bool {
        self.status != self.before
    }

    /// Carries out the action, then writes the status.
    pub async fn run(mut self, writer: Writer) -> (Key, Done) {
        let mut done = Done {
            written: Vec::new(),
            object: None,
            failed: None,
            has_stepped: false,
            keeps: matches!(self.step, RolloutAction::Keep(_)),
            cannot_mark: false,
            events: Vec::new(),
            acted: None,
        };
        let now = Timestamp::now().as_millisecond();
        let about = About::of(&self.rollout, u64::try_from(now).unwrap_or_default());
        let step = std::mem::replace(&mut self.step, RolloutAction::Nothing);
        let is_step = !matches!(step, RolloutAction::Nothing);
        match self.act(step, &writer, &mut done).await {
            Ok(()) => done.has_stepped = is_step,
            Err(error) => done.failed = Some(error),
        }
        let is_done = done.failed.is_none() && !done.cannot_mark;
        let mut acted = self.action.take().filter(|_| is_done);
        // Sizes that were written are recorded even if another write has failed.
        if self.is_changed() && (self.write_status || !done.written.is_empty()) {
            let version = self.rollout.metadata.resource_version.as_deref();
            let version = version.unwrap_or_default();
            let reported = writer.status(&self.key, version, &self.status, &self.manager);
            match reported.await {
                Ok(object) => {
                    done.object = Some(object);
                    done.events = events::changes(&about, &self.before, &self.status);
                }
                Err(error) => {
                    // The status saves the selector.
                    acted = acted.filter(|action| *action != ScalingAction::SaveSelector);
                    done.failed = done.failed.or(Some(error));
                }
            }
        }
        done.acted = acted.as_ref().map(ScalingAction::label);
        let acted = acted.map(|action| events::acted(&about, &action));
        done.events.splice(0..0, acted);
        (self.key, done)
    }

    async fn act(
        &mut self,
        step: RolloutAction,
        writer: &Writer,
        done: &mut Done,
    ) -> Result<(), apply::Error> {
        match step {
            RolloutAction::Nothing => {}
            RolloutAction::Update {
                before,
                spec,
                annotations,
            } => {
                let body = (&spec, &annotations);
                let written = writer.update(&self.rollout, before.as_ref(), body, &self.manager);
                done.written.push(written.await?);
            }
            RolloutAction::Scale {
                generation,
                objects,
                sizes,
            } => {
                let mut scaled = Vec::new();
                let what = (&objects, &sizes);
                let result = writer.scale(&self.key, what, &self.manager, &mut scaled);
                let result = result.await;
                let sizes: Sizes = scaled
                    .iter()
                    .map(|(role, size, _)| (*role, *size))
                    .collect();
                let resource_generation = self.rollout.metadata.generation;
                status::record(&mut self.status, generation, &sizes, resource_generation);
                let rest = other_sizes(&objects, &sizes);
                if !rest.is_empty() {
                    status::record(
                        &mut self.status,
                        generation.other(),
                        &rest,
                        resource_generation,
                    );
                }
                done.written
                    .extend(scaled.into_iter().map(|(.., written)| written));
                result?;
            }
            RolloutAction::Mark { pods } => {
                for pod in pods {
                    match writer.mark(&pod, &self.manager).await {
                        Ok(written) => done.written.push(written),
                        // Which pods are removed is only a preference: the rollout continues without it.
                        Err(apply::Error::Refused(error)) => {
                            tracing::warn!(
                                rollout = %self.key,
                                error = &error as &dyn std::error::Error,
                                "cannot mark the workers with the fewest requests for removal; grant the permission to patch pods"
                            );
                            done.cannot_mark = true;
                            return Ok(());
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            RolloutAction::Replace { pods } => {
                for pod in pods {
                    writer.delete_pod(&pod).await?;
                }
            }
            RolloutAction::Select { service, selector } => {
                let written = writer.select(&service, &selector, &self.manager);
                done.written.push(written.await?);
            }
            RolloutAction::Retire {
                retire,
                frontends,
                workers,
            } => {
                self.retire(retire, frontends, workers, writer).await?;
                self.status.memory.get_or_insert_default().retired = true;
                self.write_status = true;
            }
            RolloutAction::Keep(revision) => {
                done.written.push(writer.keep(&self.key, &revision).await?);
            }
            RolloutAction::Forget(revision) => {
                writer.delete(&revisions::resource(), &revision).await?
            }
        }
        Ok(())
    }

    async fn retire(
        &self,
        retire: Retire,
        frontends: Vec<Owner>,
        workers: Objects,
        writer: &Writer,
    ) -> Result<(), apply::Error> {
        if retire == Retire::Delete {
            for (kind, scaled) in workers.values() {
                if let Some(scaling) = of_kind(kind) {
                    writer.delete(&scaling.resource(), &scaled.object).await?;
                }
            }
        }
        for owner in frontends {
            match (retire, owner) {
                (Retire::Delete, Owner::Workload { resource, object }) => {
                    writer.delete(&resource, &object).await?;
                }
                // This is the object of the workers.
                (Retire::Delete, Owner::Graph(_)) => {}
                (_, Owner::Workload { resource, object }) => {
                    writer.to_zero(&resource, &object, &self.manager).await?;
                }
                (_, Owner::Graph(graph)) => {
                    writer.frontends_to_zero(&graph, &self.manager).await?;
                }
            }
        }
        Ok(())
    }
}
