//! The one writer of snapshots: folds plans and addresses, and says what it made of them.

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::sync::{oneshot, watch};

use super::resolve::{Addresses, resolve};
use super::state::State;
use crate::config::Config;
use crate::guard::Guard;
use crate::resource::{Host, Manifest, Plan, Problems, Target};
use crate::snapshot::{Rejection, Snapshot, Status, World};
use crate::telemetry::Metrics;
use crate::tls::{ClientFiles, Reloading};
use crate::upstream::{Pool, Settings};

/// A plan as its source gives it.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub plan: Arc<Plan>,
    /// The manifest it was read from, if it was.
    pub manifest: Option<Arc<Manifest>>,
}

/// What a source has to tell.
#[derive(Debug)]
pub enum News {
    Plan {
        wanted: Wanted,
        source: Arc<str>,
        heard: Instant,
        /// Told what became of it, if someone waits for that.
        done: Option<oneshot::Sender<Result<(), Problems>>>,
    },
    Rejected {
        problems: Problems,
        source: Arc<str>,
    },
    /// What was refused is wanted no more.
    Withdrawn,
    /// The plan in force is wanted no more, and old can take all requests. What was refused stays refused.
    AllOld { source: Arc<str> },
    /// Which addresses are behind a target, from one who knows better than the resolver; none if nobody does any more.
    Addresses {
        target: Target,
        addresses: Vec<SocketAddr>,
    },
}

