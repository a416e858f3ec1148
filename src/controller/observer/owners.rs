//! Follows `ownerReferences`: an object is deleted together with its owner.
//!
//! Only some kinds of owners are read. If an owner is of another kind or does not exist, it is unknown whether the object stays.
//! Contains no policy and does not depend on where the objects were listed.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DynamicObject;

use crate::k8s::Object;
use crate::k8s::workloads::{GRAPH, is_selected, labels, labels_at};

/// Where owners keep the labels of the pods that they create.
const TEMPLATES: [&str; 3] = [
    "/spec/template/metadata/labels",
    "/spec/leaderWorkerTemplate/leaderTemplate/metadata/labels",
    "/spec/leaderWorkerTemplate/workerTemplate/metadata/labels",
];

/// An object with its kind.
struct PossibleOwner {
    kind: &'static str,
    object: Object,
}

/// The objects of one namespace that may own others, of all kinds that are read.
#[derive(Default)]
pub(super) struct Owners {
    /// The API group and kind of each kind that is read.
    kinds: BTreeSet<(&'static str, &'static str)>,
    by_uid: HashMap<String, PossibleOwner>,
}

impl Owners {
    /// Adds all objects of a kind.
    pub fn add(&mut self, group: &'static str, kind: &'static str, objects: Vec<Object>) {
        self.kinds.insert((group, kind));
        for object in objects {
            if let Some(uid) = object.metadata.uid.clone() {
                self.by_uid.insert(uid, PossibleOwner { kind, object });
            }
        }
    }

    /// The objects that create the pods of a deployment, with their kinds: those called `name`, those that have its graph label,
    /// also in a pod template, and those that would adopt one of its `pods`.
    pub fn of_generation<'a>(
        &'a self,
        name: &'a str,
        pods: &[Object],
    ) -> impl Iterator<Item = (&'static str, &'a Object)> {
        let orphans = pods.iter().filter(|pod| !has_controller(pod));
        let orphans: Vec<Object> = orphans.cloned().collect();
        let is_of_generation = move |object: &DynamicObject| {
            let is_named = object.metadata.name.as_deref() == Some(name) || has_label(object, name);
            let selector = labels_at(object, "/spec/selector/matchLabels");
            let adopts = |pod: &Object| {
                let selector = selector.as_ref();
                selector.is_some_and(|selector| is_selected(pod, selector))
            };
            (is_named && !name.is_empty()) || orphans.iter().any(adopts)
        };
        let makers = self.by_uid.values().filter(|known| known.makes_pods());
        makers
            .filter(move |known| is_of_generation(&known.object))
            .map(|known| (known.kind, &known.object))
    }

    /// What becomes of an object when old is deleted.
    pub fn fate(&self, object: &DynamicObject, old: &OldOwners) -> Fate {
        let is_going = object.metadata.deletion_timestamp.is_some();
        let mut unknown = is_going.then(|| "which is being deleted".to_owned());
        let mut seen = BTreeSet::new();
        let mut left: Vec<&OwnerReference> = references(object).collect();
        while let Some(owner) = left.pop() {
            if old.has(owner) {
                return Fate::Goes(display_name(owner));
            }
            if !seen.insert(&*owner.uid) {
                continue;
            }
            let name = display_name(owner);
            match self.by_uid.get(&owner.uid) {
                Some(read) => {
                    if read.object.metadata.deletion_timestamp.is_some() {
                        unknown.get_or_insert(format!("whose owner {name} is being deleted"));
                    }
                    left.extend(references(&read.object));
                }
                None => {
                    unknown.get_or_insert(match self.reads(owner) {
                        true => format!("whose owner {name} does not exist"),
                        false => format!(
                            "whose owner {name} is of a kind that the controller does not read"
                        ),
                    });
                }
            }
        }
        unknown.map_or(Fate::Stays, Fate::Unknown)
    }

    fn reads(&self, owner: &OwnerReference) -> bool {
        let group = owner.api_version.split_once('/');
        let group = group.map_or("", |(group, _)| group);
        self.kinds.contains(&(group, &*owner.kind))
    }
}

impl PossibleOwner {
    fn makes_pods(&self) -> bool {
        !matches!(self.kind, "Pod" | "Service")
    }
}

/// What becomes of an object when old is deleted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    /// It is deleted, because this owner is deleted.
    Goes(String),
    /// Unknown, for this reason.
    Unknown(String),
}

/// The objects that are deleted together with old, and the objects whose deletion deletes old.
pub(super) struct OldOwners {
    source: String,
    uids: BTreeSet<String>,
}

