//! Writes the status message: the reason for the split, and what prevents progress. Messages contain no times.

use super::{
    Capacity, Memory, Phase, Ratio, Role, RoleCapacity, Rule, Waiting,
    assessment::Assessment,
    gate::{listed, without_workers},
    rules::at_most,
};
use crate::printable::{are, counted, plural};
use crate::split::Weights;

/// The results of a step that messages, conditions and events are built from.
pub(super) struct StatusContext<'a> {
    pub assessment: &'a Assessment<'a>,
    pub before: &'a Memory,
    pub memory: &'a Memory,
    pub rule: Rule,
    pub phase: Phase,
    /// The split after this step.
    pub next: Weights,
    pub waiting_for: &'a [Waiting],
    /// Whether an edit is reverted for the first time.
    pub contested: bool,
    /// Whether proxies lag after the timeout for the first time.
    pub lag_is_new: bool,
    /// Whether a failure of new is reported for the first time.
    pub failure_is_new: bool,
}

/// The one-line summary: the split, the reason, and what is waited for.
pub(super) fn message(context: &StatusContext) -> String {
    let phase = match context.phase {
        Phase::Draining => "old drains; ",
        Phase::Complete => "complete; ",
        _ => "",
    };
    let mut text = format!("{phase}{}: {}", share(context.next), why(context));
    if !context.waiting_for.is_empty() {
        let waits: Vec<String> = context
            .waiting_for
            .iter()
            .map(|wait| wait.what.to_string())
            .collect();
        text += &format!("; waiting for {}", waits.join(", and for "));
    }
    let problems = [
        unmeasured(context),
        unregistered(context),
        failing(context),
        without_proxy(context),
    ];
    for problem in problems.into_iter().flatten() {
        text += &format!("; {problem}");
    }
    text
}

/// The reason for the split.
pub(super) fn why(context: &StatusContext) -> String {
    let assessment = context.assessment;
    let capacity = &assessment.capacity;
    let obstacles = || listed(&assessment.gate.obstacles);
    let workers = || {
        let (old, new) = (ready(&capacity.old), ready(&capacity.new));
        format!("old has {old}, and new has {new}")
    };
    match context.rule {
        Rule::Superseded => {
            let other = assessment.seen.superseded_by.as_deref().unwrap_or_default();
            format!("the update {other} controls this deployment, so this one has no effect")
        }
        Rule::NeitherCanServe => format!(
            "neither generation can serve, so nothing changes; old: {}; new: {}",
            listed(&without_workers(&capacity.old)),
            obstacles()
        ),
        Rule::NewCannotServe => format!("new cannot serve: {}", obstacles()),
        Rule::OldCannotServe => {
            // Otherwise users wait for an end that never comes.
            let hint = if !assessment.old_was_found {
                "; no worker of old was ever found, so it remains the fallback: correct spec.sourceDeployment or \
                 spec.workers.old, or pause with all to new to end the update"
            } else if assessment.settings.drain_old {
                ""
            } else if assessment.old_is_wanted() {
                "; old remains the fallback while its desired size is above 0: to end the update, scale its workers to 0 or set \
                     spec.drainOld"
            } else {
                ""
            };
            format!("{}{}{hint}", workers(), overridden(context))
        }
        Rule::Paused if Some(context.next) == context.memory.held => {
            format!("paused; {}", workers())
        }
        Rule::Paused => match context.memory.held {
            Some(held) => format!(
                "paused, and {} will be held again; {}",
                share(held),
                workers()
            ),
            None => format!("paused; {}", workers()),
        },
        Rule::AnalysisFailed => {
            let failed = analysis_failed(context).unwrap_or_default();
            format!("{failed}; {}", workers())
        }
        Rule::Step => {
            let step = context.memory.trial.step(assessment.settings);
            format!(
                "held at the step of {}%{}; {}",
                step.map_or(100, |step| step.percent),
                by_capacity(context),
                workers()
            )
        }
        Rule::Cap => {
            let cap = assessment.settings.cap_percent.unwrap_or(100);
            format!(
                "held at the cap of {cap}%{}; {}",
                by_capacity(context),
                workers()
            )
        }
        Rule::DrainOld => format!("spec.drainOld is true; {}", workers()),
        Rule::Capacity => workers(),
    }
}

