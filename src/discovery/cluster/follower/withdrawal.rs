//! An update that is gone while its plan is in force: old gets all requests, if it answers and was not last seen to have lost
//! capacity, and else new keeps its share.
//!
//! Must not judge the updates that are left.

use std::time::Duration;

use super::Follower;
use crate::discovery::{SourceEvent, probe};
use crate::resource::Identity;

/// How long old may take to answer when the update is deleted.
const PATIENCE: Duration = Duration::from_secs(2);

impl Follower {
    /// Asks old, once, whether it can take all requests, if the update whose plan is in force has gone: deleted, or edited to be
    /// another deployment's. That the next one is bad makes no difference.
    pub(super) fn ask_if_gone(&mut self) {
        let cluster = &self.cluster;
        let gone = self.in_force();
        let gone = gone.filter(|update| !cluster.view.holds(update, &cluster.own));
        let Some(gone) = gone else {
            self.asking = None;
            return;
        };
        let is_told = self.epilogue.as_ref().is_some_and(|(of, _)| *of == gone);
        if self.asking.is_some() || is_told {
            return;
        }
        let snapshot = self.snapshots.load();
        tracing::info!(update = %snapshot.source, "the update is gone; asking old whether it can serve");
        self.asking = Some(Box::pin(async move {
            // Where old is this very process it needs no asking.
            let Some(old) = &snapshot.old else {
                return true;
            };
            let asked = probe::any_answers(old);
            tokio::time::timeout(PATIENCE, asked).await.unwrap_or(false)
        }));
    }

    /// The update is gone, and old has answered or not.
    pub(super) async fn part(&mut self, answers: bool) {
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
                let note = format!("{gone}; old answers and gets all requests");
                tracing::info!("{note}");
                self.tell(&identity, "DeletedAllToOld", note, false);
                let source = format!("no update (was {name})").into();
                let _ = self.news.send(SourceEvent::AllOld { source }).await;
                return;
            }
            (true, Some(percent)) => format!(
                "{gone}, but old had {percent} % of its capacity when it was last seen: new keeps its share, until an update \
                 says where requests should go"
            ),
            (false, _) => format!("{gone}, but old does not answer: new keeps its share"),
        };
        tracing::warn!("{kept}");
        self.tell(&identity, "DeletedNewKept", kept.clone(), true);
        self.epilogue = Some((identity, kept));
        self.show();
    }

    /// Keeps in mind what the controller says of old, as long as the update whose plan is in force is there.
    pub(super) fn note_old(&mut self) {
        let Some(in_force) = self.in_force() else {
            return;
        };
        if let Some(update) = self.cluster.view.find(&in_force) {
            let capacity = update.status.old_capacity;
            self.old_capacity = capacity.map(|percent| (in_force, percent));
        }
    }

    /// What old had of its full size, in percent, when the controller last said so, if that was less than all and old would now
    /// get more requests than it does.
    fn lost_capacity(&self, gone: &Identity) -> Option<u32> {
        let (of, percent) = self.old_capacity.as_ref()?;
        let gets_more = !self.snapshots.load().plan.weights.is_all_old();
        (of.uid == gone.uid && *percent < 100 && gets_more).then_some(*percent)
    }
}
