//! The plan of a cluster: the update of one's own deployment, followed as it is edited, contested and deleted.
//!
//! It tells the one writer of snapshots what to put in force, and people what it cannot: in the log, by Events, and on
//! the page `/plan`. Must not put anything in force itself.

mod behind;
mod view;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use self::behind::Behind;
use self::view::{Conflict, View};
use super::probe;
use super::publisher::{News, Wanted};
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
    conflicts: Vec<Conflict>,
    refused: Option<(Identity, Problems)>,
}

/// Where decisions go, and what is in force by them.
struct Follower {
    cluster: Cluster,
    news: mpsc::Sender<News>,
    world: Arc<World>,
    status: Arc<Status>,
    /// The update whose plan is in force.
    in_force: Option<Identity>,
    /// The question to old, after the update was deleted.
    asking: Option<Pin<Box<dyn Future<Output = bool> + Send>>>,
    /// What became of an update that is gone.
    epilogue: Option<String>,
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

    /// Tells the writer of snapshots what the cluster wants, and people what they should know, for as long as it is
    /// polled.
    pub async fn follow(
        mut self,
        news: mpsc::Sender<News>,
        world: Arc<World>,
        status: Arc<Status>,
    ) {
        let reporter = self.reporter.take();
        let manifest = world.load().manifest.clone();
        let listed = self.listed;
        let mut follower = Follower {
            cluster: self,
            news,
            world,
            status,
            in_force: manifest
                .map(|manifest| manifest.identity.clone())
                .filter(|identity| identity.uid.is_some()),
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
        }
    }

    /// What follows from the updates as they are.
    async fn decide(&mut self, heard: Instant) {
        let judged = self
            .cluster
            .view
            .judge(&self.cluster.own, &self.cluster.reach);
        self.contest(judged.conflicts);
        let Some(ruler) = judged.ruler else {
            if self.cluster.refused.take().is_some() {
                self.status.rejection.store(Arc::default());
            }
            if self.in_force.is_some() && self.asking.is_none() {
                self.ask();
            }
            return;
        };
        self.asking = None;
        match ruler.plan {
            Ok((manifest, plan)) => self.want(ruler.identity, manifest, plan, heard).await,
            Err(problems) => self.refuse(ruler.identity, problems).await,
        }
    }

    /// Has a plan put in force.
    async fn want(&mut self, identity: Identity, manifest: Manifest, plan: Plan, heard: Instant) {
        let (done, outcome) = oneshot::channel();
        let targets = plan.new.clone();
        let news = News::Plan {
            wanted: wanted(manifest, plan),
            source: source(&identity),
            heard,
            done: Some(done),
        };
        if self.news.send(news).await.is_err() {
            return;
        }
        match outcome.await {
            Ok(Err(problems)) => self.say_invalid(identity, problems),
            _ => {
                if let Some(behind) = &mut self.cluster.behind {
                    behind.follow(&targets, &self.news).await;
                }
                self.in_force = Some(identity);
                self.cluster.refused = None;
                self.epilogue = None;
                self.show();
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

    fn say_invalid(&mut self, identity: Identity, problems: Problems) {
        let note = format!("{problems}\nThe last good plan stays in force.");
        self.tell(&identity, "Invalid", note, true);
        self.cluster.refused = Some((identity, problems));
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
            self.tell(&conflict.loser, "Conflict", told, true);
        }
        self.cluster.conflicts = conflicts;
        self.show();
    }

    /// Asks old, once, whether it can take all requests.
    fn ask(&mut self) {
        let snapshot = self.world.load();
        tracing::info!(update = %snapshot.source, "the update is gone; asking old whether it can serve");
        self.asking = Some(Box::pin(async move {
            // Where old is this very process it needs no asking.
            let Some(old) = &snapshot.old else {
                return true;
            };
            let asked = probe::any_serves(old, &snapshot.plan.probe);
            tokio::time::timeout(PATIENCE, asked).await.unwrap_or(false)
        }));
    }

    /// The update is gone, and old has answered or not.
    async fn part(&mut self, answers: bool) {
        let Some(identity) = self.in_force.take() else {
            return;
        };
        let name = identity.name.clone().unwrap_or_default();
        if answers {
            let note = format!("update '{name}' was deleted; old answers and gets all requests");
            tracing::info!("{note}");
            self.tell(&identity, "DeletedAllToOld", note, false);
            if let Some(behind) = &mut self.cluster.behind {
                behind.follow(&[], &self.news).await;
            }
            let wanted = Wanted {
                plan: Arc::new(Plan::all_old()),
                manifest: None,
            };
            let news = News::Plan {
                wanted,
                source: format!("no update (was {name})").into(),
                heard: Instant::now(),
                done: None,
            };
            let _ = self.news.send(news).await;
        } else {
            let note = format!(
                "update '{name}' was deleted, but old does not answer: new keeps its share"
            );
            tracing::warn!("{note}");
            self.tell(&identity, "DeletedNewKept", note.clone(), true);
            self.epilogue = Some(note);
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
        self.status.lost_since.store(Arc::new(self.cluster.lost));
        let remarks = self.cluster.conflicts.iter().map(Conflict::told);
        let remarks = remarks.chain(self.epilogue.clone()).collect();
        self.status.remarks.store(Arc::new(remarks));
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
