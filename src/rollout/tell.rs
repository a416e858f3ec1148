//! The story for people: conditions and events.
//!
//! Decides nothing. Whatever is said holds no times, so that a status changes only when something happens.

use super::{
    Obstacle, Phase, Rule,
    gate::listed,
    words::{Tale, failing, lag, message, share, unmeasured, why, without_proxy},
};

/// A condition of the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Which.
    pub kind: ConditionKind,
    /// Does it hold?
    pub holds: bool,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// In a person's words.
    pub message: String,
}

/// The conditions there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionKind {
    /// The resource is valid and rules its deployment.
    Accepted,
    /// New can serve.
    NewFrontendReady,
    /// The split moves, or will when what it waits for comes.
    Progressing,
    /// A person or the cap holds the split.
    Paused,
    /// Old is done with.
    Complete,
    /// Something is not as it should be.
    Degraded,
    /// Nothing moves and nothing is wrong: it is complete, or held. The first of the three of kstatus, of which one holds.
    Ready,
    /// It moves, or will when what it waits for comes.
    Reconciling,
    /// It does not get on by itself.
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
            Self::Degraded => "Degraded",
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
        }
    }
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Is it a `Warning`? Else `Normal`.
    pub is_warning: bool,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// In a person's words.
    pub message: String,
}

/// All conditions, always in the same order.
pub(super) fn conditions(tale: &Tale) -> Vec<Condition> {
    use ConditionKind::{Accepted, Complete, NewFrontendReady, Paused, Progressing};
    let settings = tale.sight.settings;
    let is_superseded = tale.rule == Rule::Superseded;
    let is_complete = tale.phase == Phase::Complete;
    let why = why(tale);
    let condition = |kind, holds, reason, message: &str| Condition {
        kind,
        holds,
        reason,
        message: message.to_owned(),
    };
    let progressing = match tale.rule {
        _ if is_complete => condition(Progressing, false, "Complete", "old is done with"),
        rule @ (Rule::Superseded | Rule::Paused) => {
            condition(Progressing, false, rule.as_str(), &why)
        }
        _ if tale.phase == Phase::Draining => condition(Progressing, true, "Draining", &why),
        rule => condition(Progressing, true, rule.as_str(), &why),
    };
    let accepted = if is_superseded {
        "Superseded"
    } else {
        "Accepted"
    };
    // Who holds the split, if anybody does.
    let (is_held, holder, held) = match tale.rule {
        _ if settings.paused => (true, "Paused", "spec.paused is true"),
        Rule::Cap => (true, "Cap", "capacity would give new more than the cap"),
        _ => (false, "NotPaused", "spec.paused is not true"),
    };
    let (gate, obstacles) = match tale.sight.gate.obstacles.first() {
        None => match failing(tale) {
            Some(failing) => ("FrontendsFail", failing),
            None => ("Serving", "it serves every model that is wanted".to_owned()),
        },
        Some(first) => (reason(first), listed(&tale.sight.gate.obstacles)),
    };
    let complete = if is_complete {
        "old is done with"
    } else {
        "old still has a part in it"
    };
    let mut all = vec![
        condition(
            Accepted,
            !is_superseded,
            accepted,
            if is_superseded {
                &why
            } else {
                "it rules its deployment"
            },
        ),
        condition(
            NewFrontendReady,
            tale.sight.gate.obstacles.is_empty(),
            gate,
            &obstacles,
        ),
        progressing,
        condition(Paused, is_held, holder, held),
        condition(Complete, is_complete, tale.phase.as_str(), complete),
        degraded(tale),
    ];
    all.extend(standard(&all, is_held));
    all
}

