//! Updates and their proxies as JSON for the live page.

use std::time::Instant;

use k8s_openapi::jiff;
use serde_json::{Value as Json, json};

use crate::controller::observer::ProxyPod;
use crate::controller::parsed;
use crate::controller::proxies::LastReport;
use crate::controller::spec_fields::SpecFields;
use crate::k8s::Object;
use crate::resource::status::FlagState;
use crate::resource::{capped_share, is_lifted};
use crate::split::Weights;
use crate::state_api::v1::{Analysis, Generation, Requests, Resource, State};

/// An entry in the list of all updates.
pub(super) fn line(update: &Object) -> Json {
    let key = parsed::key(update);
    let status = &update.data["status"];
    json!({
        "namespace": key.namespace,
        "name": key.name,
        "phase": status["phase"],
        "wanted": wanted(update),
        "message": status["message"],
    })
}

/// A row in the table of rollouts.
pub(super) fn rollout(rollout: &Object) -> Json {
    let key = parsed::key(rollout);
    let (spec, status) = (&rollout.data["spec"], &rollout.data["status"]);
    let generation =
        |name: &str, units: &Json| json!({"units": units, "workers": status[name]["workers"]});
    let waits = status["waitingFor"].as_array().into_iter().flatten();
    let waits: Vec<_> = waits.map(|wait| &wait["what"]).collect();
    json!({
        "namespace": key.namespace,
        "name": key.name,
        "intent": spec["intent"],
        "undoTo": spec["undoTo"].as_i64().filter(|revision| *revision > 0),
        "phase": status["phase"],
        "message": status["message"],
        "units": status["accepted"]["units"],
        "old": generation("source", &status["step"]["old"]),
        "new": generation("target", &status["step"]["new"]),
        "next": status["step"]["next"],
        "percent": status["split"]["percent"],
        "waits": waits,
        "verdict": status["analysis"]["verdict"],
        "gpus": status["gpus"]["used"],
        "peakGpus": status["gpus"]["peak"],
    })
}

/// The details of an update: what its spec requests and what its status reports.
pub(super) fn update(update: &Object) -> Json {
    let key = parsed::key(update);
    let (spec, status) = (&update.data["spec"], &update.data["status"]);
    let generation = |name: &str| {
        let generation = &status[name];
        json!({
            "workers": generation["workers"],
            "capacityPercent": generation["capacityPercent"],
            "readyFrontends": generation["readyFrontends"],
        })
    };
    json!({
        "namespace": key.namespace,
        "name": key.name,
        "generation": update.metadata.generation,
        "source": spec["sourceDeployment"],
        "target": spec["targetDeployment"],
        "service": spec["newFrontendService"],
        "wanted": wanted(update),
        "weights": spec["weights"],
        "cap": spec["maxTrafficSplitPercent"],
        "capIsLifted": cap_is_lifted(update),
        "paused": spec["paused"] == true,
        "phase": status["phase"],
        "since": status["lastTransitionTime"],
        "message": status["message"],
        "old": generation("old"),
        "new": generation("new"),
        "safeToDeleteOld": safe_to_delete_old(update, jiff::Timestamp::now()),
        "estimatedDrainSeconds": status["estimatedDrainSeconds"],
    })
}

/// The verdict on new.
pub(super) fn verdict(update: &Object) -> Option<Analysis> {
    let status = parsed::status(update).0;
    status.verdict(update.metadata.generation).map(Into::into)
}

/// Whether old can be deleted: true or false, null if the status does not say, `"unknown"` if the flag has expired.
fn safe_to_delete_old(update: &Object, now: jiff::Timestamp) -> Json {
    let status = parsed::status(update).0;
    match status.old_may_be_deleted(update.metadata.generation, now) {
        None => Json::Null,
        Some(FlagState::True) => true.into(),
        Some(FlagState::False) => false.into(),
        Some(FlagState::Expired) => "unknown".into(),
    }
}

/// New's share according to the resource, limited by the cap unless the cap is lifted.
pub(super) fn wanted(update: &Object) -> Option<f64> {
    let cap = SpecFields::of(update).cap_percent();
    let lifted = parsed::status(update).0.lifted_cap_percent;
    Some(capped_share(requested_split(update)?, cap, lifted))
}

/// The split in the spec or, if that is left to the controller, the last wanted split in the status.
fn requested_split(update: &Object) -> Option<Weights> {
    let of_controller = || parsed::status(update).0.wanted?.exact();
    SpecFields::of(update).split().or_else(of_controller)
}

