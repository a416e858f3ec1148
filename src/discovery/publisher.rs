//! The single writer of snapshots: applies plans and addresses, and reports the result.
//!
//! Does not depend on their source, nor on how pools and TLS configurations are built.

mod certificates;
mod snapshot_builder;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::sync::watch;

pub use self::certificates::TlsFault;
use self::snapshot_builder::SnapshotBuilder;
use super::resolve::Resolved;
use super::rolled_back::{Failed, RolledBack};
use super::source_event::{RequestedPlan, SourceEvent};
use super::state::State;
use crate::config::Config;
use crate::guard::Guard;
use crate::resource::{Host, Manifest, Plan, Problems, TargetAddress};
use crate::snapshot::{Rejection, Snapshot, SnapshotStore, Status};
use crate::split::{SplitPolicy, Weights};
use crate::telemetry::Metrics;

/// A plan that was rejected because its certificates cannot be used. It is retried, because they may become usable.
struct PlanAwaitingCertificates {
    wanted: RequestedPlan,
    source: Arc<str>,
    problems: Problems,
}

/// The single writer of snapshots.
pub struct Publisher {
    snapshots: Arc<SnapshotStore>,
    status: Arc<Status>,
    metrics: Arc<Metrics>,
    keeper: Option<watch::Sender<Option<Arc<Manifest>>>>,
    refused: Option<PlanAwaitingCertificates>,
    failed: Option<Failed>,
    rolled_back: Option<RolledBack>,
    builder: SnapshotBuilder,
}

impl Publisher {
    /// Publishes the first plan. `analyses` says that this process evaluates new on its own.
    ///
    /// # Errors
    /// If its TLS files cannot be used.
    pub async fn start(
        config: &Config,
        metrics: Arc<Metrics>,
        state: Option<State>,
        wanted: RequestedPlan,
        source: Arc<str>,
        analyses: bool,
    ) -> Result<Self, TlsFault> {
        let rolled_back = state.as_ref().filter(|_| analyses).map(State::rolled_back);
        let failed = rolled_back.as_ref();
        let failed = failed.and_then(|rolled_back| rolled_back.read(&wanted.plan));
        let empty = Snapshot {
            epoch: 0,
            plan: Arc::new(Plan::all_old()),
            manifest: None,
            old: None,
            new: None,
            peers: None,
            since: SystemTime::now(),
            since_instant: Instant::now(),
            source: Arc::clone(&source),
            guard: Guard::new(&config.guard_key, &Default::default(), &[]),
            // Proxies that start together must not all send their first request to old.
            split: SplitPolicy::new(Weights::ALL_OLD, fastrand::u64(..)),
        };
        let mut publisher = Self {
            snapshots: SnapshotStore::new(empty),
            status: Arc::default(),
            metrics,
            keeper: None,
            refused: None,
            failed,
            rolled_back,
            builder: SnapshotBuilder::of(config),
        };
        let manifest = wanted.manifest.clone();
        let wanted = publisher.without_failed(wanted).await;
        publisher.apply(wanted, source).await?;
        if let Some(state) = state {
            // Nothing is served yet, so a blocking write is fine.
            if let Some(manifest) = manifest
                && let Err(error) = state.save(&manifest)
            {
                let file = state.file().display();
                tracing::error!(%error, %file, "cannot save the plan");
            }
            publisher.keeper = Some(state.keeper());
        }
        Ok(publisher)
    }

    #[must_use]
    pub fn snapshots(&self) -> &Arc<SnapshotStore> {
        &self.snapshots
    }

