//! Builds the conditions and events of a step. Contains no policy. Messages contain no times, so that the status
//! changes only when something happens.

use super::{
    Obstacle, OnFailure, Phase, Rule, TrialVerdict,
    gate::listed,
    messages::{
        StatusContext, analysis_failed, failing, lag, message, share, unmeasured, why,
        without_proxy,
    },
    trial::RETRY,
};

/// A condition of the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The condition's type.
    pub kind: ConditionKind,
    /// Whether the status is `True`.
    pub holds: bool,
    /// The reason: one word in CamelCase.
    pub reason: &'static str,
    /// The message for users.
    pub message: String,
}

/// The types of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionKind {
    /// The resource is valid and controls its deployment.
    Accepted,
    /// New can serve.
    NewFrontendReady,
    /// The split is moving, or will move when what it waits for happens.
    Progressing,
    /// A pause or the cap holds the split.
    Paused,
    /// The update is complete: old is no longer needed.
    Complete,
    /// New has failed the analysis. Only present while new is analysed or has failed.
    AnalysisFailed,
    /// Something is wrong.
    Degraded,
    /// The update is complete or held, and nothing is wrong. First of the three kstatus conditions, of which exactly
    /// one is true.
    Ready,
    /// The update is progressing, or will progress when what it waits for happens.
    Reconciling,
    /// The update cannot progress on its own.
    Stalled,
}

impl ConditionKind {
    /// The condition's `type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::NewFrontendReady => "NewFrontendReady",
            Self::Progressing => "Progressing",
            Self::Paused => "Paused",
            Self::Complete => "Complete",
            Self::AnalysisFailed => "AnalysisFailed",
            Self::Degraded => "Degraded",
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
        }
    }
}

/// A Kubernetes Event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether the type is `Warning` instead of `Normal`.
    pub is_warning: bool,
    /// The reason: one word in CamelCase.
    pub reason: &'static str,
    /// The message for users.
    pub message: String,
}

/// All conditions, always in the same order.
pub(super) fn conditions(context: &StatusContext) -> Vec<Condition> {
    use ConditionKind::{Accepted, Complete, NewFrontendReady, Paused, Progressing};
    let settings = context.assessment.settings;
    let is_superseded = context.rule == Rule::Superseded;
    let is_complete = context.phase == Phase::Complete;
    let why = why(context);
    let condition = |kind, holds, reason, message: &str| Condition {
        kind,
        holds,
        reason,
        message: message.to_owned(),
    };
    let progressing = match context.rule {
        _ if is_complete => condition(Progressing, false, "Complete", "the update is complete"),
        rule @ (Rule::Superseded | Rule::AnalysisFailed | Rule::Paused) => {
            condition(Progressing, false, rule.as_str(), &why)
        }
        _ if context.phase == Phase::Draining => {
            let moves = context.assessment.proxies.moving > 0;
            let reason = if moves { "Moving" } else { "Draining" };
            condition(Progressing, true, reason, &why)
        }
        rule => condition(Progressing, true, rule.as_str(), &why),
    };
    let accepted = if is_superseded {
        "Superseded"
    } else {
        "Accepted"
    };
    // What holds the split, if anything.
    let (is_held, holder, held) = match context.rule {
        _ if settings.paused => (true, "Paused", "spec.paused is true"),
        Rule::Cap => (true, "Cap", "capacity would give new more than the cap"),
        _ => (false, "NotPaused", "spec.paused is not true"),
    };
    let (gate, obstacles) = match context.assessment.gate.obstacles.first() {
        None => match failing(context) {
            Some(failing) => ("FrontendsFail", failing),
            None => ("Serving", "new serves every required model".to_owned()),
        },
        Some(first) => (reason(first), listed(&context.assessment.gate.obstacles)),
    };
    let complete = match is_complete {
        // If the frontends of an update are gone, it is unknown whether any of them still runs.
        true if context.memory.overdue => {
            "the drain deadline has passed; streams may still be open on old"
        }
        true => "old is no longer needed",
        false => "old is still needed",
    };
    let mut all = vec![
        condition(
            Accepted,
            !is_superseded,
            accepted,
            if is_superseded {
                &why
            } else {
                "this update controls its deployment"
            },
        ),
        condition(
            NewFrontendReady,
            context.assessment.gate.obstacles.is_empty(),
            gate,
            &obstacles,
        ),
        progressing,
        condition(Paused, is_held, holder, held),
        condition(Complete, is_complete, context.phase.as_str(), complete),
        degraded(context),
    ];
    all.extend(analysis(context));
    all.extend(standard(&all, is_held));
    all
}

