//! Collects the inputs of a decision: the watch caches, and the last reports of proxies and frontends.
//!
//! Objects that could not be listed are never treated as absent: the observation fails instead. A proxy or frontend that has not
//! reported yet is marked as such. Contains no policy.

mod clients;
mod comparisons;
mod confirm;
mod deleted_with_old;
mod followers;
mod frontends;
mod going_back;
mod kinds;
mod mesh;
mod old_pods;
mod other_proxies;
mod owners;
mod pods_of;
mod pools;
mod proxies;
mod references;
mod route_match;
mod routes;
mod service_fields;
mod services;
mod slices;
mod text;
mod to_old;
mod unlabelled;
mod update_targets;
mod updates;
mod worker_loads;
mod workers;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

pub(super) use self::comparisons::{ComparisonResult, ProxyComparison};
use self::proxies::ProxyReports;
use super::comparisons::ReportedCounts;
use super::deletion_check::DeletionCheck;
use super::limits::Limits;
use super::models::FrontendReport;
use super::parsed::ParsedUpdate;
use super::poller::Pollers;
use super::proxies::LastReport;
use super::spec_fields::SpecFields;
use super::tls_cache::TlsCache;
use super::{ControllerSettings, Key, old_frontends};
use crate::k8s::{Cache, NotSynced, Object, Scope, update_of, workloads};
use crate::resource::precedence::{self, Standing};
use crate::rollout::{NoReport, Observation, PerGeneration};

/// How long a proxy or frontend may take for its first report before it counts as silent.
const FIRST_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Something has not been listed or reported yet.
pub(super) struct NotYetObserved;

/// Why an observation is incomplete.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error("cannot set up TLS to the new frontends (the controller's pods need these files, too)")]
    Tls(#[from] crate::tls::Error),
    #[error("'{0}' is not a valid certificate name")]
    ServerName(String),
}

impl Error {
    /// Whether the error is expected to resolve itself, because something is just not listed yet.
    pub fn is_early(&self) -> bool {
        matches!(self, Self::NotSynced(NotSynced::NotYet(_)))
    }
}

/// An observation of an update.
pub(super) struct Observed {
    pub observation: Observation,
    /// Requests assigned to each generation in the last minute, summed over all proxies.
    pub assigned: PerGeneration<u64>,
    /// The counts of the proxies, if new is analysed.
    pub compared: Vec<ProxyComparison>,
    /// Until then, a proxy or frontend whose polling has just begun may still answer. Apply only urgent changes before.
    pub reports_due_at: Option<Instant>,
}

impl Observed {
    /// Records a proxy or frontend that has been polled since `since` and has not reported yet. Returns whether its time is up.
    fn misses(early_until: &mut Option<Instant>, since: Instant) -> bool {
        let until = since + FIRST_REPORT_TIMEOUT;
        let is_over = Instant::now() >= until;
        if !is_over {
            *early_until = Some(early_until.map_or(until, |other| other.max(until)));
        }
        is_over
    }
}

/// A proxy of an update.
#[derive(Clone)]
pub(super) struct ProxyPod {
    pub pod: String,
    pub ready: bool,
    /// Whether it may have clients: it is ready, or has run. If it is no longer ready, it may keep connections.
    may_have_clients: bool,
    /// The address of its admin port, or why it cannot be polled.
    address: Result<String, NoReport>,
}

/// Observes updates.
pub(super) struct Observer {
    pub cache: Cache,
    settings: Arc<ControllerSettings>,
    proxies: Pollers<LastReport>,
    /// The proxies of other frontends, which may send requests to old because of another update.
    other_proxies: Pollers<LastReport>,
    models: Pollers<FrontendReport>,
    comparisons: Pollers<ReportedCounts>,
    loads: Pollers<Option<u64>>,
    limits: Limits,
    tls_cache: TlsCache,
    /// The proxies of each update, as of the last time that its pods were looked up.
    proxy_pods: Mutex<HashMap<Key, Arc<[ProxyPod]>>>,
    /// The last deletion check of each update.
    deletion_checks: Mutex<HashMap<Key, DeletionCheck>>,
    /// The other namespaces whose objects an update rests on, as of its last observation.
    elsewhere: Mutex<HashMap<Key, BTreeSet<String>>>,
    update_targets: update_targets::UpdateTargetsCache,
    /// The updates for which lists are under way.
    confirming: Mutex<BTreeSet<Key>>,
    wake: mpsc::UnboundedSender<Key>,
}

impl Observer {
    /// Sends the key of every update affected by a report to `wake`.
    pub fn new(
        cache: Cache,
        settings: Arc<ControllerSettings>,
        wake: mpsc::UnboundedSender<Key>,
    ) -> Self {
        Self {
            cache,
            settings,
            proxies: Pollers::new(wake.clone()),
            other_proxies: Pollers::new(wake.clone()),
            models: Pollers::new(wake.clone()),
            comparisons: Pollers::new(wake.clone()),
            loads: Pollers::new(wake.clone()),
            limits: Limits::default(),
            tls_cache: TlsCache::default(),
            proxy_pods: Mutex::default(),
            deletion_checks: Mutex::default(),
            elsewhere: Mutex::default(),
            update_targets: update_targets::UpdateTargetsCache::default(),
            confirming: Mutex::default(),
            wake,
        }
    }