impl OldOwners {
    /// The `pods` of old, what creates them, and all of their owners up to the deployment `source`: the owners of that are not
    /// part of old. The object called `shared` owns the workers of both generations, so it is not deleted with old.
    pub fn of(owners: &Owners, source: &str, pods: &[Object], shared: Option<&str>) -> Self {
        let name = |object: &Object| object.metadata.name.clone().unwrap_or_default();
        let mut uids = BTreeSet::new();
        let of_pods = pods.iter().flat_map(|pod| references(pod));
        let mut left: Vec<&OwnerReference> = of_pods.collect();
        uids.extend(pods.iter().filter_map(|pod| pod.metadata.uid.clone()));
        let makers = owners.of_generation(source, pods).map(|(_, object)| object);
        for object in makers.filter(|object| shared != Some(&*name(object))) {
            uids.extend(object.metadata.uid.clone());
            if name(object) != source {
                left.extend(references(object));
            }
        }
        let mut seen = BTreeSet::new();
        while let Some(owner) = left.pop() {
            if shared == Some(&*owner.name) || !seen.insert(&*owner.uid) {
                continue;
            }
            uids.insert(owner.uid.clone());
            let read = owners.by_uid.get(&owner.uid);
            if let Some(read) = read.filter(|_| owner.name != source) {
                left.extend(references(&read.object));
            }
        }
        Self {
            source: source.to_owned(),
            uids,
        }
    }

    /// Whether an owner is one of them. An owner with the name of old is one, no matter what its kind is, unless it only leads to
    /// pods.
    fn has(&self, owner: &OwnerReference) -> bool {
        let leads = matches!(&*owner.kind, "Service" | "Endpoints");
        self.uids.contains(&owner.uid) || (owner.name == self.source && !leads)
    }
}

fn references(object: &DynamicObject) -> impl Iterator<Item = &OwnerReference> {
    object.metadata.owner_references.iter().flatten()
}

fn has_controller(pod: &DynamicObject) -> bool {
    references(pod).any(|owner| owner.controller == Some(true))
}

/// Whether an object, or a pod that it creates, has the graph label with this name.
fn has_label(object: &DynamicObject, name: &str) -> bool {
    let of_pods = TEMPLATES.iter();
    let of_pods = of_pods.filter_map(|pointer| object.data.pointer(pointer)?.get(GRAPH)?.as_str());
    let own = labels(object).and_then(|labels| labels.get(GRAPH));
    own.map(String::as_str)
        .into_iter()
        .chain(of_pods)
        .any(|graph| graph == name)
}

