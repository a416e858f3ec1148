//! What a controller knows about its rollouts in addition to the watches: what it has written, and which of it the watches have
//! delivered.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::Key;
use super::super::tracked::is_worth_writing;
use super::takeover::Inherited;
use super::{Rollouts, status};
use crate::k8s::{Object, version_number};
use crate::resource::rollout_status::DynamoRolloutStatus;
use crate::scaling::UnfinishedWrite;

/// How long the watch may take to deliver a revision or an update that was written, before it counts as deleted by another
/// client.
const DELIVERED: Duration = Duration::from_secs(5);
/// Interval between attempts to keep a revision that the API server has rejected.
const KEEP_RETRY_DELAY: Duration = Duration::from_secs(10);
/// How long no pod is marked after the API server has rejected it.
const MARK_RETRY_DELAY: Duration = Duration::from_secs(600);

/// What this process knows about a rollout. None of it needs to survive a restart.
#[derive(Default)]
pub(super) struct TrackedRollout {
    /// The rollout. For a different rollout with the same name, tracking starts over.
    pub uid: Option<String>,
    /// The object that was last written, which the watch may not have delivered yet.
    pub latest: Option<Object>,
    /// What was written and must be seen before the next decision, by kind and name.
    pub written: HashMap<(String, String), u64>,
    /// When the update was last written.
    pub update_written_at: Option<Instant>,
    /// The revision that was kept last, which the watch may not have delivered yet, and when.
    pub kept: Option<(String, Instant)>,
    /// Until when a write whose result is unknown may take effect.
    pub uncertain_until: Option<Instant>,
    /// What an earlier leader may have sent.
    pub inherited: Inherited,
    /// When the status was last written.
    pub status_written_at: Option<Instant>,
    /// When the API server last rejected marking a pod.
    pub mark_rejected_at: Option<Instant>,
    /// The API server's message if it rejected the last write, as text for users.
    pub refused: Option<String>,
    /// When it last rejected keeping a revision.
    pub keep_rejected_at: Option<Instant>,
}

impl Rollouts {
    /// Whether the watch has delivered the last write of the update, or shows that the update has been deleted since.
    pub(super) fn shows(&self, key: &Key, update: &Option<Object>) -> bool {
        let Some(update) = update else {
            let tracked = self.tracked.get(key);
            let written_at = tracked.and_then(|tracked| tracked.update_written_at);
            return written_at.is_none_or(|at| at.elapsed() >= DELIVERED);
        };
        let version = update.metadata.resource_version.as_deref();
        self.shows_version(
            key,
            crate::resource::KIND,
            &key.name,
            version.unwrap_or("0"),
        )
    }

    pub(super) fn shows_version(&self, key: &Key, kind: &str, name: &str, version: &str) -> bool {
        let tracked = self.tracked.get(key);
        let written = tracked.and_then(|tracked| {
            tracked
                .written
                .get(&(kind.to_owned(), name.to_owned()))
                .copied()
        });
        written.is_none_or(|written| version_number(Some(version)) >= written)
    }

    /// Whether a revision of this name was kept so recently that the watch may not have delivered it yet.
    pub(super) fn was_kept(&self, key: &Key, name: &str) -> bool {
        let kept = self
            .tracked
            .get(key)
            .and_then(|tracked| tracked.kept.as_ref());
        kept.is_some_and(|(kept, at)| kept == name && at.elapsed() < DELIVERED)
    }

    /// The API server's message if it has recently rejected keeping a revision.
    pub(super) fn keep_error(&self, key: &Key) -> Option<String> {
        let tracked = self.tracked.get(key)?;
        let is_recent = tracked.keep_rejected_at?.elapsed() < KEEP_RETRY_DELAY;
        tracked.refused.clone().filter(|_| is_recent)
    }

    /// Whether pods can be marked to be removed first, as far as known.
    pub(super) fn may_mark(&self, key: &Key) -> bool {
        let tracked = self.tracked.get(key);
        let refused = tracked.and_then(|tracked| tracked.mark_rejected_at);
        refused.is_none_or(|at| at.elapsed() >= MARK_RETRY_DELAY)
    }

    /// Whether no write with an unknown result can still take effect.
    pub(super) fn is_certain(&self, key: &Key) -> bool {
        let until = self
            .tracked
            .get(key)
            .and_then(|tracked| tracked.uncertain_until);
        until.is_none_or(|until| Instant::now() >= until)
    }

    /// What an earlier leader may have sent, as long as it may still arrive. That may include what was carried out.
    pub(super) fn unfinished(&self, key: &Key) -> &[UnfinishedWrite] {
        let tracked = self.tracked.get(key);
        tracked.map_or(&[], |tracked| tracked.inherited.unfinished(Instant::now()))
    }

    /// Whether a status is worth writing.
    pub(super) fn is_changed(
        &self,
        key: &Key,
        before: &DynamoRolloutStatus,
        after: &DynamoRolloutStatus,
    ) -> bool {
        let tracked = self.tracked.get(key);
        let written_at = tracked.and_then(|tracked| tracked.status_written_at);
        is_worth_writing(before, after, written_at, status::without_figures)
    }
}
