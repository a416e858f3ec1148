//! Watches the addresses behind the Services that the current plan sends requests to.

use std::net::SocketAddr;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::discovery::SourceEvent;
use crate::k8s::{Connection, Slices};
use crate::resource::TargetAddress;

/// One watch per target.
pub(super) struct EndpointWatches {
    connection: Connection,
    /// The domain of the cluster.
    domain: String,
    watched: Vec<(TargetAddress, AbortOnDrop)>,
}

/// Aborts the task of a watch when dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl EndpointWatches {
    pub fn new(connection: Connection, domain: &str) -> Self {
        Self {
            connection,
            domain: domain.to_owned(),
            watched: Vec::new(),
        }
    }

    /// Watches exactly the Services behind `targets` and sends their addresses to `events`.
    pub async fn follow(&mut self, targets: &[TargetAddress], events: &mpsc::Sender<SourceEvent>) {
        let gone = |(target, _): &(TargetAddress, AbortOnDrop)| !targets.contains(target);
        for (target, _) in self.watched.extract_if(.., |watched| gone(watched)) {
            // If a later plan uses the target again, resolving the Service is better than old addresses.
            let _ = events.send(of(target, Vec::new())).await;
        }
        for target in targets {
            // A Service of another namespace is left to the resolver.
            let namespace = self.connection.namespace();
            let Some((service, _)) =
                { target.service(&self.domain) }.filter(|(_, of)| *of == namespace)
            else {
                continue;
            };
            if self.watched.iter().any(|(known, _)| known == target) {
                continue;
            }
            let mut slices = Slices::new(&self.connection, service, target.port);
            let (events, of_target) = (events.clone(), target.clone());
            let watching = tokio::spawn(async move {
                while events
                    .send(of(of_target.clone(), slices.next().await))
                    .await
                    .is_ok()
                {}
            });
            self.watched
                .push((target.clone(), AbortOnDrop(watching.abort_handle())));
        }
    }
}

fn of(target: TargetAddress, addresses: Vec<SocketAddr>) -> SourceEvent {
    SourceEvent::Addresses { target, addresses }
}
