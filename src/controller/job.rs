//! The work for one update, and its result. Contains no policy.

use std::time::Instant;

use super::Key;
use super::apply::{self, Current, Writer};
use super::rejected_writes::Part;
use crate::k8s::{Notice, Object};
use crate::resource::DynamoUpdateConfigStatus;
use crate::rollout::{Action, DesiredSplit};

/// The result of a job.
pub(super) struct Applied {
    pub since: Option<Instant>,
    pub begun: Instant,
    /// The writes that succeeded.
    pub written: Vec<Part>,
    /// The write that failed last, and why.
    pub failed: Option<(Part, apply::Error)>,
    /// The object after the last write.
    pub object: Option<Object>,
    pub wake_at: Option<Instant>,
    pub events: Vec<Notice>,
    pub is_refused: bool,
}

/// The work for one update.
pub(super) struct Job {
    pub key: Key,
    pub version: String,
    /// The fields of the spec as found, if the spec is valid.
    pub found: Option<DesiredSplit>,
    pub actions: Vec<Action>,
    /// The status as found.
    pub before: DynamoUpdateConfigStatus,
    pub status: DynamoUpdateConfigStatus,
    /// Whether to write the status even if there is no action.
    pub write_status: bool,
    pub events: Vec<Notice>,
    pub wake_at: Option<Instant>,
    /// Whether the user has to fix something.
    pub is_refused: bool,
}

impl Job {
    /// The fields of the spec as its actions leave them, if they change them.
    pub fn desired(&self) -> Option<DesiredSplit> {
        let mut splits = self.actions.iter().filter_map(|action| match action {
            Action::SetSplit(desired) => Some(*desired),
            Action::RecordFailure(_) => None,
        });
        splits.next_back()
    }

    /// Carries out the actions, then writes the status. Skips the status if `may_write_status` is false, because its write is in
    /// backoff.
    pub async fn run(
        mut self,
        writer: Writer,
        since: Option<Instant>,
        may_write_status: bool,
    ) -> (Key, Applied) {
        let mut done = Applied {
            since,
            begun: Instant::now(),
            written: Vec::new(),
            failed: None,
            object: None,
            wake_at: self.wake_at,
            events: std::mem::take(&mut self.events),
            is_refused: self.is_refused,
        };
        for action in std::mem::take(&mut self.actions) {
            let update = Current {
                key: &self.key,
                version: &self.version,
                status: &self.before,
            };
            let result = writer.execute(update, &action).await;
            let ends = match &result {
                Ok(_) => false,
                Err(apply::Error::Changed | apply::Error::NotLeading) => true,
                Err(_) => action.is_required(),
            };
            self.note(Part::Action(action), result, &mut done);
            if ends {
                return (self.key, done);
            }
        }
        let is_changed = self.write_status || !done.written.is_empty();
        if is_changed && may_write_status {
            let result = writer.status(&self.key, &self.version, &self.status).await;
            self.note(Part::Status, result.map(Some), &mut done);
        }
        (self.key, done)
    }

    fn note(
        &mut self,
        part: Part,
        result: Result<Option<Object>, apply::Error>,
        done: &mut Applied,
    ) {
        match result {
            Err(error) => done.failed = Some((part, error)),
            Ok(object) => {
                done.written.push(part);
                let Some(object) = object else {
                    return;
                };
                self.version = object.metadata.resource_version.clone().unwrap_or_default();
                follow(&mut self.status, object.metadata.generation);
                done.object = Some(object);
            }
        }
    }
}

/// Updates the status to the spec `generation` that was just written, which no proxy can have applied yet.
fn follow(status: &mut DynamoUpdateConfigStatus, generation: Option<i64>) {
    if status.observed_generation == generation {
        return;
    }
    status.observed_generation = generation;
    for condition in &mut status.conditions {
        condition.observed_generation = generation;
    }
    if let Some(frontends) = &mut status.frontends {
        frontends.applied = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::status::FrontendsStatus;

    #[test]
    fn no_proxy_has_applied_an_edit_that_was_just_written() {
        let mut status = DynamoUpdateConfigStatus {
            observed_generation: Some(3),
            frontends: Some(FrontendsStatus {
                total: 2,
                applied: 2,
            }),
            ..DynamoUpdateConfigStatus::default()
        };
        // A write that changes nothing keeps the generation.
        follow(&mut status, Some(3));
        assert_eq!(status.frontends.map(|all| all.applied), Some(2));
        follow(&mut status, Some(4));
        assert_eq!(status.observed_generation, Some(4));
        assert_eq!(
            status.frontends.map(|all| (all.total, all.applied)),
            Some((2, 0))
        );
    }
}