/// Why the TLS of a plan cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("TLS towards model servers")]
pub struct TlsFault(#[from] crate::tls::Error);

impl TlsFault {
    /// The same with all its causes, for the person who wrote the plan.
    fn problems(&self) -> Problems {
        let mut causes = Vec::new();
        let mut next = self.source();
        while let Some(cause) = next {
            causes.push(cause.to_string());
            next = cause.source();
        }
        Problems::one("spec.tls", causes.join(": "))
    }
}

/// A plan whose certificates could not be used: it may come in force once they can.
struct Refused {
    wanted: Wanted,
    source: Arc<str>,
    problems: Problems,
}

/// A client TLS configuration and what it was made from.
type Tls = Option<(ClientFiles, Arc<Reloading<ClientFiles>>)>;

/// The writer.
pub struct Publisher {
    world: Arc<World>,
    status: Arc<Status>,
    metrics: Arc<Metrics>,
    keeper: Option<watch::Sender<Option<Arc<Manifest>>>>,
    refused: Option<Refused>,
    old: Vec<Target>,
    peers: Vec<Target>,
    settings: Settings,
    guard_key: Vec<u8>,
    files: ClientFiles,
    addresses: Addresses,
    /// Of the old side and its peers, and of new.
    tls: [Tls; 2],
}

impl Publisher {
    /// Puts the first plan in force.
    ///
    /// # Errors
    /// When its TLS files cannot be used.
    pub async fn start(
        config: &Config,
        metrics: Arc<Metrics>,
        state: Option<State>,
        wanted: Wanted,
        source: Arc<str>,
    ) -> Result<Self, TlsFault> {
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
        };
        let mut publisher = Self {
            world: World::new(empty),
            status: Arc::default(),
            metrics,
            keeper: None,
            refused: None,
            old: config.old.clone(),
            peers: config.peers.clone(),
            settings: config.upstream.clone(),
            guard_key: config.guard_key.clone(),
            files: config.upstream_tls.clone(),
            addresses: Addresses::default(),
            tls: [None, None],
        };
        let manifest = wanted.manifest.clone();
        publisher.apply(wanted, source).await?;
        if let Some(state) = state {
            // While nothing is served there is time for it.
            if let Some(manifest) = manifest
                && let Err(error) = state.save(&manifest)
            {
                let file = state.file().display();
                tracing::error!(%error, %file, "the plan could not be kept");
            }
            publisher.keeper = Some(state.keeper());
        }
        Ok(publisher)
    }

    #[must_use]
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    #[must_use]
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Takes in what a source tells.
    pub async fn hear(&mut self, news: News) {
        match news {
            News::Rejected { problems, source } => {
                self.refused = None;
                self.reject(problems, source);
            }
            News::Withdrawn => {
                self.refused = None;
                self.status.rejection.store(Arc::default());
            }
            News::AllOld { source } => {
                let wanted = Wanted {
                    plan: Arc::new(Plan::all_old()),
                    manifest: None,
                };
                // It needs no certificate of its own: those of old are in use.
                let _ = self.apply(wanted, source).await;
            }
            News::Addresses { target, addresses } => {
                if self.addresses.tell(&target, addresses) {
                    self.renew();
                }
            }
            News::Plan {
                wanted,
                source,
                heard,
                done,
            } => {
                let outcome = self.want(wanted, source, heard).await;
                if let Some(done) = done {
                    // Whoever waited may have gone.
                    let _ = done.send(outcome);
                }
            }
        }
    }

    async fn want(
        &mut self,
        wanted: Wanted,
        source: Arc<str>,
        heard: Instant,
    ) -> Result<(), Problems> {
        let current = self.world.load();
        if current.plan == wanted.plan && current.epoch > 0 {
            // The same again clears what was wrong in between, and may come from elsewhere than it first did.
            self.accept();
            if current.source != source || current.manifest != wanted.manifest {
                self.keep(&wanted);
                self.restate(wanted, source);
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
                let took = heard.elapsed().as_secs_f64();
                self.metrics.plan_apply.observe(took);
                Ok(())
            }
            Err(fault) => {
                let problems = fault.problems();
                self.reject(problems.clone(), Arc::clone(&source));
                self.refused = Some(Refused {
                    wanted,
                    source,
                    problems: problems.clone(),
                });
                Err(problems)
            }
        }
    }

    /// Nothing is refused any more.
    fn accept(&mut self) {
        self.refused = None;
        self.status.rejection.store(Arc::default());
    }

    /// Tries a plan again whose certificates could not be used: their files may be there by now.
    pub async fn reconsider(&mut self) {
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
                self.refused = Some(Refused {
                    problems,
                    ..refused
                });
            }
        }
    }

    /// Notes a plan that cannot come in force.
    pub fn reject(&self, problems: Problems, source: Arc<str>) {
        self.metrics.plans_rejected.inc();
        for problem in problems.iter().take(20) {
            tracing::error!(%source, %problem, "plan refused; the last good one stays in force");
        }
        self.status.rejection.store(Arc::new(Some(Rejection {
            problems,
            source,
            at: SystemTime::now(),
        })));
    }

    async fn apply(&mut self, wanted: Wanted, source: Arc<str>) -> Result<(), TlsFault> {
        self.prepare_tls(&wanted.plan)?;
        // Requests must find new where it is. But a name that nobody knew when it was asked for keeps no later plan waiting.
        let targets = [&wanted.plan.new[..], &self.old, &self.peers].concat();
        for (target, addresses) in resolve(self.addresses.unasked(&targets)).await {
            self.addresses.learn(target, addresses);
        }
        let previous = self.world.load();
        self.keep(&wanted);
        let snapshot = self.snapshot(&previous, wanted, source, previous.epoch + 1);
        let (plan, manifest) = (Arc::clone(&snapshot.plan), snapshot.manifest.clone());
        let (epoch, source) = (snapshot.epoch, Arc::clone(&snapshot.source));
        self.world.store(snapshot);
        tracing::info!(epoch, %plan, %source, "plan in force");
        if let Some(manifest) = manifest
            && !manifest.without_effect.is_empty()
        {
            let fields = manifest.without_effect.join(", ");
            tracing::info!(
                fields,
                "fields that only mean something in a cluster are without effect here"
            );
        }
        Ok(())
    }

    /// Has it kept over a restart, soon.
    fn keep(&self, wanted: &Wanted) {
        if let Some(keeper) = &self.keeper {
            keeper.send_replace(wanted.manifest.clone());
        }
    }

    fn prepare_tls(&mut self, plan: &Plan) -> Result<(), TlsFault> {
        let own = &self.files;
        let of_plan = plan.tls.as_ref().map_or_else(
            || own.clone(),
            |tls| ClientFiles {
                ca: tls
                    .ca_file
                    .as_ref()
                    .map(Into::into)
                    .or_else(|| own.ca.clone()),
                identity: tls
                    .client
                    .as_ref()
                    .map(|(certificate, key)| (certificate.into(), key.into()))
                    .or_else(|| own.identity.clone()),
            },
        );
        let speaks = |targets: &[Target]| targets.iter().any(|target| target.tls);
        let wanted = [
            (speaks(&self.old) || speaks(&self.peers)).then(|| own.clone()),
            speaks(&plan.new).then_some(of_plan),
        ];
        for (slot, files) in self.tls.iter_mut().zip(wanted) {
            let known = slot.as_ref().map(|(files, _)| files);
            if let Some(files) = files
                && known != Some(&files)
            {
                *slot = Some((files.clone(), Arc::new(Reloading::new(files)?)));
            }
        }
        Ok(())
    }

    fn snapshot(
        &self,
        previous: &Snapshot,
        wanted: Wanted,
        source: Arc<str>,
        epoch: u64,
    ) -> Snapshot {
        let Wanted { plan, manifest } = wanted;
        let pool =
            |targets: &[Target], side: usize, called: Option<&Host>, known: &Option<Arc<Pool>>| {
                (!targets.is_empty()).then(|| {
                    let tls = self.tls[side].as_ref().map(|(_, tls)| Arc::clone(tls));
                    Arc::new(Pool::new(
                        &self.addresses.of(targets),
                        self.settings.clone(),
                        tls,
                        called,
                        known.as_deref(),
                    ))
                })
            };
        let called = plan.tls.as_ref().and_then(|tls| tls.server_name.as_ref());
        Snapshot {
            epoch,
            old: pool(&self.old, 0, None, &previous.old),
            new: pool(&plan.new, 1, called, &previous.new),
            peers: pool(&self.peers, 0, None, &previous.peers),
            guard: Guard::new(&self.guard_key, &plan.identity, &plan.new),
            plan,
            manifest,
            since: SystemTime::now(),
            since_instant: Instant::now(),
            source,
        }
    }

    /// The targets whose names may mean other addresses by now.
    #[must_use]
    pub fn names(&self) -> Vec<Target> {
        let current = self.world.load();
        let mut targets = [&current.plan.new[..], &self.old, &self.peers].concat();
        targets.retain(|target| matches!(target.host, Host::Name(_)));
        targets
    }

    /// Takes in the addresses of targets, and puts changed ones in force under the same plan.
    pub fn learn(&mut self, answers: Vec<(Target, Vec<SocketAddr>)>) {
        let mut changed = false;
        for (target, addresses) in answers {
            changed |= self.addresses.learn(target, addresses);
        }
        if changed {
            self.renew();
        }
    }

    /// The same plan over the addresses as they are now.
    fn renew(&mut self) {
        let current = self.world.load();
        let wanted = Wanted {
            plan: Arc::clone(&current.plan),
            manifest: current.manifest.clone(),
        };
        self.restate(wanted, Arc::clone(&current.source));
        tracing::info!("addresses changed");
    }

    /// Puts the same plan in force again: it does not begin anew.
    fn restate(&mut self, wanted: Wanted, source: Arc<str>) {
        let current = self.world.load();
        let mut snapshot = self.snapshot(&current, wanted, source, current.epoch);
        snapshot.since = current.since;
        snapshot.since_instant = current.since_instant;
        self.world.store(snapshot);
    }

    /// Are all targets known by at least one address?
    #[must_use]
    pub fn knows_all_addresses(&self) -> bool {
        let current = self.world.load();
        let targets = [&current.plan.new[..], &self.old, &self.peers].concat();
        self.addresses.unknown(&targets).is_empty()
    }

    /// Reads certificate files again that have changed.
    pub fn refresh_tls(&self) {
        for (_, tls) in self.tls.iter().flatten() {
            match tls.refresh() {
                Ok(false) => {}
                Ok(true) => tracing::info!("certificates towards model servers were read again"),
                Err(error) => {
                    tracing::error!(%error, "certificates towards model servers cannot be used; the last good ones stay")
                }
            }
        }
    }
}
