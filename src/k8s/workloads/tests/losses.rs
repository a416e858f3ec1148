//! No matter what is counted, detecting the loss of the last worker needs no list that was not made before.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;

use super::super::*;
use crate::k8s::Scope;

type Watch = mpsc::UnboundedSender<Result<Frame<Bytes>, Infallible>>;

/// The name of an optional API group, its version and its plural.
type Group = (&'static str, &'static str, &'static str);

const GROVE: Group = ("grove.io", "v1alpha1", "podcliques");
const GROUPS: [Group; 4] = [
    ("nvidia.com", "v1alpha1", "dynamographdeployments"),
    GROVE,
    ("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"),
    ("workload.serving.volcano.sh", "v1alpha1", "modelservings"),
];

/// An API server with these optional groups and objects, which remembers what is listed.
struct ApiServer {
    groups: &'static [Group],
    objects: BTreeMap<String, Vec<Json>>,
    watches: Vec<(String, Watch)>,
    listed: BTreeSet<String>,
}

impl ApiServer {
    fn with(groups: &'static [Group]) -> Self {
        Self {
            groups,
            objects: BTreeMap::new(),
            watches: Vec::new(),
            listed: BTreeSet::new(),
        }
    }

    fn client(server: &Arc<Mutex<Self>>) -> Client {
        let server = Arc::clone(server);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (sender, mut receiver) = mpsc::unbounded_channel();
            let path = request.uri().path();
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=");
            let mut server = server.lock().unwrap();
            match is_watch {
                true => server.watches.push((path.to_owned(), sender)),
                false => {
                    let text = server.answer(path).to_string();
                    let _ = sender.send(Ok(Frame::data(text.into())));
                }
            }
            let body = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
            let answer = Response::new(StreamBody::new(body));
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        Client::new(service, "default")
    }

    fn answer(&mut self, path: &str) -> Json {
        let groups = self.groups;
        let versions = groups.iter().map(|(group, version, _)| {
            let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
            json!({"name": group, "versions": [version]})
        });
        let parts: Vec<&str> = path.split('/').collect();
        match parts[..] {
            ["", "readyz"] => json!("ok"),
            ["", "apis"] => json!({"kind": "APIGroupList", "groups": versions.collect::<Json>()}),
            ["", "apis", group, version] => {
                let named = groups.iter().filter(|(other, ..)| *other == group);
                let named = named.map(|(_, _, plural)| {
                    json!({"name": plural, "singularName": "", "namespaced": true, "kind": "", "verbs": []})
                });
                json!({"groupVersion": format!("{group}/{version}"), "resources": named.collect::<Json>()})
            }
            [.., plural] => {
                self.listed.insert(plural.to_owned());
                let items = self.objects.get(plural).cloned().unwrap_or_default();
                json!({"metadata": {"resourceVersion": "1"}, "items": items})
            }
            [] => panic!("{path}"),
        }
    }

    /// Deletes all objects.
    fn delete_all(&mut self) {
        for (path, watch) in &self.watches {
            let plural = path.rsplit('/').next().unwrap();
            for object in self.objects.get(plural).into_iter().flatten() {
                let mut text = json!({"type": "DELETED", "object": object}).to_string();
                text.push('\n');
                let _ = watch.send(Ok(Frame::data(text.into())));
            }
        }
    }
}

/// What a count finds, unless it takes long.
async fn counted(cache: &Cache, count: &dyn Fn(&Cache) -> Result<Counts, NotSynced>) -> Counts {
    let counting = async {
        loop {
            match count(cache) {
                Ok(counts) => return counts,
                Err(error) => assert!(matches!(error, NotSynced::NotYet(_)), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let counting = tokio::time::timeout(Duration::from_secs(60), counting);
    counting.await.expect("everything is listed")
}

#[tokio::test]
async fn the_loss_of_the_last_worker_needs_no_further_list_for_any_kind() {
    let labels = json!({
        GRAPH: "a", COMPONENT: "worker", WORKER_HASH: "r", "app": "a", "pod-template-hash": "r",
        "controller-revision-hash": "r", "grove.io/podcliquescalinggroup": "a-0-g",
        "grove.io/podcliquescalinggroup-replica-index": "0", "leaderworkerset.sigs.k8s.io/name": "a",
        "leaderworkerset.sigs.k8s.io/template-revision-hash": "r",
        "modelserving.volcano.sh/name": "a", "modelserving.volcano.sh/group-name": "a-0",
        "modelserving.volcano.sh/revision": "r",
    });
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let pod = json!({
        "metadata": {"name": "a-0", "namespace": "n", "labels": labels, "resourceVersion": "1"}, "status": ready,
    });
    let owner = json!({
        "metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "roles": [{"name": "r", "replicas": 1}]},
            "components": [{"name": "w", "type": "worker", "replicas": 1}],
        },
        "status": {
            "readyReplicas": 1, "availableReplicas": 1, "replicas": 1,
            "components": {"w": {"readyReplicas": 1}},
        },
    });
    let metadata = json!({
        "metadata": {"name": "a-0", "namespace": "n", "resourceVersion": "1"},
        "spec": {"data": {"endpoints": {"e": {"namespace": "a", "endpoint": "generate", "component": "backend"}}}},
    });
    let of_kind = |kind: &str| match kind {
        "Pod" => None,
        "DynamoWorkerMetadata" => Some(("dynamoworkermetadatas", metadata.clone())),
        _ => {
            let scaling = by_kind(kind).unwrap().scaling().unwrap();
            let plural = scaling.resource().plural;
            Some((Box::leak(plural.into_boxed_str()) as &str, owner.clone()))
        }
    };
    let which = |revision: Option<&str>, selector: &[(&str, &str)]| WorkerQuery {
        namespace: "n".to_owned(),
        name: "a".to_owned(),
        revision: revision.map(str::to_owned),
        selector: selector
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..WorkerQuery::default()
    };
    let mut cases: Vec<(Option<&str>, &str, WorkerQuery)> = Vec::new();
    for kind in ALL.map(Workload::kind) {
        cases.push((Some(kind), kind, which(None, &[])));
        if !matches!(
            kind,
            "DynamoWorkerMetadata" | "PodClique" | "PodCliqueScalingGroup"
        ) {
            cases.push((Some(kind), kind, which(Some("r"), &[])));
        }
    }
    cases.push((Some("Pod"), "Pod", which(None, &[("app", "a")])));
    // By the name alone: a Deployment, or a graph that someone then deletes.
    for kind in ["Pod", "Deployment", "DynamoGraphDeployment"] {
        cases.push((None, kind, which(None, &[])));
        cases.push((None, kind, which(Some("r"), &[])));
    }
    for (counted_as, kind, which) in cases {
        let case = format!(
            "{counted_as:?} {kind} {:?} {:?}",
            which.revision, which.selector
        );
        let mut server = ApiServer::with(&GROUPS);
        server.objects.insert("pods".to_owned(), vec![pod.clone()]);
        if let Some((plural, object)) = of_kind(kind) {
            server.objects.insert(plural.to_owned(), vec![object]);
        }
        let server = Arc::new(Mutex::new(server));
        let (cache, _changes) = Cache::with_client(ApiServer::client(&server), Scope::All);
        let count = |cache: &Cache| {
            begin(cache);
            match counted_as {
                Some(kind) => super::super::count(by_kind(kind).unwrap(), cache, &which),
                None => by_name(cache, &which),
            }
        };
        let ready = |counts: &Counts| counts.values().map(|workers| workers.ready).sum::<u32>();
        assert_eq!(ready(&counted(&cache, &count).await), 1, "{case}");
        // The kinds that were listed in advance.
        let is_begun = || {
            let mut optional = ["leaderworkersets", "podcliques", "modelservings"].into_iter();
            let server = server.lock().unwrap();
            server.watches.len() >= server.listed.len()
                && optional.all(|plural| server.listed.contains(plural))
        };
        let begun = async {
            while !is_begun() {
                let _ = count(&cache);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let begun = tokio::time::timeout(Duration::from_secs(60), begun).await;
        begun.unwrap_or_else(|_| panic!("{case}: {:?}", server.lock().unwrap().listed));
        let before = server.lock().unwrap().listed.clone();
        server.lock().unwrap().delete_all();
        let losing = async {
            loop {
                let counts = count(&cache);
                let counts = counts.unwrap_or_else(|error| panic!("{case}: {error}"));
                if ready(&counts) == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let lost = tokio::time::timeout(Duration::from_secs(60), losing).await;
        lost.unwrap_or_else(|_| panic!("{case}: the loss is not seen"));
        assert_eq!(server.lock().unwrap().listed, before, "{case}");
    }
}

#[tokio::test]
async fn kinds_that_are_not_installed_are_known_so_before_the_last_pod_is_gone_and_not_listed() {
    let server = Arc::new(Mutex::new(ApiServer::with(&[GROVE])));
    let (cache, _changes) = Cache::with_client(ApiServer::client(&server), Scope::All);
    for without_pods in [false, true] {
        let wanted = || {
            owners::begin(&cache);
            cache.serves(&object::leader_worker_sets())?;
            owners::wanted(&cache, "n", &|_| true, without_pods)
        };
        while wanted().is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(wanted(), Ok(BTreeMap::new()));
    }
    let listed = ["deployments", "podcliques", "statefulsets"].map(str::to_owned);
    assert_eq!(server.lock().unwrap().listed, listed.into());
}
