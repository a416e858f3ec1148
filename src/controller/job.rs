//! What is to be written for one update, and how that ended.
//!
//! Must not know why.

use std::time::Instant;

use super::Key;
use super::apply::{self, DesiredSplit, Writer};
use super::backoff::Part;
use crate::k8s::{Notice, Object};
use crate::resource::DynamoUpdateConfigStatus;

/// How an application of a decision ended.
pub(super) struct Applied {
    pub since: Option<Instant>,
    pub begun: Instant,
    /// What was written.
    pub written: Vec<Part>,
    /// What was not, and why.
    pub failed: Option<(Part, apply::Error)>,
    /// The update after the last write.
    pub object: Option<Object>,
    pub wake_at: Option<Instant>,
    pub events: Vec<Notice>,
    pub is_refused: bool,
}

/// What is to be written for an update.
pub(super) struct Job {
    pub key: Key,
    pub version: String,
    /// What is to be written as it is, if the spec can be used; and as it is to be, if that is something else.
    pub found: Option<DesiredSplit>,
    pub wanted: Option<DesiredSplit>,
    pub status: DynamoUpdateConfigStatus,
    /// Is the status news though the spec stays?
    pub write_status: bool,
    pub events: Vec<Notice>,
    pub wake_at: Option<Instant>,
    /// Is there something that a person must mend?
    pub is_refused: bool,
}

impl Job {
    /// Does it: first the split, then the memory of it, unless the status `may_be_told` only later.
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

/// Makes a status speak of the spec's `generation` that has just been written, which no proxy can have applied yet.
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
        // A write that changed nothing is no new generation.
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