fn cap_is_lifted(update: &Object) -> bool {
    let lifted = parsed::status(update).0.lifted_cap_percent;
    let all_to_new = requested_split(update).is_some_and(|split| split.is_all_new());
    is_lifted(SpecFields::of(update).cap_percent(), lifted, all_to_new)
}

/// The name of the other update that a proxy follows, if it follows another.
pub(super) fn other<'a>(update: &Object, state: &'a State) -> Option<&'a str> {
    let Resource { name, uid, .. } = state.resource()?;
    let metadata = &update.metadata;
    let is_it = match (uid, &metadata.uid) {
        (Some(one), Some(other)) => one == other,
        _ => *name == metadata.name,
    };
    name.as_deref().filter(|_| !is_it)
}

/// A row in the table of proxies.
pub(super) fn proxy(
    update: &Object,
    proxy_pod: &ProxyPod,
    last: Option<&LastReport>,
    now: Instant,
) -> Json {
    let at = last.and_then(|last| last.at);
    let at = at.map(|at| now.saturating_duration_since(at).as_secs_f64());
    let mut line = json!({
        "name": proxy_pod.pod,
        "podIsReady": proxy_pod.ready,
        "answers": last.map(|last| last.state.is_ok()),
        "heardSecondsAgo": at,
    });
    match last.map(|last| &last.state) {
        None => {}
        Some(Err(silence)) => line["silence"] = json!(&**silence),
        Some(Ok(state)) => line["state"] = brief(update, state),
    }
    line
}

