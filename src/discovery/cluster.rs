//! The plan of a cluster: the update of one's own deployment, followed as it is edited, contested and deleted.
//!
//! It tells the one writer of snapshots what to put in force, and people what it cannot: in the log, by Events, and on
//! the page `/plan`. Must not put anything in force itself.

mod behind;
mod view;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use xxhash_rust::xxh3::xxh3_64;

use self::behind::Behind;
use self::view::{Conflict, Ruler, View};
use super::probe;
use super::publisher::{News, Wanted};
use super::state::State;
use crate::config::ClusterSource;
use crate::k8s::{Connection, Error, Notice, Notices, Reporter, Seen, Watch};
use crate::resource::{Identity, Manifest, Plan, Problems, Reach};
use crate::snapshot::{Status, World};

/// How long a start waits for the API server before it goes on with what it has.
const MOMENT: Duration = Duration::from_secs(1);
/// How long old may take to answer when the update is deleted.
const PATIENCE: Duration = Duration::from_secs(2);

/// The updates of a namespace, and what was made of them.
pub struct Cluster {
    watch: Watch,
    /// By which the addresses behind Services are watched, if they are.
    behind: Option<Behind>,
    notices: Notices,
    reporter: Option<Reporter>,
    own: Vec<String>,
    reach: Reach,
    view: View,
    /// Whether the view holds what the API server does.
    listed: bool,
    lost: Option<Instant>,
    /// Whether an update is for this deployment.
    ruled: bool,
    conflicts: Vec<Conflict>,
    refused: Option<(Identity, Problems)>,
}

/// Where decisions go, and what is in force by them.
struct Follower {
    cluster: Cluster,
    news: mpsc::Sender<News>,
    world: Arc<World>,
    status: Arc<Status>,
    /// Tells of every snapshot.
    changes: watch::Receiver<()>,
    /// The question to old, after the update whose plan is in force has gone.
    asking: Option<Pin<Box<dyn Future<Output = bool> + Send>>>,
    /// An update that has gone while its plan stays in force, and why that is so.
    epilogue: Option<(Identity, String)>,
}

impl Cluster {
    /// Reads how to reach the API server.
    ///
    /// # Errors
    /// When nothing says how.
    pub async fn open(settings: &ClusterSource) -> Result<Self, Error> {
        let connection = Connection::open(settings.namespace.as_deref()).await?;
        let (notices, reporter) = Reporter::new(&connection);
        Ok(Self {
            watch: Watch::new(&connection),
            behind: settings
                .endpoints
                .then(|| Behind::new(connection.clone(), &settings.domain)),
            notices,
            reporter: Some(reporter),
            own: settings.deployments.clone(),
            reach: Reach {
                namespace: connection.namespace().to_owned(),
                domain: settings.domain.clone(),
                anywhere: settings.any_target,
            },
            view: View::default(),
            listed: false,
            lost: None,
            ruled: false,
            conflicts: Vec::new(),
            refused: None,
        })
    }

    /// The plan to begin with, if there is one and the API server tells it within a moment.
    pub async fn first(&mut self) -> Option<(Wanted, Arc<str>)> {
        match tokio::time::timeout(MOMENT, self.watch.next()).await {
            Ok(seen) => {
                self.see(seen);
            }
            Err(_) => self.lose("it has not answered yet", Instant::now()),
        }
        let ruler = self.view.judge(&self.own, &self.reach).ruler?;
        let (manifest, plan) = ruler.plan.ok()?;
        Some((wanted(manifest, plan), source(&ruler.identity)))
    }

    /// The plan that was kept over a restart, if its update is still one to follow.
    #[must_use]
    pub fn kept(&self, state: &State) -> Option<(Wanted, Arc<str>)> {
        let update = state.update()?;
        let is_own = view::is_own(&update, &self.own);
        if !is_own || update.identity.namespace.as_ref() != Some(&self.reach.namespace) {
            tracing::warn!("the plan that was kept is of another deployment and is not used");
            return None;
        }
        match update.plan(&self.reach) {
            Ok((manifest, plan)) => Some((
                wanted(manifest, plan),
                state.file().display().to_string().into(),
            )),
            Err(problems) => {
                tracing::error!(%problems, "the plan that was kept cannot be used");
                None
            }
        }
    }