/// A statement that new has failed the analysis, if it has.
pub(super) fn analysis_failed(context: &StatusContext) -> Option<String> {
    let failure = context.memory.trial.failure.as_ref()?;
    Some(format!("new failed the analysis: {}", failure.clause()))
}

/// Which settings an emergency overrides.
fn overridden(context: &StatusContext) -> String {
    let settings = context.assessment.settings;
    let pause = settings.paused.then_some("pause");
    let is_over = at_most(context.next, settings.cap_percent) != context.next;
    match (pause, is_over.then_some("cap")) {
        (Some(pause), Some(cap)) => format!(" (overrides {pause} and {cap})"),
        (Some(over), None) | (None, Some(over)) => format!(" (overrides the {over})"),
        (None, None) => String::new(),
    }
}

fn by_capacity(context: &StatusContext) -> String {
    let credit = context.memory.credit.as_ref();
    let weights =
        credit.and_then(|credit| Ratio::weights(credit.old.capacity, credit.new.capacity));
    weights.map_or_else(String::new, |weights| {
        format!(", although capacity would give {}", share(weights))
    })
}

/// `weights` for users: the percentage, and the exact ratio if it adds information.
pub(super) fn share(weights: Weights) -> String {
    match weights {
        Weights::ALL_OLD => "all to old".to_owned(),
        Weights::ALL_NEW => "all to new".to_owned(),
        weights => format!(
            "{}% to new (old {} : new {})",
            weights.rounded_percent(),
            weights.old(),
            weights.new_weight()
        ),
    }
}

/// The ready workers of a generation, as text.
fn ready(capacity: &Capacity) -> String {
    let of = |counts: &RoleCapacity, noun: &str| match counts.full {
        Some(full) => format!("{} of {}", counts.ready, counted(full.into(), noun)),
        None => format!("{} of an unknown number of {noun}s", counts.ready),
    };
    if capacity.roles.is_empty() {
        return "no workers".to_owned();
    }
    let roles = capacity.roles.iter().map(|(role, counts)| match role {
        Role::Worker => of(counts, "worker"),
        half => of(counts, &format!("{half} worker")),
    });
    format!("{} ready", roles.collect::<Vec<_>>().join(" and "))
}

/// The size that the user must specify before new can get a share.
pub(super) fn unmeasured(context: &StatusContext) -> Option<String> {
    let capacity = &context.assessment.capacity.new;
    let role = capacity.unmeasured().next().filter(|_| capacity.serves)?;
    Some(format!(
        "old has no {}, so the full size of new is unknown: set it in spec.workers.new.replicas.{role}",
        role.workers()
    ))
}

/// How many workers of new are ready but get no request yet.
fn unregistered(context: &StatusContext) -> Option<String> {
    let count = context.assessment.unregistered();
    let are = are(count.into());
    let workers = plural(count.into(), "worker");
    (count > 0).then(|| {
        format!("{count} more {workers} of new {are} ready, but not registered with its frontends")
    })
}

/// How many frontends of new fail, if others serve.
pub(super) fn failing(context: &StatusContext) -> Option<String> {
    let gate = &context.assessment.gate;
    let cause = gate.cause.as_ref()?;
    (gate.failing < gate.queried).then(|| {
        format!(
            "{} of {} of new cannot serve, which reduces its capacity by that share: {cause}",
            gate.failing,
            counted(gate.queried as u64, "frontend")
        )
    })
}

/// A statement that no proxy applies the split, if so. The frontends of a complete update may be gone.
pub(super) fn without_proxy(context: &StatusContext) -> Option<String> {
    let proxies = &context.assessment.proxies;
    let may_be_gone = context.phase == Phase::Complete && proxies.are_none();
    if context.rule == Rule::Superseded || may_be_gone || !proxies.are_unreachable() {
        return None;
    }
    let found = if proxies.are_none() {
        "no frontend of old was found".to_owned()
    } else {
        let frontends = listed(&proxies.lagging_alive);
        format!("no frontend of old has a proxy that can be queried: {frontends}")
    };
    Some(format!(
        "{found}, so the plan in force is unknown, and the update cannot end: check that spec.sourceDeployment \
         names old, that the pods of its frontends have the right labels, and that they have the sidecar"
    ))
}

/// Which proxies lag.
pub(super) fn lag(context: &StatusContext) -> String {
    let names = &context.assessment.proxies.lagging;
    format!(
        "not every proxy applied the last change in time: {}",
        listed(names)
    )
}