fn display_name(owner: &OwnerReference) -> String {
    format!("{} {}", owner.kind, owner.name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::k8s::object;

    /// An object whose UID is its name, with owners that are written as kind and name.
    fn made(name: &str, owners: &[(&str, &str)], labels: Json) -> Object {
        let owners = owners.iter().map(|(kind, name)| {
            let version = match *kind {
                "Pod" | "Service" => "v1",
                "Bundle" => "example.com/v1",
                _ => "apps/v1",
            };
            json!({"apiVersion": version, "kind": kind, "name": name, "uid": name, "controller": true})
        });
        let owners: Vec<Json> = owners.collect();
        object(json!({"metadata": {
            "name": name, "uid": name, "labels": labels, "ownerReferences": owners,
        }}))
    }

    fn creates(name: &str, owners: &[(&str, &str)], graph: &str) -> Object {
        let made = made(name, owners, json!({}));
        let mut made = (*made).clone();
        made.data = json!({"spec": {"template": {"metadata": {"labels": {GRAPH: graph}}}}});
        object(serde_json::to_value(made).unwrap())
    }

    fn going(name: &str) -> Object {
        let mut going = (*made(name, &[], json!({}))).clone();
        going.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        object(serde_json::to_value(going).unwrap())
    }

    fn owners() -> Owners {
        let mut owners = Owners::default();
        let none = json!({});
        let deployments = vec![
            creates("web", &[("Deployment", "parent")], "old"),
            creates("models", &[], "old"),
            made("parent", &[("Deployment", "grandparent")], none.clone()),
            made("grandparent", &[], none.clone()),
            made("old", &[("Deployment", "above")], none.clone()),
            made("above", &[], none.clone()),
            made("both", &[], none.clone()),
            going("going"),
            creates("new", &[], "new"),
        ];
        owners.add("apps", "Deployment", deployments);
        let sets = vec![
            made("web-1", &[("Deployment", "web")], none.clone()),
            made("new-1", &[("Deployment", "new")], none.clone()),
            made("cache", &[("Deployment", "models")], none),
        ];
        owners.add("apps", "ReplicaSet", sets);
        owners
    }

    #[test]
    fn only_objects_owned_by_old_are_deleted_with_it() {
        let owners = owners();
        let pods = [
            made("old-pod", &[("ReplicaSet", "web-1")], json!({})),
            made("shared-pod", &[("Deployment", "both")], json!({})),
        ];
        let old = OldOwners::of(&owners, "old", &pods, Some("both"));
        let goes = |name: &str| Fate::Goes(name.to_owned());
        for (owner, fate) in [
            (("ReplicaSet", "web-1"), goes("ReplicaSet web-1")),
            (("Deployment", "web"), goes("Deployment web")),
            (
                ("Deployment", "grandparent"),
                goes("Deployment grandparent"),
            ),
            // It no longer has pods.
            (("Deployment", "models"), goes("Deployment models")),
            (("ReplicaSet", "cache"), goes("Deployment models")),
            (("Pod", "old-pod"), goes("Pod old-pod")),
            (("Deployment", "old"), goes("Deployment old")),
            (("Bundle", "old"), goes("Bundle old")),
            (("ReplicaSet", "new-1"), Fate::Stays),
            // Owners of the deployment itself are not deleted with it, nor is what both generations need.
            (("Deployment", "above"), Fate::Stays),
            (("Deployment", "both"), Fate::Stays),
            (
                ("Deployment", "gone"),
                Fate::Unknown("whose owner Deployment gone does not exist".to_owned()),
            ),
            (
                ("Deployment", "going"),
                Fate::Unknown("whose owner Deployment going is being deleted".to_owned()),
            ),
            (
                ("Bundle", "any"),
                Fate::Unknown(
                    "whose owner Bundle any is of a kind that the controller does not read"
                        .to_owned(),
                ),
            ),
        ] {
            let object = made("object", &[owner], json!({}));
            assert_eq!(owners.fate(&object, &old), fate, "{owner:?}");
        }
        let without = made("object", &[], json!({}));
        assert_eq!(owners.fate(&without, &old), Fate::Stays);
        let going = Fate::Unknown("which is being deleted".to_owned());
        assert_eq!(owners.fate(&self::going("object"), &old), going);
        // A known fate is more informative than an unknown one.
        let both = made(
            "object",
            &[("Deployment", "web"), ("Bundle", "any")],
            json!({}),
        );
        assert_eq!(owners.fate(&both, &old), goes("Deployment web"));
    }

    #[test]
    fn an_ownership_loop_ends() {
        let mut owners = Owners::default();
        let circle = vec![
            made("a", &[("Deployment", "b")], json!({})),
            made("b", &[("Deployment", "a")], json!({})),
        ];
        owners.add("apps", "Deployment", circle.clone());
        let old = OldOwners::of(&owners, "old", &[], None);
        assert_eq!(owners.fate(&circle[0], &old), Fate::Stays);
        let old = OldOwners::of(&owners, "old", &circle[..1], None);
        assert_eq!(
            owners.fate(&circle[0], &old),
            Fate::Goes("Deployment b".to_owned())
        );
    }

    #[test]
    fn objects_that_create_pods_of_a_generation_are_found_by_name_label_template_or_selector() {
        let mut owners = owners();
        let mut adopts = (*made("adopts", &[], json!({}))).clone();
        adopts.data = json!({"spec": {"selector": {"matchLabels": {"app": "new"}}}});
        let adopts = object(serde_json::to_value(adopts).unwrap());
        owners.add("apps", "StatefulSet", vec![adopts]);
        let labelled = made("labelled", &[], json!({GRAPH: "new"}));
        owners.add("nvidia.com", "DynamoComponentDeployment", vec![labelled]);
        owners.add(
            "",
            "Service",
            vec![made("service", &[], json!({GRAPH: "new"}))],
        );
        let found = |pods: &[Object]| {
            let found = owners.of_generation("new", pods);
            let mut names: Vec<_> = found
                .map(|(_, one)| one.metadata.name.clone().unwrap())
                .collect();
            names.sort_unstable();
            names
        };
        assert_eq!(found(&[]), ["labelled", "new"]);
        let orphan = made("pod", &[], json!({"app": "new"}));
        assert_eq!(found(&[orphan]), ["adopts", "labelled", "new"]);
        let owned = made("pod", &[("ReplicaSet", "new-1")], json!({"app": "new"}));
        assert_eq!(found(&[owned]), ["labelled", "new"]);
    }
}
