//! Turns the updates of a cluster into plans that are wanted or rejected, and reports them to users in the log, in Events and
//! on `/plan`.
//!
//! Sends plans to the writer of snapshots and does not publish snapshots itself.

mod withdrawal;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot, watch};
use xxhash_rust::xxh3::xxh3_64;

use super::view::{ActiveUpdate, Conflict};
use super::{Cluster, source};
use crate::discovery::source::Context;
use crate::discovery::{RequestedPlan, SourceEvent};
use crate::k8s::Notice;
use crate::resource::{Identity, KIND, Manifest, Plan, Problems};
use crate::snapshot::{Snapshot, SnapshotStore, Status};

/// The follower's state: where plans are sent, what is in force, and what was already reported.
struct Follower {
    cluster: Cluster,
    events: mpsc::Sender<SourceEvent>,
    snapshots: Arc<SnapshotStore>,
    status: Arc<Status>,
    /// Notifies of every new snapshot.
    changes: watch::Receiver<()>,
    /// Whether there is an update for this deployment.
    is_active: bool,
    conflicts: Vec<Conflict>,
    refused: Option<(Identity, Problems)>,
    /// The pending probe of old, after the update whose plan is in force has disappeared.
    probing: Option<Pin<Box<dyn Future<Output = bool> + Send>>>,
    /// The capacity of old in percent of its full size when it was last reported, and the update that reported it.
    old_capacity: Option<(Identity, u32)>,
    /// An update that has disappeared while its plan stays in force, and the reason.
    withdrawal_note: Option<(Identity, String)>,
}

impl Cluster {
    /// Sends the plan that the cluster wants to the writer of snapshots and reports to users, for as long as it is polled.
    pub(super) async fn run(mut self, context: Context) {
        let Context {
            events,
            snapshots,
            status,
        } = context;
        let reporter = self.reporter.take();
        let listed = self.listed;
        tracing::info!(
            namespace = %self.scope.namespace,
            deployment = %self.own.join(","),
            "following the updates of the namespace whose sourceDeployment is this deployment"
        );
        let mut changes = snapshots.changes();
        changes.mark_changed();
        let mut follower = Follower {
            cluster: self,
            events,
            snapshots,
            status,
            changes,
            is_active: false,
            conflicts: Vec::new(),
            refused: None,
            probing: None,
            old_capacity: None,
            withdrawal_note: None,
        };
        let writing = async {
            if let Some(reporter) = reporter {
                reporter.write().await;
            }
        };
        let following = async {
            follower.show();
            if listed {
                follower.decide(Instant::now()).await;
            }
            loop {
                follower.step().await;
            }
        };
        tokio::join!(writing, following);
    }
}

