//! The conditions of a rollout. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::resource::rollout_status::{RolloutPhase, condition};
use crate::scaling::{ScalingDecision, Wait};

/// The conditions after a decision.
pub(super) fn conditions(
    phase: RolloutPhase,
    decision: &ScalingDecision,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let needs_somebody = |wait: &Wait| {
        matches!(
            wait,
            Wait::Failed
                | Wait::Grace { .. }
                | Wait::Proxies { all: 0, .. }
                | Wait::Infeasible
                | Wait::InPlace
                | Wait::DirectClients
                | Wait::CannotRetire(_)
        )
    };
    let stalls = decision.action.is_none() && decision.waits.iter().any(needs_somebody);
    let is_unserved = |wait: &Wait| matches!(wait, Wait::Frontend(_));
    let stalls = match phase.is_over() {
        true => decision.waits.iter().any(is_unserved),
        false => stalls,
    };
    let shown = match stalls {
        true => RolloutPhase::Stalled,
        false => phase,
    };
    let mut all = standard(shown, phase.as_str(), message, generation, now);
    let is_contested = phase == RolloutPhase::Contested;
    let (reason, why) = match is_contested {
        true => ("OtherScaler", message),
        false => ("NotContested", "no other client has changed a size"),
    };
    all.push(of(
        condition::SCALE_CONTESTED,
        is_contested,
        (reason, why),
        generation,
        now,
    ));
    all
}

/// The three conditions for tools that do not know rollouts.
pub(super) fn standard(
    phase: RolloutPhase,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    use RolloutPhase::{
        Complete, Contested, Held, Partition, Pending, Progressing, Refused, RolledBack,
        RollingBack, Stalled,
    };
    let (ready, reconciling) = match phase {
        Complete | RolledBack | Held | Partition => (true, false),
        Pending | Progressing | RollingBack => (false, true),
        Refused | Contested | Stalled => (false, false),
    };
    let all = [
        (condition::READY, ready),
        (condition::RECONCILING, reconciling),
        (condition::STALLED, !ready && !reconciling),
    ];
    all.map(|(kind, holds)| of(kind, holds, (reason, message), generation, now))
        .into()
}

fn of(
    kind: &str,
    holds: bool,
    (reason, message): (&str, &str),
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: Time(now),
    }
}