    #[must_use]
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Handles an event from a source.
    pub async fn handle(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Rejected { problems, source } => {
                self.refused = None;
                self.reject(problems, source);
            }
            SourceEvent::Lost { problems, source } => self.record_unreadable(problems, source),
            SourceEvent::Withdrawn => self.accept(),
            SourceEvent::AllOld { source } => {
                // This needs no certificates beyond those of old, which are in use.
                let _ = self.apply(Plan::all_old().into(), source).await;
            }
            SourceEvent::Failed { new, why } => self.roll_back(new, why).await,
            SourceEvent::Addresses { target, addresses } => {
                if self.builder.addresses.set_from_source(&target, addresses) {
                    self.republish();
                }
            }
            SourceEvent::Plan {
                wanted,
                source,
                received,
                done,
            } => {
                let outcome = self.publish(wanted, source, received).await;
                if let Some(done) = done {
                    // The receiver may be gone.
                    let _ = done.send(outcome);
                }
            }
        }
    }

    /// Sends no more requests to the new generation at these targets, unless a different one is already in force.
    async fn roll_back(&mut self, new: Vec<TargetAddress>, why: String) {
        let current = self.snapshots.load();
        if current.plan.new != new || !current.plan.may_roll_back() {
            return;
        }
        tracing::error!(%why, "new has failed the analysis: all requests go to old");
        self.failed = Some(Failed::of(&current.plan, &self.builder.addresses, why));
        let wanted = self
            .without_failed(RequestedPlan {
                plan: Arc::clone(&current.plan),
                manifest: current.manifest.clone(),
            })
            .await;
        // It needs no certificates beyond those in use.
        let _ = self.apply(wanted, Arc::clone(&current.source)).await;
        self.keep_failed().await;
    }

    /// The plan as it is put in force: without requests for a new generation that has failed, unless old drains. A plan with a
    /// different new generation ends this.
    async fn without_failed(&mut self, wanted: RequestedPlan) -> RequestedPlan {
        if self.failed.is_some() {
            self.builder.resolve(&wanted.plan.new).await;
        }
        let addresses = &self.builder.addresses;
        let ended = self
            .failed
            .take_if(|failed| !failed.is_new_of(&wanted.plan, addresses));
        if ended.is_some() {
            self.keep_failed().await;
        }
        match &self.failed {
            Some(failed)
                if !wanted.plan.old_takes_nothing() && wanted.plan.failed_analysis.is_none() =>
            {
                RequestedPlan {
                    plan: Arc::new(wanted.plan.rolled_back(&failed.why)),
                    manifest: wanted.manifest,
                }
            }
            _ => wanted,
        }
    }

    /// Records which new generation has failed, if any, so that this survives a restart.
    async fn keep_failed(&self) {
        let Some(rolled_back) = self.rolled_back.clone() else {
            return;
        };
        let failed = self.failed.clone();
        let kept = tokio::task::spawn_blocking(move || rolled_back.write(failed.as_ref()));
        if let Err(error) = kept.await.unwrap_or_else(|error| Err(error.into())) {
            tracing::error!(%error, "cannot save that new was rolled back");
        }
    }

    async fn publish(
        &mut self,
        wanted: RequestedPlan,
        source: Arc<str>,
        received: Instant,
    ) -> Result<(), Problems> {
        let wanted = self.without_failed(wanted).await;
        let current = self.snapshots.load();
        if current.plan == wanted.plan && current.epoch > 0 {
            // The same plan again clears a rejection. Its source or manifest may differ.
            if self.status.rejection.load().is_some() {
                tracing::info!(%source, "the plan in force is requested again");
            }
            self.accept();
            if current.source != source || current.manifest != wanted.manifest {
                self.keep(&wanted);
                self.republish_as(wanted, source);
            }
            return Ok(());
        }
        if let Some(refused) = &self.refused
            && refused.wanted.plan == wanted.plan
            && refused.source == source
        {
            return Err(refused.problems.clone());
        }
        match self.apply(wanted.clone(), Arc::clone(&source)).await {
            Ok(()) => {
                self.accept();
                let took = received.elapsed().as_secs_f64();
                self.metrics.plan_apply.observe(took);
                Ok(())
            }
            Err(fault) => {
                let problems = fault.problems();
                self.reject(problems.clone(), Arc::clone(&source));
                self.refused = Some(PlanAwaitingCertificates {
                    wanted,
                    source,
                    problems: problems.clone(),
                });
                Err(problems)
            }
        }
    }

    /// Clears the rejection.
    fn accept(&mut self) {
        self.refused = None;
        self.status.rejection.store(Arc::default());
    }

    /// Retries a plan whose certificates could not be used, in case their files are now valid.
    pub async fn retry_rejected(&mut self) {
        let Some(refused) = self.refused.take() else {
            return;
        };
        let again = self.apply(refused.wanted.clone(), Arc::clone(&refused.source));
        match again.await {
            Ok(()) => self.accept(),
            Err(fault) => {
                let problems = fault.problems();
                if problems != refused.problems {
                    self.reject(problems.clone(), Arc::clone(&refused.source));
                }
                self.refused = Some(PlanAwaitingCertificates {
                    problems,
                    ..refused
                });
            }
        }
    }

    /// Records a plan that cannot be put in force.
    pub fn reject(&self, problems: Problems, source: Arc<str>) {
        for problem in problems.iter().take(20) {
            tracing::error!(%source, %problem, "plan rejected; the last good one stays in force");
        }
        self.record(problems, source);
    }

    /// Records that a plan can no longer be read, unless this is known.
    fn record_unreadable(&mut self, problems: Problems, source: Arc<str>) {
        let known = self.status.rejection.load();
        let is_known = |known: &Rejection| known.problems == problems && known.source == source;
        if known.as_ref().as_ref().is_some_and(is_known) {
            return;
        }
        self.refused = None;
        for problem in &problems {
            tracing::warn!(%source, %problem, "plan lost; the last good one stays in force");
        }
        self.record(problems, source);
    }

    fn record(&self, problems: Problems, source: Arc<str>) {
        self.metrics.plans_rejected.inc();
        self.status.rejection.store(Arc::new(Some(Rejection {
            problems,
            source,
            at: SystemTime::now(),
        })));
    }

    async fn apply(&mut self, wanted: RequestedPlan, source: Arc<str>) -> Result<(), TlsFault> {
        self.builder.prepare(&wanted.plan).await?;
        let previous = self.snapshots.load();
        self.keep(&wanted);
        let epoch = previous.epoch + 1;
        let snapshot = self.builder.snapshot(&previous, wanted, source, epoch);
        let (plan, manifest) = (Arc::clone(&snapshot.plan), snapshot.manifest.clone());
        let source = Arc::clone(&snapshot.source);
        self.snapshots.store(snapshot);
        if plan.new != previous.plan.new {
            self.metrics.strata.begin_series(Instant::now());
        }
        tracing::info!(epoch, %plan, %source, "plan in force");
        if let Some(manifest) = manifest
            && !manifest.without_effect.is_empty()
        {
            let fields = manifest.without_effect.join(", ");
            tracing::info!(fields, "fields without effect outside a cluster");
        }
        Ok(())
    }

    /// Queues the plan to be saved for a restart.
    fn keep(&self, wanted: &RequestedPlan) {
        if let Some(keeper) = &self.keeper {
            keeper.send_replace(wanted.manifest.clone());
        }
    }

    /// The targets with host names, which may resolve differently now.
    #[must_use]
    pub fn names(&self) -> Vec<TargetAddress> {
        let current = self.snapshots.load();
        let mut targets = self.builder.targets(&current.plan);
        targets.retain(|target| matches!(target.host, Host::Name(_)));
        targets
    }

    /// Applies resolver answers, and publishes a snapshot if addresses have changed.
    pub fn update_addresses(&mut self, answers: Vec<(TargetAddress, Resolved)>) {
        let mut changed = false;
        for (target, resolved) in answers {
            changed |= self.builder.addresses.learn(target, resolved);
        }
        if changed {
            self.republish();
        }
    }

    /// Publishes the same plan with the current addresses.
    fn republish(&mut self) {
        let current = self.snapshots.load();
        let wanted = RequestedPlan {
            plan: Arc::clone(&current.plan),
            manifest: current.manifest.clone(),
        };
        self.republish_as(wanted, Arc::clone(&current.source));
        tracing::info!("addresses changed");
    }

    /// Publishes the same plan again, without a new epoch or start time.
    fn republish_as(&mut self, wanted: RequestedPlan, source: Arc<str>) {
        let current = self.snapshots.load();
        let builder = &self.builder;
        let mut snapshot = builder.snapshot(&current, wanted, source, current.epoch);
        snapshot.since = current.since;
        snapshot.since_instant = current.since_instant;
        self.snapshots.store(snapshot);
    }

    /// Whether every target has at least one known address.
    #[must_use]
    pub fn knows_all_addresses(&self) -> bool {
        let current = self.snapshots.load();
        let targets = self.builder.targets(&current.plan);
        self.builder.addresses.unknown(&targets).is_empty()
    }

    /// Reloads certificate files that have changed.
    pub fn refresh_tls(&self) {
        self.builder.certificates.refresh();
    }
}
