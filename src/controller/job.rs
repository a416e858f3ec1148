//! The writes for one update, and their result. Contains no policy.

use std::time::Instant;

use super::Key;
use super::apply::{self, DesiredSplit, Writer};
use super::backoff::Part;
use crate::k8s::{Notice, Object};
use crate::resource::DynamoUpdateConfigStatus;

/// The result of a job.
pub(super) struct Applied {
    pub since: Option<Instant>,
    pub begun: Instant,
    /// The writes that succeeded.
    pub written: Vec<Part>,
    /// The write that failed, and why.
    pub failed: Option<(Part, apply::Error)>,
    /// The object after the last write.
    pub object: Option<Object>,
    pub wake_at: Option<Instant>,
    pub events: Vec<Notice>,
    pub is_refused: bool,
}

/// The writes for one update.
pub(super) struct Job {
    pub key: Key,
    pub version: String,
    /// The current spec fields, if the spec is valid, and the fields to write, if any.
    pub found: Option<DesiredSplit>,
    pub wanted: Option<DesiredSplit>,
    pub status: DynamoUpdateConfigStatus,
    /// Whether to write the status even if the spec does not change.
    pub write_status: bool,
    pub events: Vec<Notice>,
    pub wake_at: Option<Instant>,
    /// Whether the user has to fix something.
    pub is_refused: bool,
}

impl Job {
    /// Writes the split, then the status. Skips the status if `may_be_told` is false, because its write is in backoff.
    pub async fn run(
        mut self,
        writer: Writer,
        since: Option<Instant>,
        may_be_told: bool,
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
        if let Some(wanted) = self.wanted {
            let result = writer.spec(&self.key, &self.version, wanted).await;
            self.note(Part::Spec(wanted), result, &mut done);
        }
        let is_news = self.write_status || !done.written.is_empty();
        if is_news && may_be_told && done.failed.is_none() {
            let result = writer.status(&self.key, &self.version, &self.status).await;
            self.note(Part::Status, result, &mut done);
        }
        (self.key, done)
    }

    fn note(&mut self, part: Part, result: Result<Object, apply::Error>, done: &mut Applied) {
        match result {
            Err(error) => done.failed = Some((part, error)),
            Ok(object) => {
                if part != Part::Status {
                    self.version = object.metadata.resource_version.clone().unwrap_or_default();
                    follow(&mut self.status, object.metadata.generation);
                }
                done.written.push(part);
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
    fn nobody_has_applied_what_was_just_written() {
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