    /// Stops following an update that was deleted or that this replica does not handle.
    pub fn stop_following(&self, key: &Key) {
        self.proxies.keep(key, &BTreeSet::new());
        self.other_proxies.keep(key, &BTreeSet::new());
        self.models.keep(key, &BTreeSet::new());
        self.comparisons.keep(key, &BTreeSet::new());
        self.loads.keep(key, &BTreeSet::new());
        self.known().remove(key);
        self.forget_deletion_check(key);
        self.rests_on(key, BTreeSet::new());
    }

    /// Finds the proxies of the update `key` of the deployment `source`, and starts to follow them.
    ///
    /// # Errors
    /// When pods or Deployments are not listed.
    pub fn follow(&self, key: &Key, source: &str) -> Result<(), NotSynced> {
        let pods = self.frontend_pods(key, source)?;
        self.follow_pods(key, &pods);
        Ok(())
    }

    /// The last report of each proxy of an update, if there is one. `None` until [`Self::follow`] or [`Self::observe`] has
    /// run.
    pub fn last_reports(&self, key: &Key) -> Option<Vec<(ProxyPod, Option<LastReport>)>> {
        let proxy_pods = self.known().get(key).cloned()?;
        let last = |proxy_pod: &ProxyPod| {
            let report = match &proxy_pod.address {
                Ok(address) => self.proxies.last(address),
                Err(silence) => Some(LastReport::not_polled(format!("it has {silence}"))),
            };
            (proxy_pod.clone(), report)
        };
        Some(proxy_pods.iter().map(last).collect())
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, Arc<[ProxyPod]>>> {
        self.proxy_pods
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn frontend_pods(&self, key: &Key, source: &str) -> Result<Vec<Object>, NotSynced> {
        old_frontends::frontends(
            &self.cache,
            &key.namespace,
            source,
            &self.settings.options.proxies,
        )
    }

    /// Stops polling frontends for their models and proxies of new, because this replica does not lead.
    pub fn stop_polling(&self) {
        self.models.stop_all();
        self.comparisons.stop_all();
        self.loads.stop_all();
        self.other_proxies.stop_all();
    }

    /// Observes an update.
    ///
    /// # Errors
    /// When something is not listed.
    pub fn observe(&self, parsed: &ParsedUpdate, updates: &[Object]) -> Result<Observed, Error> {
        // Concurrently, instead of one after the other.
        workloads::begin(&self.cache);
        self.cache.begin(&kinds::slices());
        let spec = &parsed.spec;
        let source = spec.source_deployment.clone().unwrap_or_default();
        let target = spec.target_deployment.clone().unwrap_or_default();
        let workers = spec.workers.clone().unwrap_or_default();
        let workers = PerGeneration {
            old: self.count(parsed, &source, workers.old, None)?,
            new: self.count(
                parsed,
                &target,
                workers.new,
                spec.new_dynamo_namespace.as_deref(),
            )?,
        };
        let pods = self.frontend_pods(&parsed.key, &source)?;
        let mut early_until = None;
        let ProxyReports {
            proxies,
            assigned,
            lengths,
        } = self.reports(parsed, &pods, &mut early_until);
        let compared = self.comparisons(parsed, &proxies, &mut early_until);
        let frontends = self.frontends(parsed, &pods, &mut early_until)?;
        let (clients, updates_to_old) = self.ways_to_old(parsed, &pods, updates);
        let observation = Observation {
            resource_generation: parsed
                .identity
                .generation
                .and_then(|n| u64::try_from(n).ok())
                .unwrap_or(0),
            is_being_deleted: parsed.is_being_deleted,
            goes_back: going_back::goes_back(&self.cache, parsed),
            split: parsed.split(),
            split_is_ours: parsed.split_is_ours,
            split_is_incomplete: parsed.lacks_split,
            old_draining: spec.old_draining,
            superseded_by: superseded_by(parsed, &source, updates),
            workers,
            frontends,
            proxies,
            clients,
            updates_to_old,
            sees_elsewhere: self.settings.watched_scope == Scope::All
                || self.settings.options.assume_isolated,
            is_current: self.cache.are_current() && self.is_confirmed(parsed),
            lengths,
            trial_result: None,
        };
        Ok(Observed {
            observation,
            compared,
            assigned,
            reports_due_at: early_until,
        })
    }
}

/// The update that takes precedence over this one, if there is one.
fn superseded_by(parsed: &ParsedUpdate, source: &str, updates: &[Object]) -> Option<String> {
    let of_source = updates
        .iter()
        .filter(|update| SpecFields::of(update).source() == Some(source));
    let of_source: Vec<_> = of_source.map(|object| update_of(object)).collect();
    let contenders: Vec<_> = of_source.iter().map(|update| update.contender()).collect();
    let ranked = precedence::resolve(&contenders)?;
    let own = contenders
        .iter()
        .position(|contender| contender.name == parsed.key.name)?;
    let other = match ranked.standings[own] {
        Standing::Active => return None,
        Standing::SupersededBy(successor) => successor,
        Standing::Conflicts => ranked.active,
    };
    Some(contenders[other].name.to_owned())
}
