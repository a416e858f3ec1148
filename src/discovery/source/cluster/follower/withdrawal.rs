//! Handles the removal of the update whose plan is in force: old gets all requests if it responds and had its full capacity when
//! last observed. Otherwise, new keeps its share.

use std::time::Duration;

use super::Follower;
use crate::discovery::{SourceEvent, probe};
use crate::resource::Identity;

/// How long old may take to respond once the update has disappeared.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Follower {
    /// Probes old, once, if the update whose plan is in force was deleted or edited to name another deployment. It does so
    /// even if the next update is invalid.
    pub(super) fn probe_if_withdrawn(&mut self) {
        let cluster = &self.cluster;
        let gone = self.in_force();
        let gone = gone.filter(|update| !cluster.view.holds(update, &cluster.own));
        let Some(gone) = gone else {
            self.probing = None;
            return;
        };
        let is_reported = self
            .withdrawal_note
            .as_ref()
            .is_some_and(|(of, _)| *of == gone);
        if self.probing.is_some() || is_reported {
            return;
        }
        let snapshot = self.snapshots.load();
        tracing::info!(update = %snapshot.source, "the update is gone; probing old");
        self.probing = Some(Box::pin(async move {
            // If old is a service in this process, there is nothing to probe.
            let Some(old) = &snapshot.old else {
                return true;
            };
            let probe = probe::any_answers(old);
            tokio::time::timeout(TIMEOUT, probe).await.unwrap_or(false)
        }));
    }

    /// Acts on the result of the probe after the update has gone.
    pub(super) async fn on_withdrawal(&mut self, answers: bool) {
        let Some(identity) = self.in_force() else {
            return;
        };
        let name = identity.name.clone().unwrap_or_default();
        let is_there = self.cluster.view.has(&identity);
        let gone = match (is_there, self.cluster.watch.is_selective()) {
            (true, _) => format!("update '{name}' no longer names this deployment"),
            (false, false) => format!("update '{name}' was deleted"),
            (false, true) => {
                format!("update '{name}' was deleted or no longer names this deployment")
            }
        };
        let kept = match (answers, self.lost_capacity(&identity)) {
            (true, None) => {
                let note = format!("{gone}; old responds and gets all requests");
                tracing::info!("{note}");
                self.publish(&identity, "DeletedAllToOld", note, false);
                let source = format!("no update (was {name})").into();
                let _ = self.events.send(SourceEvent::AllOld { source }).await;
                return;
            }
            (true, Some(percent)) => format!(
                "{gone}, but old had {percent}% of its capacity when it was last seen: new keeps its share, until an update \
                 says where requests should go"
            ),
            (false, _) => format!("{gone}, but old does not respond: new keeps its share"),
        };
        tracing::warn!("{kept}");
        self.publish(&identity, "DeletedNewKept", kept.clone(), true);
        self.withdrawal_note = Some((identity, kept));
        self.show();
    }

    /// Records the capacity that the controller reports for old, while the update whose plan is in force exists.
    pub(super) fn note_old(&mut self) {
        let Some(in_force) = self.in_force() else {
            return;
        };
        if let Some(update) = self.cluster.view.find(&in_force) {
            let capacity = update.status.old_capacity;
            self.old_capacity = capacity.map(|percent| (in_force, percent));
        }
    }

    /// The last reported capacity of old in percent of its full size, if that is below 100 and old would now get more
    /// requests.
    fn lost_capacity(&self, gone: &Identity) -> Option<u32> {
        let (of, percent) = self.old_capacity.as_ref()?;
        let gets_more = !self.snapshots.load().plan.weights.is_all_old();
        (of.uid == gone.uid && *percent < 100 && gets_more).then_some(*percent)
    }
}
