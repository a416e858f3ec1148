//! `safeToDeleteOld` stays false after edits, while pods are misleading, and while components hang.

use kube::api::{ApiResource, Patch, PatchParams};
use serde_json::{Value, json};

use super::fixture::{Fixture, pods, resource, updates};
use super::safe_to_delete::{is_safe, lacks, lead_clients_to, safe, services, slice, slices};
use crate::rig::*;

const GRAPH: &str = "nvidia.com/dynamo-graph-deployment-name";
const COMPONENT: &str = "nvidia.com/dynamo-component-type";

/// Whether neither flag is set for the current generation.
fn is_unsafe(object: &Value) -> bool {
    let status = &object["status"];
    status["safeToDeleteOld"] != true
        && status["lastOldWorkerDispensable"] != true
        && status["observedGeneration"] == object["metadata"]["generation"]
}

/// Whether a flag is set for the current generation.
fn has_flag(object: &Value) -> bool {
    let status = &object["status"];
    (status["safeToDeleteOld"] == true || status["lastOldWorkerDispensable"] == true)
        && status["observedGeneration"] == object["metadata"]["generation"]
}

/// Asserts that no flag is set for the current generation while the controller reconciles the update again.
async fn assert_no_flag(fixture: &Fixture) {
    for _ in 0..40 {
        let object = fixture.get("up").await;
        assert!(!has_flag(&object), "{object}");
        // Must hold for eight seconds.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn after_an_edit_old_is_not_safe_to_delete_until_it_is_proven_again() {
    let (fixture, _controller) = safe().await;
    let before = fixture.get("up").await["spec"].clone();
    let nobody = format!("http://{}", Upstream::nobody());
    let both = format!("{},{}", fixture.new.url(), fixture.old.url());
    for edit in [
        // New that does not respond, new that includes old, and old without an owner.
        json!({"newFrontendService": nobody}),
        json!({"newFrontendService": both}),
        json!({"clientService": "no-such-service"}),
        json!({"clientService": null}),
        // The last case, because it makes the controller forget the size of old.
        json!({"sourceDeployment": "nobody"}),
    ] {
        let description = edit.to_string();
        fixture.edit("up", edit.clone()).await;
        let is_safe_to_delete = |object: &Value| {
            object["status"]["safeToDeleteOld"] == true
                && object["status"]["observedGeneration"] == object["metadata"]["generation"]
        };
        let mut observed = 0;
        eventually("it is reconciled", async || {
            let object = fixture.get("up").await;
            assert!(!is_safe_to_delete(&object), "{description}: {object}");
            let is_seen =
                object["status"]["observedGeneration"] == object["metadata"]["generation"];
            observed += u32::from(is_seen);
            observed > 20
        })
        .await;
        if description.contains("sourceDeployment") {
            return;
        }
        let mut back = json!({});
        for field in edit.as_object().unwrap().keys() {
            back[field] = before[field].clone();
        }
        fixture.edit("up", back).await;
        fixture.until("up", "safe again", is_safe).await;
    }
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_valid_or_invalid_successor_controls() {
    let (fixture, _controller) = safe().await;
    fixture
        .update(
            "up-2",
            json!({"clientService": "clients", "paused": true, "supersedes": "up"}),
        )
        .await;
    fixture.until("up", "superseded", is_unsafe).await;
    let answer = client::post(fixture.proxies[0].address, CHAT, &[], STREAMING).await;
    assert_eq!(answer.status, 200);
    fixture.delete(&updates(), "up-2").await;
    fixture.until("up", "safe again", is_safe).await;
    let same = json!({"selector": {"app": "any"}});
    let bad = json!({"supersedes": "up", "workers": {"old": same.clone(), "new": same}});
    fixture.update("up-3", bad).await;
    fixture
        .until("up-3", "refused", |object| {
            object["status"]["phase"] == "Degraded"
        })
        .await;
    // Either the successor does not control, or no flag is set.
    for _ in 0..40 {
        if has_flag(&fixture.get("up").await) {
            let answer = client::post(fixture.proxies[0].address, CHAT, &[], STREAMING).await;
            assert_eq!(answer.generation(), "new");
        }
        // Must hold for four seconds.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    fixture.delete(&updates(), "up-3").await;
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_its_proxy_or_new_hangs() {
    let (fixture, _controller) = safe().await;
    fixture.proxies[0].signal(libc::SIGSTOP);
    fixture.until("up", "its proxy hangs", is_unsafe).await;
    fixture.proxies[0].signal(libc::SIGCONT);
    fixture.until("up", "safe again", is_safe).await;
    fixture
        .new_serves
        .store(false, std::sync::atomic::Ordering::Relaxed);
    fixture.until("up", "new serves nothing", is_unsafe).await;
    fixture
        .new_serves
        .store(true, std::sync::atomic::Ordering::Relaxed);
    fixture.until("up", "safe once more", is_safe).await;
    // New loses its workers, and then its frontend.
    for i in 0..4 {
        fixture.pod_ready(&format!("new-worker-{i}"), false).await;
    }
    fixture.until("up", "new has no worker", is_unsafe).await;
    for i in 0..4 {
        fixture.pod_ready(&format!("new-worker-{i}"), true).await;
    }
    fixture.until("up", "safe a third time", is_safe).await;
    fixture.delete(&pods(), "new-frontend-0").await;
    fixture
        .until("up", "new has no frontend", |object| {
            object["status"]["safeToDeleteOld"] == false
        })
        .await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_pod_of_it_has_two_proxies_or_another_owner() {
    let (mut fixture, _controller) = safe().await;
    // Two containers may have a port with the same name, and only one of them can be queried.
    let admin = fixture.proxies[0].admin.port();
    let labels = json!({GRAPH: "old", COMPONENT: "frontend"});
    let containers = json!([
        {"name": "one", "image": "any", "ports": [
            {"name": "crossfade", "containerPort": admin}, {"name": "frontend", "containerPort": 8000},
        ]},
        {"name": "two", "image": "any", "ports": [{"name": "crossfade", "containerPort": 9}]},
    ]);
    let pod = json!({
        "metadata": {"labels": labels}, "spec": {"automountServiceAccountToken": false, "containers": containers},
    });
    fixture.create(&pods(), "old-frontend-twice", pod).await;
    fixture.pod_ready("old-frontend-twice", true).await;
    fixture.until("up", "two proxies", is_unsafe).await;
    fixture.delete(&pods(), "old-frontend-twice").await;
    fixture.until("up", "safe again", is_safe).await;

    // The labels of a pod are edited. Its StatefulSet is deleted together with old.
    let own = json!({"app": "web"});
    let template = json!({
        "metadata": {"labels": {"app": "web", GRAPH: "old", COMPONENT: "frontend"}},
        "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    let spec =
        json!({"serviceName": "web", "selector": {"matchLabels": own}, "template": template});
    let sets = resource("apps", "v1", "StatefulSet", "statefulsets");
    fixture.create(&sets, "web", json!({"spec": spec})).await;
    fixture.proxy("up").await;
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "1", "controller": true,
    });
    let metadata = json!({
        "labels": {"app": "web", GRAPH: null, COMPONENT: "edge"}, "ownerReferences": [owner],
    });
    let patch = Patch::Merge(json!({"metadata": metadata}));
    let (params, api) = (PatchParams::default(), fixture.api(&pods()));
    api.patch("old-frontend-1", &params, &patch).await.unwrap();
    let mut client = Client::connect(fixture.proxies[1].address).await;
    client.post(CHAT, &[("x-ends", "300000")], STREAMING).await;
    client.head().await;
    client.until("\n\n").await;
    let streams = lacks(true, "streams run through the pods of old's frontends");
    fixture.until("up", "a stream", streams).await;
    drop(client);
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_new_would_be_deleted_with_it() {
    let (fixture, _controller) = safe().await;
    let owner = |name: &str, uid: &str| {
        json!([{
            "apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": uid, "blockOwnerDeletion": false,
        }])
    };
    let template = json!({
        "metadata": {"labels": {"app": "new"}},
        "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    let spec = json!({"selector": {"matchLabels": {"app": "new"}}, "template": template});
    let deployments = resource("apps", "v1", "Deployment", "deployments");
    let owned = json!({"metadata": {"ownerReferences": owner("old", "1")}, "spec": spec});
    fixture.create(&deployments, "new", owned).await;
    let goes = lacks(true, "Deployment new, which is deleted together with old");
    fixture.until("up", "it goes with old", goes).await;
    // A part of another deployment whose name starts with that of old.
    let other = json!({"app": "other"});
    let template = json!({
        "metadata": {"labels": other}, "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    let other =
        json!({"spec": {"replicas": 0, "selector": {"matchLabels": other}, "template": template}});
    let uid = fixture.create(&deployments, "old-2", other).await;
    let owned = json!({"metadata": {"ownerReferences": owner("old-2", &uid)}, "spec": spec});
    fixture.replace(&deployments, "new", owned).await;
    fixture.until("up", "safe again", is_safe).await;
    let metadata = json!({"metadata": {"ownerReferences": owner("old", "1")}});
    let (params, api) = (PatchParams::default(), fixture.api(&pods()));
    api.patch("new-frontend-0", &params, &Patch::Merge(metadata))
        .await
        .unwrap();
    let goes = lacks(
        true,
        "pod new-frontend-0, which is deleted together with old",
    );
    fixture.until("up", "a pod goes with old", goes).await;
}

/// A reference to an owner, as a controller sets it.
fn owner(kind: &ApiResource, name: &str, uid: &str) -> Value {
    json!([{
        "apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": uid, "controller": true,
    }])
}

/// The spec of a Deployment, ReplicaSet or StatefulSet without pods.
fn without_pods(labels: &Value) -> Value {
    json!({
        "replicas": 0, "selector": {"matchLabels": labels}, "serviceName": "any",
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "any"}]}},
    })
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_it_owns_what_clients_or_new_need() {
    let (fixture, _controller) = safe().await;
    let apps = |kind, plural| resource("apps", "v1", kind, plural);
    let deployments = apps("Deployment", "deployments");
    let (replica_sets, sets) = (
        apps("ReplicaSet", "replicasets"),
        apps("StatefulSet", "statefulsets"),
    );
    let claims = resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims");
    let ingresses = resource("networking.k8s.io", "v1", "Ingress", "ingresses");
    let of_dynamo = |kind, plural| resource("nvidia.com", "v1alpha1", kind, plural);
    let graphs = of_dynamo("DynamoGraphDeployment", "dynamographdeployments");
    let parts = of_dynamo("DynamoComponentDeployment", "dynamocomponentdeployments");

    // Old is two plain Deployments of any name, of which the second has no pods any more. No object has the name in their label.
    let of_old = |component| json!({GRAPH: "old", COMPONENT: component, "app": component});
    let frontend = json!({"spec": without_pods(&of_old("frontend"))});
    let frontend = fixture.create(&deployments, "web", frontend).await;
    let worker = json!({"spec": without_pods(&of_old("worker"))});
    let worker = fixture.create(&deployments, "models", worker).await;
    let owned = |metadata: Value, spec: Value| json!({"metadata": {"ownerReferences": metadata}, "spec": spec});
    let owners = owner(&deployments, "web", &frontend);
    let made = owned(owners.clone(), without_pods(&json!({"app": "web"})));
    let made = fixture.create(&replica_sets, "web-7d9", made).await;
    let of_pod = json!({"metadata": {"ownerReferences": owner(&replica_sets, "web-7d9", &made)}});
    let (params, api) = (PatchParams::default(), fixture.api(&pods()));
    let patch = Patch::Merge(of_pod);
    api.patch("old-frontend-0", &params, &patch).await.unwrap();
    // What is indirectly a part of old, and what is not.
    let part = owned(owner(&graphs, "old", "9"), json!({}));
    let part = fixture.create(&parts, "old-worker", part).await;
    let cache = owned(
        owner(&deployments, "models", &worker),
        without_pods(&json!({"app": "cache"})),
    );
    let cache = fixture.create(&sets, "cache", cache).await;
    let other = json!({"spec": without_pods(&json!({"app": "other"}))});
    let other = fixture.create(&deployments, "other", other).await;

    let by_app = json!({"clusterIP": "None", "selector": {"app": "new"}});
    let mounts = |claim: &str| {
        json!({
            "metadata": {"labels": {GRAPH: "new"}},
            "spec": {
                "automountServiceAccountToken": false, "containers": [{"name": "main", "image": "any"}],
                "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": claim}}],
            },
        })
    };
    fixture
        .create(&pods(), "loads-for-new", mounts("shared"))
        .await;
    let claim =
        json!({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}});
    let backend = json!({"service": {"name": "clients", "port": {"number": 80}}});
    let ingress = json!({"defaultBackend": backend});
    let mut of_clients = slice("new-frontend-0");
    of_clients["metadata"]["ownerReferences"] = owner(&graphs, "old", "9");
    let (replaces, adds) = (true, false);
    let cases = [
        (
            replaces,
            services(),
            "clients",
            owned(owners.clone(), by_app.clone()),
            "Service clients, which",
        ),
        // It would adopt the pod of new, which has no owner.
        (
            adds,
            deployments.clone(),
            "any",
            owned(owners.clone(), without_pods(&json!({GRAPH: "new"}))),
            "Deployment any, which",
        ),
        (
            adds,
            deployments.clone(),
            "any-worker",
            owned(
                owner(&graphs, "old", "9"),
                without_pods(&json!({GRAPH: "new", COMPONENT: "worker"})),
            ),
            "Deployment any-worker, which",
        ),
        (
            adds,
            claims.clone(),
            "shared",
            owned(owners.clone(), claim.clone()),
            "PersistentVolumeClaim shared, which",
        ),
        (
            adds,
            claims.clone(),
            "shared",
            owned(owner(&parts, "old-worker", &part), claim.clone()),
            "PersistentVolumeClaim shared, which",
        ),
        (
            adds,
            claims.clone(),
            "shared",
            owned(owner(&sets, "cache", &cache), claim.clone()),
            "PersistentVolumeClaim shared, which",
        ),
        // Kubernetes deletes it soon.
        (
            adds,
            claims.clone(),
            "shared",
            owned(owner(&parts, "old-frontend", "9"), claim.clone()),
            "shared, whose owner DynamoComponentDeployment old-frontend does not exist",
        ),
        (
            adds,
            ingresses.clone(),
            "public",
            owned(owner(&graphs, "old", "9"), ingress.clone()),
            "Ingress public, which",
        ),
        (
            adds,
            slices(),
            "clients-2",
            of_clients,
            "EndpointSlice clients-2, which",
        ),
        (
            replaces,
            services(),
            "clients",
            owned(
                owner(
                    &resource("example.com", "v1", "Bundle", "bundles"),
                    "any",
                    "7",
                ),
                by_app.clone(),
            ),
            "Service clients, whose owner Bundle any is of a kind that the controller does not read",
        ),
        (
            adds,
            claims.clone(),
            "shared",
            owned(owner(&deployments, "other", &other), claim),
            "",
        ),
    ];
    fixture.until("up", "safe as before", is_safe).await;
    for (replaces, kind, name, object, reason) in cases {
        if replaces {
            fixture.delete(&kind, name).await;
        }
        fixture.create(&kind, name, object).await;
        match reason {
            "" => assert_stays_safe(&fixture).await,
            reason => _ = fixture.until("up", reason, lacks(true, reason)).await,
        }
        if kind.kind == claims.kind {
            // The API server protects claims with a finalizer.
            let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            let api = fixture.api(&kind);
            api.patch(name, &params, &patch).await.unwrap();
        }
        fixture.delete(&kind, name).await;
        if replaces {
            fixture.create(&kind, name, json!({"spec": by_app})).await;
        }
        fixture.until("up", "safe again", is_safe).await;
    }
}

/// Asserts that old is safe to delete in each status for a while.
async fn assert_stays_safe(fixture: &Fixture) {
    let before = fixture.get("up").await["status"]["observedAt"].clone();
    let is_renewed = |object: &Value| {
        assert!(is_safe(object), "{object}");
        object["status"]["observedAt"] != before
    };
    fixture.until("up", "still safe", is_renewed).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_new_uses_the_workers_of_old() {
    let workers = |namespaces: &[(&str, u32)]| {
        let of = |(name, workers): &(&str, u32)| {
            let types = json!({"aggregated": {"workers": workers, "needs": []}});
            (
                (*name).to_owned(),
                json!({"ready": true, "worker_types": types}),
            )
        };
        let namespaces: serde_json::Map<String, Value> = namespaces.iter().map(of).collect();
        json!({"model": "tiny", "ready": true, "namespaces": namespaces}).to_string()
    };
    let of_new = std::sync::Arc::new(std::sync::Mutex::new(workers(&[("b", 4)])));
    let frontend = |page: std::sync::Arc<std::sync::Mutex<String>>| {
        Upstream::start(move |received| match received.target.as_str() {
            MODELS => models(&["tiny"]),
            "/v1/models/tiny/ready" => Script::new().json(200, &page.lock().unwrap()),
            CHAT => chat_stream("any"),
            _ => status(503),
        })
    };
    let mut fixture = Fixture::start().await;
    let of_old = std::sync::Arc::new(std::sync::Mutex::new(workers(&[("a", 4)])));
    fixture.old = frontend(std::sync::Arc::clone(&of_old)).await;
    fixture.new = frontend(std::sync::Arc::clone(&of_new)).await;
    fixture
        .begin(json!({"clientService": "clients", "drainOld": true}))
        .await;
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    let _controller = fixture.controller(&[]).await;
    // Old has all its workers and needs none.
    fixture.until("up", "safe", is_safe).await;
    *of_new.lock().unwrap() = workers(&[("a", 4), ("b", 4)]);
    let shares = lacks(false, "list workers of the same Dynamo namespace");
    fixture.until("up", "new knows old's workers", shares).await;
    assert_no_flag(&fixture).await;
    // Its frontend is no longer queried, but its workers are still there.
    fixture.pod_ready("old-frontend-0", false).await;
    assert_no_flag(&fixture).await;
    fixture.pod_ready("old-frontend-0", true).await;
    // The last worker of old has terminated.
    *of_new.lock().unwrap() = workers(&[("a", 0), ("b", 4)]);
    fixture.until("up", "safe again", is_safe).await;
}

/// A fixture with `count` frontends of new, at addresses of this machine.
async fn many(count: u32) -> (Fixture, Upstream) {
    let all = Upstream::listen("0.0.0.0:0", None, |received| {
        match received.target.as_str() {
            MODELS => models(&["tiny"]),
            "/v1/models/tiny/ready" => Script::new().json(200, "{}"),
            CHAT => chat_stream("new"),
            _ => status(503),
        }
    })
    .await;
    let port = all.address.port();
    let targets: Vec<String> = (1..=count).map(|i| format!("127.0.0.{i}:{port}")).collect();
    let spec = json!({"clientService": "clients", "newFrontendService": targets.join(",")});
    let fixture = Fixture::with_update(spec).await;
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    (fixture, all)
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_new_has_more_frontends_than_can_be_queried() {
    let (fixture, all) = many(129).await;
    let _controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 1, 1).await;
    fixture.delete_old_workers().await;
    let unasked = lacks(false, "not every frontend of new is known to serve");
    fixture.until("up", "one is not asked", unasked).await;
    assert_no_flag(&fixture).await;
    let port = all.address.port();
    let targets: Vec<String> = (1..=128).map(|i| format!("127.0.0.{i}:{port}")).collect();
    fixture
        .edit("up", json!({"newFrontendService": targets.join(",")}))
        .await;
    fixture.until("up", "safe", is_safe).await;
}