/// Whether new has failed the analysis, if there is one. Leaves out figures, which change all the time, unless they led to the
/// failure.
fn analysis(context: &StatusContext) -> Option<Condition> {
    let assessment = context.assessment;
    let condition = |holds, reason, message: &str| Condition {
        kind: ConditionKind::AnalysisFailed,
        holds,
        reason,
        message: message.to_owned(),
    };
    if let Some(failure) = &context.memory.trial.failure {
        let reason = match failure.on_failure {
            OnFailure::RollBack => "RolledBack",
            OnFailure::Hold => "Held",
        };
        return Some(condition(true, reason, &failure.clause()));
    }
    let trial_result = assessment.seen.trial_result.as_ref();
    let trial = &context.memory.trial;
    Some(
        match trial.verdict(assessment.settings, trial_result)?.verdict {
            TrialVerdict::Pass => condition(false, "Pass", "new is within the margins"),
            _ => condition(false, "Inconclusive", "there is not enough data about new"),
        },
    )
}

/// The conditions by which generic tools wait for an update or detect that it failed (kstatus of
/// kubernetes-sigs/cli-utils). Exactly one of them is true.
fn standard(all: &[Condition], is_held: bool) -> [Condition; 3] {
    use ConditionKind::{Accepted, Complete, Degraded, Progressing, Ready, Reconciling, Stalled};
    let of = |kind| all.iter().find(|condition| condition.kind == kind);
    let condition_of = |kind, holds| of(kind).filter(|condition| condition.holds == holds);
    let stalled = condition_of(Accepted, false).or(condition_of(Degraded, true));
    let settled =
        condition_of(Complete, true).or_else(|| of(ConditionKind::Paused).filter(|_| is_held));
    let (holding, why) = match (stalled, settled) {
        (Some(why), _) => (Stalled, Some(why)),
        (None, Some(why)) => (Ready, Some(why)),
        (None, None) => (Reconciling, of(Progressing)),
    };
    [Ready, Reconciling, Stalled].map(|kind| Condition {
        kind,
        holds: kind == holding,
        reason: why.map_or(kind.as_str(), |why| why.reason),
        message: why.map_or_else(String::new, |why| why.message.clone()),
    })
}

const fn reason(obstacle: &Obstacle) -> &'static str {
    match obstacle {
        Obstacle::NoEndpoint => "NoEndpoint",
        Obstacle::NoAnswer(_) => "NoAnswer",
        Obstacle::NotYet => "NotYet",
        Obstacle::OldModelsUnknown => "OldModelsUnknown",
        Obstacle::ModelsMissing(_) => "ModelsMissing",
        Obstacle::ListTooLong(_) => "ListTooLong",
        Obstacle::NoModel => "NoModel",
        Obstacle::NoWorkers(_) | Obstacle::NothingKnown => "NoWorkers",
    }
}

