//! Turns an action into the write that carries it out. Contains no policy.

use super::job::{RolloutAction, Work};
use super::observe::Observed;
use super::{ReconcileContext, Rollouts, memory, objects, services, status, update, write};
use crate::k8s::Object;
use crate::k8s::workloads::{self, Scaled};
use crate::resource::DynamoRolloutSpec;
use crate::resource::rollout_status::{AcceptedStatus, DynamoRolloutStatus, ResizingStatus};
use crate::scaling::{ScalingAction, Sizes};
use crate::split::Generation;

impl Rollouts {
    /// The work for `action`.
    pub(super) fn act(
        &self,
        subject: ReconcileContext,
        (spec, accepted): (&DynamoRolloutSpec, &AcceptedStatus),
        update: &Object,
        observed: Observed,
        action: ScalingAction,
        mut status: DynamoRolloutStatus,
    ) -> Work {
        let clients = observed.services;
        let reported = action.clone();
        let step = match action {
            ScalingAction::Mark { pods, .. } => {
                let pods = self.pods(&subject.key.namespace, &pods);
                RolloutAction::Mark { pods }
            }
            ScalingAction::Replace {
                generation,
                role,
                pods,
            } => {
                let workers = observed.objects.of(generation).get(&role);
                let pods = workers.map(|(_, scaled)| leaving(scaled, &pods));
                RolloutAction::Replace {
                    pods: pods.unwrap_or_default(),
                }
            }
            ScalingAction::Split(split) => {
                status.split = Some(memory::split(split));
                RolloutAction::Update {
                    before: Some(Object::clone(update)),
                    spec: update::spec(spec, accepted, split),
                    annotations: update::annotations(subject.rollout),
                }
            }
            ScalingAction::Grow { generation, sizes }
            | ScalingAction::Shrink { generation, sizes } => {
                let objects = observed.objects.of(generation).clone();
                // They are recorded in the status first: a later leader must know that this write may still arrive, and the API
                // server does not always record who has set a size.
                let resizing = resizing(generation, &sizes);
                let is_recorded = memory::resizing(subject.before) == Some(&resizing);
                status.memory.get_or_insert_default().resizing = Some(resizing);
                match is_recorded {
                    true => RolloutAction::Scale {
                        generation,
                        objects,
                        sizes,
                    },
                    false => RolloutAction::Nothing,
                }
            }
            ScalingAction::SaveSelector => {
                let selector = clients.old.as_ref().and_then(services::selector);
                status.previous_selector = selector.unwrap_or_default();
                RolloutAction::Nothing
            }
            ScalingAction::Retarget(generation) => {
                let selector = match generation {
                    Generation::New => clients.new.as_ref().and_then(services::selector),
                    Generation::Old => Some(subject.before.previous_selector.clone()),
                };
                match (clients.old, selector) {
                    (Some(service), Some(selector)) => RolloutAction::Select { service, selector },
                    _ => RolloutAction::Nothing,
                }
            }
            // The status first records that old may be deleted, and that it is about to be, so that a controller that restarts
            // meanwhile continues.
            ScalingAction::Retire(_) if !is_retiring(subject.before) => {
                status.memory.get_or_insert_default().retiring = true;
                RolloutAction::Nothing
            }
            ScalingAction::Retire(retire) => RolloutAction::Retire {
                retire,
                frontends: observed.frontends,
                workers: match objects::is_in_place(accepted) {
                    // These are new's frontends.
                    true => objects::Objects::new(),
                    false => observed.objects.old,
                },
            },
        };
        if let Some(why) = unroutable(&reported, &step, &status, (spec, accepted)) {
            let generation = subject.rollout.metadata.generation;
            status = status::refused(&status, "Unroutable", why, generation, write::now());
        }
        let is_done = match &reported {
            ScalingAction::SaveSelector => !status.previous_selector.is_empty(),
            _ => !matches!(step, RolloutAction::Nothing),
        };
        let mut work = Work::step(subject, status, step);
        work.action = Some(reported).filter(|_| is_done);
        work
    }

    /// The pods of these names, as far as they are known.
    fn pods(&self, namespace: &str, names: &[String]) -> Vec<Object> {
        let kind = workloads::pods_resource();
        let found = names
            .iter()
            .map(|name| self.observer.cache.one(&kind, namespace, name));
        found.filter_map(|pod| pod.ok().flatten()).collect()
    }
}

/// The pods of these names that have to be replaced.
fn leaving(scaled: &Scaled, names: &[String]) -> Vec<Object> {
    let leaving = scaled.half.iter().flat_map(|half| &half.leaving);
    leaving
        .map(|leaving| &leaving.pod)
        .filter(|pod| names.iter().any(|name| name == objects::name_of(pod)))
        .cloned()
        .collect()
}

/// Why clients cannot be routed as the rollout requires: a Service selects nothing.
fn unroutable(
    action: &ScalingAction,
    step: &RolloutAction,
    status: &DynamoRolloutStatus,
    (spec, accepted): (&DynamoRolloutSpec, &AcceptedStatus),
) -> Option<String> {
    let (clients, new) = (&*spec.client_service, services::service_name(accepted));
    let services = match action {
        ScalingAction::SaveSelector if status.previous_selector.is_empty() => clients.to_owned(),
        ScalingAction::Retarget(_) if matches!(step, RolloutAction::Nothing) => {
            format!("{clients} or {new}")
        }
        _ => return None,
    };
    Some(format!(
        "clients cannot be routed to other frontends: there is no Service {services} with a selector"
    ))
}

fn resizing(generation: Generation, sizes: &Sizes) -> ResizingStatus {
    let sizes = sizes.iter();
    ResizingStatus {
        generation: generation.as_str().to_owned(),
        sizes: sizes
            .map(|(role, size)| (role.as_str().to_owned(), *size))
            .collect(),
    }
}

fn is_retiring(before: &DynamoRolloutStatus) -> bool {
    let memory = before.memory.as_ref();
    memory.is_some_and(|memory| memory.handed_over && memory.retiring)
}