    /// Tells the writer of snapshots what the cluster wants, and people what they should know, for as long as it is
    /// polled.
    pub async fn follow(
        mut self,
        news: mpsc::Sender<News>,
        world: Arc<World>,
        status: Arc<Status>,
    ) {
        let reporter = self.reporter.take();
        let listed = self.listed;
        tracing::info!(
            namespace = %self.reach.namespace,
            deployment = %self.own.join(","),
            "follows the updates of the namespace whose sourceDeployment is this deployment"
        );
        let mut changes = world.changes();
        changes.mark_changed();
        let mut follower = Follower {
            cluster: self,
            news,
            world,
            status,
            changes,
            asking: None,
            epilogue: None,
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

    /// Folds in what was seen. True if the updates may have changed.
    fn see(&mut self, seen: Seen) -> bool {
        match seen {
            Seen::Lost { cause, heard } => {
                self.lose(&cause, heard.into_std());
                return false;
            }
            Seen::Found => {
                self.find();
                return false;
            }
            Seen::All(all) => {
                self.view.replace(all);
                self.listed = true;
            }
            Seen::Is(update) => self.view.set(update),
            Seen::Gone(name) => self.view.remove(&name),
        }
        self.find();
        self.listed
    }

    fn find(&mut self) {
        if let Some(since) = self.lost.take() {
            let seconds = since.elapsed().as_secs_f64();
            tracing::info!(seconds, "the API server answers again");
        }
    }

    fn lose(&mut self, cause: &str, heard: Instant) {
        tracing::warn!(
            cause,
            "the API server is out of reach; the last good plan stays in force"
        );
        self.lost.get_or_insert(heard);
    }
}

impl Follower {
    async fn step(&mut self) {
        let answered = async {
            match &mut self.asking {
                Some(asking) => asking.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            seen = self.cluster.watch.next() => {
                let heard = Instant::now();
                let changed = self.cluster.see(seen);
                self.show();
                if changed {
                    self.decide(heard).await;
                }
            }
            answers = answered => {
                self.asking = None;
                self.part(answers).await;
            }
            Ok(()) = self.changes.changed() => {
                // Whoever caused it: a plan that was kept, and one whose certificates have come, are followed as well.
                if let Some(behind) = &mut self.cluster.behind {
                    let targets = self.world.load().plan.new.clone();
                    behind.follow(&targets, &self.news).await;
                }
                self.show();
            }
        }
    }

    /// What follows from the updates as they are.
    async fn decide(&mut self, heard: Instant) {
        let judged = self
            .cluster
            .view
            .judge(&self.cluster.own, &self.cluster.reach);
        self.contest(judged.conflicts);
        self.cluster.ruled = judged.ruler.is_some();
        let good = match judged.ruler {
            Some(Ruler {
                identity,
                plan: Ok((manifest, plan)),
            }) => self.want(identity, manifest, plan, heard).await,
            Some(Ruler {
                identity,
                plan: Err(problems),
            }) => {
                self.refuse(identity, problems).await;
                false
            }
            None => {
                self.withdraw().await;
                false
            }
        };
        match good {
            true => self.asking = None,
            false => self.ask_if_gone(),
        }
        self.show();
    }

    /// The update whose plan is in force.
    fn in_force(&self) -> Option<Identity> {
        let snapshot = self.world.load();
        let identity = snapshot.manifest.as_ref()?.identity.clone();
        identity.uid.is_some().then_some(identity)
    }

    /// Has a plan put in force. False if it cannot be.
    async fn want(
        &mut self,
        identity: Identity,
        manifest: Manifest,
        plan: Plan,
        heard: Instant,
    ) -> bool {
        let (done, outcome) = oneshot::channel();
        let news = News::Plan {
            wanted: wanted(manifest, plan),
            source: source(&identity),
            heard,
            done: Some(done),
        };
        // Who does not hear it any more is about to end.
        let _ = self.news.send(news).await;
        match outcome.await {
            Ok(Err(problems)) => {
                self.say_invalid(identity, problems);
                false
            }
            _ => {
                self.cluster.refused = None;
                true
            }
        }
    }

    /// Has it told that the update cannot be used.
    async fn refuse(&mut self, identity: Identity, problems: Problems) {
        let refused = (identity, problems);
        if self.cluster.refused.as_ref() == Some(&refused) {
            return;
        }
        let (identity, problems) = refused;
        let news = News::Rejected {
            problems: problems.clone(),
            source: source(&identity),
        };
        let _ = self.news.send(news).await;
        self.say_invalid(identity, problems);
    }

    /// There is no update: what was refused is no matter any more.
    async fn withdraw(&mut self) {
        if self.cluster.refused.take().is_some() {
            let _ = self.news.send(News::Withdrawn).await;
        }
    }

    fn say_invalid(&mut self, identity: Identity, problems: Problems) {
        let refused = (identity, problems);
        if self.cluster.refused.as_ref() == Some(&refused) {
            return;
        }
        let note = format!("{}\nThe last good plan stays in force.", refused.1);
        self.tell(&refused.0, "Invalid", note, true);
        self.cluster.refused = Some(refused);
    }

    fn contest(&mut self, conflicts: Vec<Conflict>) {
        if self.cluster.conflicts == conflicts {
            return;
        }
        for conflict in conflicts
            .iter()
            .filter(|new| !self.cluster.conflicts.contains(new))
        {
            let told = conflict.told();
            tracing::warn!("{told}");
            self.cluster.notices.tell(Notice {
                about: conflict.loser.clone(),
                reason: "Conflict",
                note: told,
                warning: true,
                // The same edit may lose against one and then against another.
                occasion: xxh3_64(conflict.ruler.as_bytes()),
            });
        }
        self.cluster.conflicts = conflicts;
    }

    /// Asks old, once, whether it can take all requests, if the update whose plan is in force has gone: deleted, or edited to be
    /// another deployment's. That the next one is bad makes no difference.
    fn ask_if_gone(&mut self) {
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
        let snapshot = self.world.load();
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
    async fn part(&mut self, answers: bool) {
        let Some(identity) = self.in_force() else {
            return;
        };
        let name = identity.name.clone().unwrap_or_default();
        let gone = match self.cluster.view.has(&identity) {
            true => format!("update '{name}' no longer names this deployment"),
            false => format!("update '{name}' was deleted"),
        };
        if answers {
            let note = format!("{gone}; old answers and gets all requests");
            tracing::info!("{note}");
            self.tell(&identity, "DeletedAllToOld", note, false);
            let source = format!("no update (was {name})").into();
            let _ = self.news.send(News::AllOld { source }).await;
        } else {
            let note = format!("{gone}, but old does not answer: new keeps its share");
            tracing::warn!("{note}");
            self.tell(&identity, "DeletedNewKept", note.clone(), true);
            self.epilogue = Some((identity, note));
            self.show();
        }
    }

    fn tell(&self, about: &Identity, reason: &'static str, note: String, warning: bool) {
        self.cluster.notices.tell(Notice {
            about: about.clone(),
            reason,
            note,
            warning,
            occasion: 0,
        });
    }

    /// Shows people how it stands with the source of plans.
    fn show(&self) {
        let cluster = &self.cluster;
        self.status.lost_since.store(Arc::new(cluster.lost));
        let in_force = self.in_force();
        let epilogue = self.epilogue.iter();
        let epilogue = epilogue.filter(|(of, _)| in_force.as_ref() == Some(of));
        let nobody = (cluster.listed && !cluster.ruled).then(|| {
            let (namespace, own) = (&cluster.reach.namespace, cluster.own.join("' or '"));
            format!("no update of namespace '{namespace}' names '{own}' in spec.sourceDeployment")
        });
        let remarks = epilogue.map(|(_, note)| note.clone());
        let remarks = remarks.chain(cluster.conflicts.iter().map(Conflict::told));
        let remarks = remarks.chain(nobody).collect();
        self.status.remarks.store(Arc::new(remarks));
        self.status
            .conflicts
            .store(cluster.conflicts.len(), Ordering::Relaxed);
    }
}

fn wanted(manifest: Manifest, plan: Plan) -> Wanted {
    Wanted {
        plan: Arc::new(plan),
        manifest: Some(Arc::new(manifest)),
    }
}

/// Where a plan comes from, for people.
fn source(identity: &Identity) -> Arc<str> {
    identity.source().into()
}
