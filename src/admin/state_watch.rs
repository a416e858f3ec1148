//! A watch of the state: reads it immediately, after every change of plan or phase, and at least once per interval.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Admin;
use crate::lifecycle::ProcessPhase;
use crate::state_api::v1;

/// A watch. It reads the next state only after its client has received the previous one.
pub(super) struct StateWatch {
    admin: Admin,
    plans: watch::Receiver<()>,
    phases: watch::Receiver<ProcessPhase>,
    interval: Duration,
    /// When the last state was read.
    last: Option<Instant>,
    is_over: bool,
}

impl StateWatch {
    pub(super) fn new(admin: Admin, interval: Duration) -> Self {
        Self {
            plans: admin.snapshots.changes(),
            phases: admin.lifecycle.changes(),
            admin,
            interval,
            last: None,
            is_over: false,
        }
    }

    /// The next state; `None` after the final one.
    pub(super) async fn next(&mut self) -> Option<v1::State> {
        if self.is_over {
            return None;
        }
        if let Some(last) = self.last {
            tokio::select! {
                _ = self.plans.changed() => {}
                _ = self.phases.changed() => {}
                () = tokio::time::sleep_until(last + self.interval) => {}
            }
        }
        self.last = Some(Instant::now());
        let state = self.admin.state().await;
        self.is_over = state.phase() == v1::Phase::Ending;
        Some(state)
    }
}