/// Reports faults that time alone will not fix.
fn degraded(context: &StatusContext) -> Condition {
    let outage = match context.rule {
        Rule::Superseded => None,
        Rule::NeitherCanServe => Some(why(context)),
        Rule::OldCannotServe => (!context.assessment.old_is_given_up()).then(|| why(context)),
        // It is not a fault if new has not started yet or is being rolled back. It is a fault if new should have a share.
        Rule::NewCannotServe => {
            let held = context.memory.held.is_some_and(|held| !held.is_all_old());
            let fell_over = context.memory.new_had_share && context.assessment.new_is_wanted();
            (held || fell_over).then(|| why(context))
        }
        Rule::AnalysisFailed
        | Rule::Paused
        | Rule::DrainOld
        | Rule::Step
        | Rule::Cap
        | Rule::Capacity => None,
    };
    let without_proxy = without_proxy(context);
    let lag = context.assessment.is_lagging().then(|| lag(context));
    let is_unknown = context.rule != Rule::Superseded
        && context
            .assessment
            .gate
            .obstacles
            .contains(&Obstacle::OldModelsUnknown);
    let failed = analysis_failed(context).filter(|_| context.rule != Rule::Superseded);
    let (reason, message) = match (outage, unmeasured(context), lag) {
        _ if without_proxy.is_some() => ("NoProxy", without_proxy.unwrap_or_default()),
        _ if is_unknown => ("OldModelsUnknown", Obstacle::OldModelsUnknown.to_string()),
        (Some(outage), ..) => (context.rule.as_str(), outage),
        _ if failed.is_some() => ("AnalysisFailed", failed.unwrap_or_default()),
        (None, Some(unmeasured), _) => ("FullSizeUnknown", unmeasured),
        (None, None, Some(lag)) => ("ProxiesLag", lag),
        (None, None, None) => match (untried(context), fails_in_part(context)) {
            (Some(unknown), _) => (reason(&unknown), unknown.to_string()),
            (None, Some(failing)) => ("FrontendsFail", failing),
            (None, None) => ("AsExpected", "nothing is wrong".to_owned()),
        },
    };
    Condition {
        kind: ConditionKind::Degraded,
        holds: reason != "AsExpected",
        reason,
        message,
    }
}

/// Why new keeps its share but cannot gain.
fn untried(context: &StatusContext) -> Option<Obstacle> {
    let assessment = context.assessment;
    let is_kept = assessment.gate.is_presumed
        && assessment.gate.obstacles.is_empty()
        && !assessment.seen.split.is_all_old();
    let error = assessment.seen.frontends.new.error();
    match error.filter(|_| is_kept) {
        Some(error) => Some(Obstacle::NoAnswer(error.to_owned())),
        None => (is_kept && assessment.wanted_is_unknown).then_some(Obstacle::OldModelsUnknown),
    }
}

/// Which frontends of new fail, once new has had a share. Before that, a failing frontend is not a fault.
fn fails_in_part(context: &StatusContext) -> Option<String> {
    let has_begun = context.rule != Rule::Superseded && context.memory.new_had_share;
    failing(context).filter(|_| has_begun)
}

/// The events of this step.
pub(super) fn events(context: &StatusContext) -> Vec<Event> {
    let mut events = Vec::new();
    let mut event = |is_warning, reason, message| {
        events.push(Event {
            is_warning,
            reason,
            message,
        });
    };
    let present = context.assessment.seen.split;
    if context.contested {
        let text = format!(
            "reverted an edit of the split to {}; to hold your own split, set spec.paused",
            share(present)
        );
        event(true, "SplitContested", text);
    }
    let is_warning =
        degraded(context).holds || (context.rule == Rule::NewCannotServe && !present.is_all_old());
    if context.next != present {
        let from = share(present);
        event(
            is_warning,
            "SplitChanged",
            format!("{from} -> {}", message(context)),
        );
    } else if context.before.rule != Some(context.rule) && !context.failure_is_new {
        event(is_warning, context.rule.as_str(), message(context));
    }
    if context.before.phase != context.phase {
        let text = match context.phase {
            Phase::Draining => {
                Some("all proxies send everything to new; streams on old are finishing")
            }
            Phase::Complete if context.assessment.proxies.old_is_empty() => {
                Some("no stream is left on old")
            }
            Phase::Complete => Some("the drain deadline has passed"),
            _ if context.before.phase.old_drains() => Some("old is needed again"),
            _ => None,
        };
        if let Some(text) = text {
            event(false, context.phase.as_str(), text.to_owned());
        }
    }
    if let Some(failure) = context.memory.trial.failure.as_ref()
        && context.failure_is_new
    {
        let follows = match failure.on_failure {
            OnFailure::RollBack => "all requests go to old",
            OnFailure::Hold => "new keeps at most its current share",
        };
        let text = format!("{}; {follows} until {RETRY}", failure.clause());
        event(true, "AnalysisFailed", text);
    }
    if context.lag_is_new {
        event(true, "ProxiesLag", lag(context));
    }
    events
}
