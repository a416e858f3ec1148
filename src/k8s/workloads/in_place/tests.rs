//! Which pods of an object count for which generation.

use super::*;
use crate::k8s::object;
use crate::k8s::workloads::of_kind;

fn set(partition: u32, revisions: [&str; 2]) -> Json {
    json!({
        "metadata": {"name": "w", "generation": 3},
        "spec": {
            "replicas": 4, "selector": {"matchLabels": {"app": "w"}}, "template": {"spec": {"containers": [{}]}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
        },
        "status": {"observedGeneration": 3, "currentRevision": revisions[0], "updateRevision": revisions[1]},
    })
}

fn pod(index: u32, revision: &str) -> Object {
    let labels = json!({"app": "w", "controller-revision-hash": revision});
    object(json!({
        "metadata": {"name": format!("w-{index}"), "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    }))
}

fn of(set: Json, accepted: Option<[&str; 2]>) -> impl Fn(&[Object]) -> PerGeneration<Scaled> {
    let set = object(set);
    let accepted = accepted.map(|[old, new]| PerGeneration {
        old: old.to_owned(),
        new: new.to_owned(),
    });
    move |pods| {
        let scaling = of_kind("StatefulSet").unwrap();
        let kinds = (scaling, scaling.in_place().unwrap());
        let made = crate::k8s::workloads::stateful_set::made(&set);
        let whole = ObjectInPlace::of(kinds, (&set, "StatefulSet"), made, accepted.clone());
        whole.unwrap().halves(pods)
    }
}

fn refused(set: Json) -> String {
    let scaling = of_kind("StatefulSet").unwrap();
    let kinds = (scaling, scaling.in_place().unwrap());
    let object = object(set);
    let made = crate::k8s::workloads::stateful_set::made(&object);
    let whole = ObjectInPlace::of(kinds, (&object, "StatefulSet"), made, None);
    whole.map(|_| ()).unwrap_err().to_string()
}

/// The desired, present, terminating, and ready replicas.
fn counts(scaled: &Scaled) -> [u32; 4] {
    let since = scaled.ready_since.as_ref().unwrap();
    assert_eq!(scaled.ready as usize, since.len());
    [
        scaled.part.desired,
        scaled.present,
        scaled.terminating,
        scaled.ready,
    ]
}

fn leaving(scaled: &Scaled) -> Vec<(&str, bool)> {
    let pods = scaled.half.as_ref().unwrap().leaving.iter();
    pods.map(|leaving| {
        (
            leaving.pod.metadata.name.as_deref().unwrap(),
            leaving.is_ready,
        )
    })
    .collect()
}

#[test]
fn a_pod_counts_for_its_revision_if_it_belongs_there() {
    let pods = [pod(0, "w-1"), pod(1, "w-1"), pod(2, "w-1"), pod(3, "w-2")];
    let accepted = Some(["w-1", "w-2"]);
    let at_three = of(set(3, ["w-1", "w-2"]), accepted)(&pods);
    assert_eq!(counts(&at_three.old), [3, 3, 0, 3]);
    assert_eq!(counts(&at_three.new), [1, 1, 0, 1]);
    // The set has not replaced the third one yet.
    let at_two = of(set(2, ["w-1", "w-2"]), accepted)(&pods);
    assert_eq!(counts(&at_two.old), [2, 2, 1, 2]);
    assert_eq!(counts(&at_two.new), [2, 1, 0, 1]);
    assert!(leaving(&at_two.old).is_empty(), "the set replaces it");
    // On the way back, the set leaves the last one as it is.
    let at_four = of(set(9, ["w-1", "w-2"]), accepted)(&pods);
    assert_eq!(counts(&at_four.old), [4, 3, 0, 3]);
    assert_eq!(counts(&at_four.new), [0, 0, 1, 0]);
    assert_eq!(leaving(&at_four.new), [("w-3", true)]);
    let mut starting = Object::unwrap_or_clone(pods[3].clone());
    starting.data["status"] = json!({});
    let at_four = of(set(9, ["w-1", "w-2"]), accepted)(&[starting.into()]);
    assert_eq!(leaving(&at_four.new), [("w-3", false)]);
}

#[test]
fn a_size_of_either_generation_is_the_partition() {
    let pods = [];
    let both = of(set(4, ["w-1", "w-2"]), None)(&pods);
    let patch = |scaled: &Scaled, size| match scaled.resize("StatefulSet", size).unwrap().1 {
        Resize::Patch(patch) => {
            patch["spec"]["updateStrategy"]["rollingUpdate"]["partition"].clone()
        }
        Resize::Scale(_) => Json::Null,
    };
    assert_eq!(
        (patch(&both.old, 3), patch(&both.new, 1)),
        (json!(3), json!(3))
    );
    assert_eq!(both.old.half.as_ref().unwrap().other_size(3), 1);
    let mut mine = set(4, ["w-1", "w-2"]);
    mine["metadata"]["managedFields"] = json!([{
        "manager": "me", "operation": "Update",
        "fieldsV1": {"f:spec": {"f:updateStrategy": {"f:rollingUpdate": {"f:partition": {}}}}},
    }]);
    let both = of(mine, None)(&pods);
    assert!(both.old.is_set_by("me") && both.new.is_set_by("me") && !both.old.is_set_by("you"));
}

#[test]
fn an_object_that_makes_another_revision_is_lost_for_the_one_it_no_longer_makes() {
    let accepted = Some(["w-1", "w-2"]);
    let lost = |set: Json| {
        let both = of(set, accepted)(&[]);
        let lost = |scaled: &Scaled| scaled.half.as_ref().unwrap().lost.is_some();
        let desired = (both.old.part.desired, both.new.part.desired);
        (desired, lost(&both.old), lost(&both.new))
    };
    assert_eq!(lost(set(3, ["w-1", "w-2"])), ((3, 1), false, false));
    // Edited again, edited back, and whole.
    assert_eq!(lost(set(3, ["w-1", "w-3"])), ((3, 0), false, true));
    assert_eq!(lost(set(3, ["w-1", "w-1"])), ((4, 0), false, true));
    assert_eq!(lost(set(0, ["w-2", "w-2"])), ((0, 4), true, false));
}

#[test]
fn an_object_that_would_not_wait_is_refused() {
    for (set, why) in [
        (
            set(3, ["w-1", "w-2"]),
            "replaces its workers by itself, because spec.updateStrategy.rollingUpdate.partition is 3: edit the pod template and set \
             spec.updateStrategy.rollingUpdate.partition to 4 (the number of replicas) in the same change",
        ),
        (
            set(4, ["w-1", "w-1"]),
            "has only one revision, w-1: edit the pod template",
        ),
        (
            {
                let mut edited = set(4, ["w-1", "w-2"]);
                edited["metadata"]["generation"] = json!(4);
                edited
            },
            "has a change that its status does not reflect yet",
        ),
        (
            {
                let mut by_hand = set(4, ["w-1", "w-2"]);
                by_hand["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
                by_hand
            },
            "has updateStrategy OnDelete, but needs RollingUpdate",
        ),
    ] {
        let reported = refused(set);
        assert!(
            reported.starts_with("StatefulSet w ") && reported.contains(why),
            "{reported}"
        );
    }
}
