//! The addresses behind the Services that a plan leads to, watched for as long as it does.
//!
//! Must not know what is done with them.

use std::net::SocketAddr;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::discovery::SourceEvent;
use crate::k8s::{Connection, Slices};
use crate::resource::{Host, Target};

/// The watches, one for each target.
pub(super) struct EndpointWatches {
    connection: Connection,
    /// What the name of a Service of the namespace ends in.
    suffix: String,
    watched: Vec<(Target, AbortOnDrop)>,
}

/// A watch that ends when it is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl EndpointWatches {
    pub fn new(connection: Connection, domain: &str) -> Self {
        let suffix = format!(".{}.svc.{domain}", connection.namespace());
        Self {
            connection,
            suffix,
            watched: Vec::new(),
        }
    }

    /// Watches what is behind `targets`, and nothing else, and tells `news` of it.
    pub async fn follow(&mut self, targets: &[Target], news: &mpsc::Sender<SourceEvent>) {
        let gone = |(target, _): &(Target, AbortOnDrop)| !targets.contains(target);
        for (target, _) in self.watched.extract_if(.., |watched| gone(watched)) {
            // Should a later plan lead there again, old addresses are worse than the Service's own.
            let _ = news.send(of(target, Vec::new())).await;
        }
        for target in targets {
            let Some(service) = self.service(target) else {
                continue;
            };
            if self.watched.iter().any(|(known, _)| known == target) {
                continue;
            }
            let mut slices = Slices::new(&self.connection, service, target.port);
            let (news, told) = (news.clone(), target.clone());
            let watching = tokio::spawn(async move {
                while news
                    .send(of(told.clone(), slices.next().await))
                    .await
                    .is_ok()
                {}
            });
            self.watched
                .push((target.clone(), AbortOnDrop(watching.abort_handle())));
        }
    }

    /// The Service of the namespace that `target` is.
    fn service<'a>(&self, target: &'a Target) -> Option<&'a str> {
        match &target.host {
            Host::Name(name) => name
                .strip_suffix(&self.suffix)
                .filter(|service| !service.contains('.')),
            Host::Ip(_) => None,
        }
    }
}

fn of(target: Target, addresses: Vec<SocketAddr>) -> SourceEvent {
    SourceEvent::Addresses { target, addresses }
}