fn brief(update: &Object, state: &State) -> Json {
    let plan = state.plan.as_ref();
    let resource = plan.and_then(|plan| plan.resource.as_ref());
    let refusal = plan.and_then(|plan| plan.refusal.as_ref());
    let problems = refusal.map(|refusal| {
        let problems = refusal.problems.iter();
        let reported = problems.map(|problem| match &*problem.path {
            "" => problem.message.clone(),
            path => format!("{path}: {}", problem.message),
        });
        reported.collect::<Vec<_>>().join("; ")
    });
    let open = |generation: &Option<Generation>| {
        generation
            .as_ref()
            .map(|generation| generation.open_streams)
    };
    let minute = state.assigned_last_minute.as_ref();
    let lost = plan.and_then(|plan| plan.source_lost_for.as_ref());
    json!({
        "phase": state.phase().as_word(),
        "ready": state.ready,
        "version": state.process.as_ref().map(|process| &process.version),
        "follows": other(update, state),
        "generation": resource.and_then(|resource| resource.generation),
        "percent": plan.map(|plan| plan.percent),
        "observed": minute.and_then(Requests::share_of_new),
        "old": open(&state.old),
        "new": open(&state.new),
        "moving": state.continuations.as_ref().map(|all| all.moving),
        "refusal": problems,
        "remarks": plan.map(|plan| &plan.remarks),
        "sourceLostSeconds": lost.map(|lost| lost.seconds),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::state_api::v1::Plan;

    fn object(spec: Json) -> Object {
        let metadata = json!({"namespace": "a", "name": "up", "uid": "1"});
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    }

    #[test]
    fn a_rollout_reports_what_is_known_of_it() {
        let mut reported = (*object(json!({"intent": "Run", "undoTo": 0}))).clone();
        let row = rollout(&Arc::new(reported.clone()));
        assert_eq!((&row["phase"], &row["undoTo"]), (&Json::Null, &Json::Null));
        assert_eq!(row["waits"], json!([]));
        reported.data["status"] = json!({
            "phase": "Progressing", "accepted": {"units": 4}, "step": {"old": 3, "new": 1, "next": 4},
            "source": {"workers": "3/3"}, "target": {"workers": "0/1"}, "split": {"percent": 0},
            "waitingFor": [{"what": "new to be ready", "since": "2026-01-01T00:00:00Z"}],
            "analysis": {"verdict": "Pass"}, "gpus": {"used": 32, "peak": 40},
        });
        reported.data["spec"]["undoTo"] = json!(2);
        let row = rollout(&Arc::new(reported));
        assert_eq!(row["new"], json!({"units": 1, "workers": "0/1"}));
        assert_eq!(row["waits"], json!(["new to be ready"]));
        assert_eq!((&row["undoTo"], &row["gpus"]), (&json!(2), &json!(32)));
    }

    #[test]
    fn the_share_that_is_wanted_is_exact_and_below_the_cap() {
        let share = |spec| wanted(&object(spec));
        assert_eq!(share(json!({})), None);
        assert_eq!(share(json!({"trafficSplitPercent": 25})), Some(0.25));
        let weights = json!({"old": 2, "new": 1});
        let exact = json!({"trafficSplitPercent": 33, "weights": weights});
        assert_eq!(share(exact), Some(1.0 / 3.0));
        let capped = json!({"weights": weights, "maxTrafficSplitPercent": 10});
        assert_eq!(share(capped), Some(0.1));
        for (percent, lifted, expected) in [
            (100, Some(10), 1.0),
            (50, Some(10), 0.1),
            (100, Some(20), 0.1),
            (100, None, 0.1),
        ] {
            let spec = json!({"trafficSplitPercent": percent, "maxTrafficSplitPercent": 10});
            let mut update = (*object(spec)).clone();
            update.data["status"] = json!({"liftedCapPercent": lifted});
            let reported = wanted(&Arc::new(update));
            assert_eq!(reported, Some(expected), "{percent} {lifted:?}");
        }
        let none = json!({"weights": {"old": 0, "new": 0}});
        assert_eq!(share(none), None);
    }

    #[test]
    fn a_verdict_is_shown_while_it_is_of_the_current_edit() {
        for (generation, shown) in [(3, Some("New fails.")), (4, None)] {
            let mut update = (*object(json!({}))).clone();
            update.metadata.generation = Some(generation);
            let analysis = json!({"verdict": "Fail", "message": "New fails.", "rolledBack": true});
            update.data["status"] = json!({"observedGeneration": 3, "analysis": analysis});
            let verdict = verdict(&Arc::new(update));
            assert_eq!(verdict.as_ref().map(|verdict| &*verdict.text), shown);
            if let Some(verdict) = verdict {
                assert_eq!((&*verdict.verdict, verdict.rolled_back), ("fail", true));
            }
        }
    }

    #[test]
    fn an_expired_flag_is_unknown() {
        let now: jiff::Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let status = |at: &str, until: &str| json!({"safeToDeleteOld": true, "observedGeneration": 3, "observedAt": at, "validUntil": until});
        for (status, reported) in [
            (json!({}), json!(null)),
            (json!({"safeToDeleteOld": false}), json!(false)),
            (json!({"safeToDeleteOld": true}), json!("unknown")),
            (
                status("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
                json!("unknown"),
            ),
            (
                status("2026-01-01T00:00:00Z", "2026-01-01T00:01:01Z"),
                json!(true),
            ),
            // Without observedAt.
            (
                json!({"safeToDeleteOld": true, "observedGeneration": 3, "validUntil": "2026-01-01T00:01:01Z"}),
                json!("unknown"),
            ),
            // Observed too long ago, regardless of validUntil.
            (
                status("2025-12-31T23:59:30Z", "2036-01-01T00:00:00Z"),
                json!("unknown"),
            ),
            // The proxies follow an edit that the controller has not reconciled yet.
            (
                json!({
                    "safeToDeleteOld": true, "observedGeneration": 2,
                    "observedAt": "2026-01-01T00:00:59Z", "validUntil": "2026-01-01T00:02:29Z",
                }),
                json!("unknown"),
            ),
            // Written by a clock that is an hour ahead.
            (
                status("2026-01-01T01:01:00Z", "2026-01-01T01:02:30Z"),
                json!("unknown"),
            ),
        ] {
            let mut update = (*object(json!({}))).clone();
            update.metadata.generation = Some(3);
            update.data["status"] = status.clone();
            assert_eq!(
                safe_to_delete_old(&Arc::new(update), now),
                reported,
                "{status}"
            );
        }
    }

    #[test]
    fn remarks_of_a_proxy_are_in_its_line() {
        let plan = Plan {
            remarks: vec!["update 'a' has no effect".to_owned()],
            ..Default::default()
        };
        let state = State {
            plan: Some(plan),
            ..Default::default()
        };
        let reported = brief(&object(json!({})), &state);
        assert_eq!(reported["remarks"], json!(["update 'a' has no effect"]));
    }

    #[test]
    fn a_proxy_of_another_update_is_distinguished_by_its_uid_or_failing_that_by_name() {
        let follows = |name: &str, uid: Option<&str>| {
            let resource = Resource {
                name: Some(name.to_owned()),
                uid: uid.map(str::to_owned),
                ..Default::default()
            };
            let state = State {
                plan: Some(Plan {
                    resource: Some(resource),
                    ..Default::default()
                }),
                ..Default::default()
            };
            other(&object(json!({})), &state).map(str::to_owned)
        };
        assert_eq!(follows("up", Some("1")), None);
        assert_eq!(follows("up", Some("2")), Some("up".to_owned()));
        assert_eq!(follows("up", None), None);
        assert_eq!(follows("next", None), Some("next".to_owned()));
        assert_eq!(other(&object(json!({})), &State::default()), None);
    }
}
