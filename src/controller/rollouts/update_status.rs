//! Reads the status of the update that moves a rollout's traffic: whether new serves, and how the comparison of the
//! generations ended.

use super::update;
use crate::k8s::Object;
use crate::resource::DynamoUpdateConfigStatus;
use crate::resource::rollout_status::{AcceptedStatus, DynamoRolloutStatus};
use crate::resource::status::{AnalysisStatus, condition};
use crate::scaling::{Serves, TrialVerdict};

/// Whether new serves, as observed by the controller of updates. Distinguishes frontends that do not serve from those that have
/// not been queried yet.
pub(super) fn new_serves(status: &DynamoUpdateConfigStatus) -> Serves {
    let mut conditions = status.conditions.iter();
    let found = conditions.find(|known| known.type_ == condition::NEW_FRONTEND_READY);
    match found.map(|found| (&*found.status, &*found.reason)) {
        Some(("True", _)) => Serves::Yes,
        Some(("False", "NotYet" | "OldModelsUnknown")) | None => Serves::Unknown,
        Some(("False", _)) => Serves::No,
        Some(_) => Serves::Unknown,
    }
}

/// A failure is remembered by the update, and by the rollout in case the update is recreated.
pub(super) fn verdict(
    status: &DynamoUpdateConfigStatus,
    (rollout, before): (&Object, &DynamoRolloutStatus),
    accepted: &AcceptedStatus,
    is_of_update: bool,
) -> TrialVerdict {
    let analysis = status.analysis.as_ref();
    let analysis = analysis.filter(|analysis| is_of_rollout(analysis, accepted));
    let verdict = analysis.map(|analysis| analysis.verdict);
    let before = before.analysis.as_ref();
    let has_failed = before.is_some_and(|before| before.verdict == TrialVerdict::Fail);
    let is_retried = update::retried_at(rollout).is_some_and(|at| {
        let failed_at = before.and_then(|before| before.failed_at.as_ref());
        failed_at.is_none_or(|failed_at| at > failed_at.0)
    });
    match verdict {
        Some(TrialVerdict::Fail) => TrialVerdict::Fail,
        _ if has_failed && !is_retried => TrialVerdict::Fail,
        Some(TrialVerdict::Pass) if is_of_update => TrialVerdict::Pass,
        _ => TrialVerdict::Inconclusive,
    }
}

/// Whether a failure in the status of the update came after the rollout was accepted. An earlier failure concerns other
/// generations, between which the update moved requests at that time.
pub(super) fn is_of_rollout(analysis: &AnalysisStatus, accepted: &AcceptedStatus) -> bool {
    let failed_at = analysis.failed_at.as_ref();
    failed_at.is_none_or(|failed_at| failed_at.0 >= accepted.at.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resource::rollout_status::AcceptedGeneration;

    #[test]
    fn a_frontend_that_has_not_been_queried_may_serve() {
        let status = |status: &str, reason: &str| DynamoUpdateConfigStatus {
            conditions: serde_json::from_value(json!([{
                "type": "NewFrontendReady", "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]))
            .unwrap(),
            ..DynamoUpdateConfigStatus::default()
        };
        assert_eq!(new_serves(&status("True", "Serving")), Serves::Yes);
        assert_eq!(new_serves(&status("False", "NoModel")), Serves::No);
        assert_eq!(new_serves(&status("False", "NotYet")), Serves::Unknown);
        assert_eq!(
            new_serves(&DynamoUpdateConfigStatus::default()),
            Serves::Unknown
        );
    }

    #[test]
    fn a_failure_from_before_the_rollout_is_of_other_generations() {
        let time = |at: &str| serde_json::from_value(json!(at)).unwrap();
        let accepted = AcceptedStatus {
            at: time("2026-01-01T00:01:00Z"),
            units: 4,
            source: AcceptedGeneration::default(),
            target: AcceptedGeneration::default(),
            service: "v2:8000".into(),
            undo_to: None,
        };
        for (at, is_its) in [
            (Some("2026-01-01T00:00:59Z"), false),
            (Some("2026-01-01T00:01:00Z"), true),
            (None, true),
        ] {
            let analysis = AnalysisStatus {
                verdict: TrialVerdict::Fail,
                failed_at: at.map(time),
                ..AnalysisStatus::default()
            };
            assert_eq!(is_of_rollout(&analysis, &accepted), is_its, "{at:?}");
        }
    }
}
