//! Builds snapshots from a plan, the static targets and settings of the process, and the addresses and certificates that are
//! known.
//!
//! Does not decide what is put in force.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::certificates::{Certificates, TlsFault};
use crate::config::Config;
use crate::discovery::RequestedPlan;
use crate::discovery::resolve::{Addresses, resolve};
use crate::guard::Guard;
use crate::resource::{Host, Plan, TargetAddress};
use crate::snapshot::Snapshot;
use crate::split::Generation;
use crate::upstream::{Pool, PoolSettings};

/// The inputs of a snapshot other than the plan.
pub(super) struct SnapshotBuilder {
    old: Vec<TargetAddress>,
    peers: Vec<TargetAddress>,
    settings: PoolSettings,
    guard_key: Vec<u8>,
    pub addresses: Addresses,
    pub certificates: Certificates,
}

impl SnapshotBuilder {
    pub fn of(config: &Config) -> Self {
        Self {
            old: config.old.clone(),
            peers: config.peers.clone(),
            settings: config.upstream.clone(),
            guard_key: config.guard_key.clone(),
            addresses: Addresses::default(),
            certificates: Certificates::new(&config.upstream_tls),
        }
    }

    /// All targets that may receive requests under `plan`.
    pub fn targets(&self, plan: &Plan) -> Vec<TargetAddress> {
        [&plan.new[..], &self.old, &self.peers].concat()
    }

    /// Resolves names and loads certificates that `plan` needs and no earlier plan did.
    ///
    /// # Errors
    /// If its TLS files cannot be used.
    pub async fn prepare(&mut self, plan: &Plan) -> Result<(), TlsFault> {
        let speaks = |targets: &[TargetAddress]| targets.iter().any(|target| target.tls);
        let old = speaks(&self.old) || speaks(&self.peers);
        self.certificates.prepare(plan, [old, speaks(&plan.new)])?;
        self.resolve(&self.targets(plan)).await;
        Ok(())
    }

    /// Resolves targets that have not been resolved yet, because requests need the addresses of new. A name that did not resolve
    /// earlier must not delay later plans.
    pub async fn resolve(&mut self, targets: &[TargetAddress]) {
        for (target, resolved) in resolve(self.addresses.never_resolved(targets)).await {
            self.addresses.learn(target, resolved);
        }
    }

    /// Builds the snapshot of a plan. Endpoints that `previous` has keep their state and connections.
    pub fn snapshot(
        &self,
        previous: &Snapshot,
        wanted: RequestedPlan,
        source: Arc<str>,
        epoch: u64,
    ) -> Snapshot {
        let RequestedPlan { plan, manifest } = wanted;
        let pool = |targets: &[TargetAddress],
                    generation: Generation,
                    called: Option<&Host>,
                    known: &Option<Arc<Pool>>| {
            (!targets.is_empty()).then(|| {
                Arc::new(Pool::new(
                    &self.addresses.of(targets),
                    self.settings.clone(),
                    self.certificates.of(generation),
                    called,
                    known.as_deref(),
                ))
            })
        };
        let called = plan.tls.as_ref().and_then(|tls| tls.server_name.as_ref());
        Snapshot {
            epoch,
            old: pool(&self.old, Generation::Old, None, &previous.old),
            new: pool(&plan.new, Generation::New, called, &previous.new),
            peers: pool(&self.peers, Generation::Old, None, &previous.peers),
            guard: Guard::new(&self.guard_key, &plan.identity, &plan.new),
            split: previous.split.with_weights(plan.weights),
            plan,
            manifest,
            since: SystemTime::now(),
            since_instant: Instant::now(),
            source,
        }
    }
}