/// The conditions by which tools that know nothing of updates wait for one or take it for failed (kstatus of
/// kubernetes-sigs/cli-utils): exactly one of them holds.
fn standard(all: &[Condition], is_held: bool) -> [Condition; 3] {
    use ConditionKind::{Accepted, Complete, Degraded, Progressing, Ready, Reconciling, Stalled};
    let of = |kind| all.iter().find(|condition| condition.kind == kind);
    let told = |kind, holds| of(kind).filter(|condition| condition.holds == holds);
    let stalled = told(Accepted, false).or(told(Degraded, true));
    let settled = told(Complete, true).or_else(|| of(ConditionKind::Paused).filter(|_| is_held));
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

/// Is something wrong that time alone will not mend?
fn degraded(tale: &Tale) -> Condition {
    let outage = match tale.rule {
        Rule::Superseded => None,
        Rule::NeitherCanServe => Some(why(tale)),
        Rule::OldCannotServe => (!tale.sight.old_is_given_up()).then(|| why(tale)),
        // A new generation that is not there yet is no fault, nor one that is taken back; one that should hold a share is.
        Rule::NewCannotServe => {
            let held = tale.memory.held.is_some_and(|held| !held.is_all_old());
            let fell_over = tale.memory.new_had_share && tale.sight.new_is_wanted();
            (held || fell_over).then(|| why(tale))
        }
        Rule::Paused | Rule::DrainOld | Rule::Cap | Rule::Capacity => None,
    };
    let without_proxy = without_proxy(tale);
    let lag = tale.sight.is_lagging().then(|| lag(tale));
    let is_unknown = tale.rule != Rule::Superseded
        && tale
            .sight
            .gate
            .obstacles
            .contains(&Obstacle::OldModelsUnknown);
    let (reason, message) = match (outage, unmeasured(tale), lag) {
        _ if without_proxy.is_some() => ("NoProxy", without_proxy.unwrap_or_default()),
        _ if is_unknown => ("OldModelsUnknown", Obstacle::OldModelsUnknown.to_string()),
        (Some(outage), ..) => (tale.rule.as_str(), outage),
        (None, Some(unmeasured), _) => ("FullSizeUnknown", unmeasured),
        (None, None, Some(lag)) => ("ProxiesLag", lag),
        (None, None, None) => match (untried(tale), fails_in_part(tale)) {
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

/// Why new, which keeps what it has, can get nothing more.
fn untried(tale: &Tale) -> Option<Obstacle> {
    let sight = tale.sight;
    let is_kept =
        sight.gate.is_presumed && sight.gate.obstacles.is_empty() && !sight.seen.split.is_all_old();
    let trouble = sight.seen.frontends.new.trouble();
    match trouble.filter(|_| is_kept) {
        Some(trouble) => Some(Obstacle::NoAnswer(trouble.to_owned())),
        None => (is_kept && sight.wanted_is_unknown).then_some(Obstacle::OldModelsUnknown),
    }
}

/// That some frontends of new fail it since it had a share; of one that begins that is no fault.
fn fails_in_part(tale: &Tale) -> Option<String> {
    let has_begun = tale.rule != Rule::Superseded && tale.memory.new_had_share;
    failing(tale).filter(|_| has_begun)
}

/// What has happened by this step.
pub(super) fn events(tale: &Tale) -> Vec<Event> {
    let mut events = Vec::new();
    let mut event = |is_warning, reason, message| {
        events.push(Event {
            is_warning,
            reason,
            message,
        });
    };
    let present = tale.sight.seen.split;
    if tale.contested {
        let text = format!(
            "an edit of the split to {} is taken back; set spec.paused to hold a split of your own",
            share(present)
        );
        event(true, "SplitContested", text);
    }
    let is_warning =
        degraded(tale).holds || (tale.rule == Rule::NewCannotServe && !present.is_all_old());
    if tale.next != present {
        let from = share(present);
        event(
            is_warning,
            "SplitChanged",
            format!("from {from} to {}", message(tale)),
        );
    } else if tale.before.rule != Some(tale.rule) {
        event(is_warning, tale.rule.as_str(), message(tale));
    }
    if tale.before.phase != tale.phase {
        let text = match tale.phase {
            Phase::Draining => Some("all proxies send everything to new; old ends its streams"),
            Phase::Complete if tale.sight.proxies.old_is_empty() => {
                Some("no stream is left on old")
            }
            Phase::Complete => Some("the time for streams on old is over"),
            _ if tale.before.phase.old_drains() => Some("old is needed again"),
            _ => None,
        };
        if let Some(text) = text {
            event(false, tale.phase.as_str(), text.to_owned());
        }
    }
    if tale.lag_is_new {
        event(true, "ProxiesLag", lag(tale));
    }
    events
}