impl Follower {
    async fn step(&mut self) {
        let answered = async {
            match &mut self.probing {
                Some(probing) => probing.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            seen = self.cluster.watch.next() => {
                let received = Instant::now();
                let changed = self.cluster.apply(seen);
                self.show();
                if changed {
                    self.decide(received).await;
                }
            }
            answers = answered => {
                self.probing = None;
                self.on_withdrawal(answers).await;
            }
            Ok(()) = self.changes.changed() => {
                // Any snapshot counts, including that of a saved plan or of one whose certificates became usable.
                if let Some(endpoints) = &mut self.cluster.endpoints {
                    let targets = self.snapshots.load().plan.new.clone();
                    endpoints.follow(&targets, &self.events).await;
                }
                self.show();
            }
        }
    }

    /// Decides on the current updates and acts on the decision.
    async fn decide(&mut self, received: Instant) {
        self.note_old();
        let decision = self
            .cluster
            .view
            .resolve(&self.cluster.own, &self.cluster.scope);
        self.contest(decision.conflicts);
        self.is_active = decision.active.is_some();
        let good = match decision.active {
            Some(ActiveUpdate {
                identity,
                plan: Ok(plan),
                ..
            }) => self.request(identity, plan.into(), received).await,
            Some(ActiveUpdate {
                identity,
                plan: Err(problems),
                instead,
            }) => {
                if let Some(plan) = instead.filter(|plan| self.is_other(plan)) {
                    self.request(identity.clone(), plan.into(), received).await;
                }
                self.refuse(identity, problems).await;
                false
            }
            None => {
                self.withdraw().await;
                false
            }
        };
        match good {
            true => self.probing = None,
            false => self.probe_if_withdrawn(),
        }
        self.show();
    }

    /// Whether the plan in force is a different one, or is not from a manifest.
    fn is_other(&self, (manifest, plan): &(Manifest, Plan)) -> bool {
        let snapshot = self.snapshots.load();
        let in_force = snapshot.manifest.as_ref();
        in_force.is_none_or(|in_force| in_force.identity != manifest.identity)
            || *snapshot.plan != *plan
    }

    /// The update whose plan is in force.
    fn in_force(&self) -> Option<Identity> {
        in_force(&self.snapshots.load())
    }

    /// Requests that a plan be put in force. Returns false if it is rejected.
    async fn request(
        &mut self,
        identity: Identity,
        wanted: RequestedPlan,
        received: Instant,
    ) -> bool {
        let (done, outcome) = oneshot::channel();
        let events = SourceEvent::Plan {
            wanted,
            source: source(&identity),
            received,
            done: Some(done),
        };
        // The send fails only if the process is about to exit.
        let _ = self.events.send(events).await;
        match outcome.await {
            Ok(Err(problems)) => {
                self.report_invalid(identity, problems);
                false
            }
            _ => {
                self.refused = None;
                true
            }
        }
    }

    /// Reports that the update cannot be used.
    async fn refuse(&mut self, identity: Identity, problems: Problems) {
        let refused = (identity, problems);
        if self.refused.as_ref() == Some(&refused) {
            return;
        }
        let (identity, problems) = refused;
        let events = SourceEvent::Rejected {
            problems: problems.clone(),
            source: source(&identity),
        };
        let _ = self.events.send(events).await;
        self.report_invalid(identity, problems);
    }

    /// There is no update, so a rejected plan no longer matters.
    async fn withdraw(&mut self) {
        if self.refused.take().is_some() {
            let _ = self.events.send(SourceEvent::Withdrawn).await;
        }
    }

    fn report_invalid(&mut self, identity: Identity, problems: Problems) {
        let refused = (identity, problems);
        if self.refused.as_ref() == Some(&refused) {
            return;
        }
        let note = format!("{}\nThe last good plan stays in force.", refused.1);
        self.publish(&refused.0, "Invalid", note, true);
        self.refused = Some(refused);
    }

    fn contest(&mut self, conflicts: Vec<Conflict>) {
        if self.conflicts == conflicts {
            return;
        }
        for conflict in conflicts.iter().filter(|new| !self.conflicts.contains(new)) {
            let text = conflict.text();
            tracing::warn!("{text}");
            self.cluster.notices.publish(Notice {
                about: conflict.loser.clone(),
                kind: KIND,
                reason: "Conflict",
                note: text,
                warning: true,
                // The same edit may conflict with one update and later with another.
                occasion: xxh3_64(conflict.active.as_bytes()),
            });
        }
        self.conflicts = conflicts;
    }

    fn publish(&self, about: &Identity, reason: &'static str, note: String, warning: bool) {
        self.cluster.notices.publish(Notice {
            about: about.clone(),
            kind: KIND,
            reason,
            note,
            warning,
            occasion: 0,
        });
    }

    /// Publishes the state of this source for `/plan`.
    fn show(&self) {
        let cluster = &self.cluster;
        self.status.lost_since.store(Arc::new(cluster.lost));
        let snapshot = self.snapshots.load();
        let in_force = in_force(&snapshot);
        let undecided = in_force.iter().filter_map(|update| {
            let manifest = snapshot.manifest.as_ref()?;
            let name = update.name.as_deref().unwrap_or_default();
            (!manifest.spec.gives_split()).then(|| {
                format!("update '{name}' sets no split, and no controller has set one yet: all requests go to old")
            })
        });
        let undecided: Vec<_> = undecided.collect();
        let withdrawal_note = self.withdrawal_note.iter();
        let withdrawal_note = withdrawal_note.filter(|(of, _)| in_force.as_ref() == Some(of));
        let nobody = (cluster.listed && !self.is_active).then(|| {
            let (namespace, own) = (&cluster.scope.namespace, cluster.own.join("' or '"));
            format!("no update of namespace '{namespace}' names '{own}' in spec.sourceDeployment")
        });
        let remarks = withdrawal_note.map(|(_, note)| note.clone());
        let remarks = remarks.chain(undecided);
        let remarks = remarks.chain(self.conflicts.iter().map(Conflict::text));
        let remarks = remarks.chain(nobody).collect();
        self.status.remarks.store(Arc::new(remarks));
        self.status
            .conflicts
            .store(self.conflicts.len(), Ordering::Relaxed);
    }
}

/// The update whose plan is in `snapshot`, if it comes from a cluster.
fn in_force(snapshot: &Snapshot) -> Option<Identity> {
    let identity = snapshot.manifest.as_ref()?.identity.clone();
    identity.uid.is_some().then_some(identity)
}
