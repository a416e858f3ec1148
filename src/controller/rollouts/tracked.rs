//! What a controller knows of its rollouts beside the cluster: what it has written, and what of it the watch shows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::Key;
use super::{Rollouts, reconcile, write};
use crate::k8s::Object;
use crate::resource::rollout_status::DynamoRolloutStatus;

/// Minimum interval between status writes if only figures have changed.
const FIGURES: Duration = Duration::from_secs(10);
/// How long the watch may take to deliver a revision or an update that was written, before it counts as deleted by somebody else.
const DELIVERED: Duration = Duration::from_secs(5);
/// Interval between attempts at keeping a revision that the API server refuses.
const UNKEEPABLE: Duration = Duration::from_secs(10);
/// How long no pod is marked after the API server has refused it.
const UNMARKABLE: Duration = Duration::from_secs(600);

/// What this process knows of a rollout. Nothing in it must survive a restart.
#[derive(Default)]
pub(super) struct Tracked {
    /// The rollout. For another one of the same name, tracking starts over.
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
    /// When the status was last written.
    pub status_written_at: Option<Instant>,
    /// When the API server last refused to mark a pod.
    pub unmarkable: Option<Instant>,
    /// What the API server said when it refused the last write, as text for users.
    pub refused: Option<String>,
    /// When it last refused to keep a revision.
    pub unkeepable: Option<Instant>,
}

impl Rollouts {
    /// Whether the watch shows what was last written of the update, or that somebody has deleted it since.
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
        written.is_none_or(|written| write::number(Some(version)) >= written)
    }

    /// Whether a revision of this name was kept just now, and the watch may only not have delivered it yet.
    pub(super) fn was_kept(&self, key: &Key, name: &str) -> bool {
        let kept = self
            .tracked
            .get(key)
            .and_then(|tracked| tracked.kept.as_ref());
        kept.is_some_and(|(kept, at)| kept == name && at.elapsed() < DELIVERED)
    }

    /// What the API server said when it refused to keep a revision just now.
    pub(super) fn unkept(&self, key: &Key) -> Option<String> {
        let tracked = self.tracked.get(key)?;
        let is_recent = tracked.unkeepable?.elapsed() < UNKEEPABLE;
        tracked.refused.clone().filter(|_| is_recent)
    }

    /// Whether pods can be marked to go first, as far as it is known.
    pub(super) fn may_mark(&self, key: &Key) -> bool {
        let tracked = self.tracked.get(key);
        let refused = tracked.and_then(|tracked| tracked.unmarkable);
        refused.is_none_or(|at| at.elapsed() >= UNMARKABLE)
    }

    /// Whether no write can take effect any more whose result is unknown.
    pub(super) fn is_certain(&self, key: &Key) -> bool {
        let until = self
            .tracked
            .get(key)
            .and_then(|tracked| tracked.uncertain_until);
        until.is_none_or(|until| Instant::now() >= until)
    }

    /// Whether a status is worth writing.
    pub(super) fn is_changed(
        &self,
        key: &Key,
        before: &DynamoRolloutStatus,
        after: &DynamoRolloutStatus,
    ) -> bool {
        if reconcile::without_figures(before) != reconcile::without_figures(after) {
            return true;
        }
        let reported = self
            .tracked
            .get(key)
            .and_then(|tracked| tracked.status_written_at);
        before != after && reported.is_none_or(|reported| reported.elapsed() >= FIGURES)
    }
}

/// The newest known version of a rollout: the watch may lag behind the controller's own writes.
pub(super) fn newest(tracked: &mut Tracked, found: &Object) -> Object {
    let version = |object: &Object| write::number(object.metadata.resource_version.as_deref());
    tracked.latest = tracked.latest.take().filter(|latest| {
        version(latest) > version(found) && latest.metadata.uid == found.metadata.uid
    });
    let newest = tracked.latest.clone();
    newest.unwrap_or_else(|| Arc::clone(found))
}
