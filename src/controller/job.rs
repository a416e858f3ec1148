//! What is to be written for one update, and how that ended.
//!
//! Must not know why.

use std::time::Instant;

use super::Key;
use super::apply::{self, Wanted, Writer};
use crate::k8s::{Notice, Object};
use crate::resource::DynamoUpdateConfigStatus;

/// How an application of a decision ended.
pub(super) struct Applied {
    pub since: Option<Instant>,
    pub begun: Instant,
    pub result: Result<Option<Object>, apply::Error>,
    pub wake_at: Option<Instant>,
    pub events: Vec<Notice>,
}

/// What is to be written for an update.
pub(super) struct Job {
    pub key: Key,
    pub version: String,
    pub wanted: Option<Wanted>,
    pub status: DynamoUpdateConfigStatus,
    pub write_status: bool,
    pub events: Vec<Notice>,
    pub wake_at: Option<Instant>,
}

impl Job {
    /// Does it.
    pub async fn run(mut self, writer: Writer, since: Option<Instant>) -> (Key, Applied) {
        let begun = Instant::now();
        let result = self.write(&writer).await;
        let done = Applied {
            since,
            begun,
            result,
            wake_at: self.wake_at,
            events: self.events,
        };
        (self.key, done)
    }

    /// First the split, then the memory of it.
    async fn write(&mut self, writer: &Writer) -> Result<Option<Object>, apply::Error> {
        let mut written = None;
        if let Some(wanted) = self.wanted {
            let object = writer.spec(&self.key, &self.version, wanted).await?;
            self.version = object.metadata.resource_version.clone().unwrap_or_default();
            self.status.observed_generation = object.metadata.generation;
            for condition in &mut self.status.conditions {
                condition.observed_generation = object.metadata.generation;
            }
            written = Some(object);
        }
        if self.write_status || written.is_some() {
            written = Some(
                writer
                    .status(&self.key, &self.version, &self.status)
                    .await?,
            );
        }
        Ok(written)
    }
}
