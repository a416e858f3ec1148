//! The rules, in order: the first that applies decides the split. Whether a move has to wait is decided in
//! [`step()`](super::step()).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PerGeneration, Ratio, UpdateSettings};
use crate::split::Weights;

/// What decides the split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Rule {
    /// Another resource takes precedence: this one changes nothing.
    Superseded,
    /// Neither generation can serve: nothing changes.
    NeitherCanServe,
    /// New cannot serve: all to old.
    NewCannotServe,
    /// Old has no ready worker and new can serve: all to new.
    OldCannotServe,
    /// New has failed the analysis: all to old, or no more to new.
    AnalysisFailed,
    /// Paused: the held split stays.
    Paused,
    /// A user drains old: all to new.
    DrainOld,
    /// Capacity would give new more than a step that has not been passed yet.
    Step,
    /// Capacity would give new more than the cap.
    Cap,
    /// By capacity.
    Capacity,
}

impl Rule {
    /// Every rule, in order of precedence.
    pub const ALL: [Self; 10] = [
        Self::Superseded,
        Self::NeitherCanServe,
        Self::NewCannotServe,
        Self::OldCannotServe,
        Self::AnalysisFailed,
        Self::Paused,
        Self::DrainOld,
        Self::Step,
        Self::Cap,
        Self::Capacity,
    ];

    /// The reason in conditions and events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Superseded => "Superseded",
            Self::NeitherCanServe => "NeitherCanServe",
            Self::NewCannotServe => "NewCannotServe",
            Self::OldCannotServe => "OldCannotServe",
            Self::AnalysisFailed => "AnalysisFailed",
            Self::Paused => "Paused",
            Self::DrainOld => "DrainOld",
            Self::Step => "Step",
            Self::Cap => "Cap",
            Self::Capacity => "Capacity",
        }
    }
}

/// The inputs of [`decide`].
pub(super) struct RuleInput<'a> {
    pub settings: &'a UpdateSettings,
    pub superseded: bool,
    /// Whether each generation can serve right now.
    pub serves: PerGeneration<bool>,
    /// The credited capacity.
    pub credit: PerGeneration<Ratio>,
    /// The current split.
    pub present: Weights,
    /// The split that a pause holds.
    pub held: Weights,
    /// Whether new has failed the analysis and gets no more requests.
    pub rolled_back: bool,
    /// The most that the analysis and the steps leave to new.
    pub limit: Option<Limit>,
}

/// The most that new may get, and by which rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub rule: Rule,
    pub most: Weights,
}

/// Where the split should move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitMove {
    /// It stays.
    Stay,
    /// Move immediately, away from a generation that cannot serve.
    Immediately(Weights),
    /// Move once the required waits are over.
    AfterWait(Weights),
}

/// Returns the first rule that applies, and where the split should move.
pub(super) fn decide(view: &RuleInput) -> (Rule, SplitMove) {
    let settings = view.settings;
    let strictly_paused = settings.strict && settings.paused;
    // A generation that recovers has no credit yet. Until it does, the other generation keeps everything.
    let old_is_out = view.credit.old.is_zero();
    match (view.serves.old, view.serves.new) {
        _ if view.superseded => (Rule::Superseded, SplitMove::Stay),
        (false, false) => (Rule::NeitherCanServe, SplitMove::Stay),
        _ if strictly_paused => (Rule::Paused, toward_held(view)),
        (_, false) => (
            Rule::NewCannotServe,
            SplitMove::Immediately(Weights::ALL_OLD),
        ),
        (_, true) if old_is_out && settings.strict => {
            capped(settings, None, Weights::ALL_NEW, SplitMove::Immediately)
        }
        (_, true) if old_is_out => (
            Rule::OldCannotServe,
            SplitMove::Immediately(Weights::ALL_NEW),
        ),
        _ if view.rolled_back => (
            Rule::AnalysisFailed,
            SplitMove::Immediately(Weights::ALL_OLD),
        ),
        _ if settings.paused => (Rule::Paused, toward_held(view)),
        // As for any gain, new's capacity must have lasted first.
        _ if settings.drain_old && !view.credit.new.is_zero() => {
            let (rule, aim) = capped(settings, view.limit, Weights::ALL_NEW, SplitMove::AfterWait);
            let is_whole = rule == Rule::OldCannotServe;
            (if is_whole { Rule::DrainOld } else { rule }, aim)
        }
        _ => match Ratio::weights(view.credit.old, view.credit.new) {
            Some(weights) => capped(settings, view.limit, weights, SplitMove::AfterWait),
            None => (Rule::Capacity, SplitMove::Stay),
        },
    }
}

/// Returns to the held split after an override, once the generation that gains from it has credit again.
fn toward_held(view: &RuleInput) -> SplitMove {
    let held = at_most(view.held, view.settings.cap_percent);
    let gains_new = is_more(held, view.present);
    let gainer = if gains_new {
        view.credit.new
    } else {
        view.credit.old
    };
    if view.held == view.present || gainer.is_zero() {
        SplitMove::Stay
    } else {
        SplitMove::AfterWait(held)
    }
}

fn capped(
    settings: &UpdateSettings,
    limit: Option<Limit>,
    weights: Weights,
    aim: fn(Weights) -> SplitMove,
) -> (Rule, SplitMove) {
    let within = at_most(weights, settings.cap_percent);
    if let Some(limit) = limit.filter(|limit| is_more(within, limit.most)) {
        return (limit.rule, aim(limit.most));
    }
    let rule = match weights {
        _ if within != weights => Rule::Cap,
        Weights::ALL_NEW => Rule::OldCannotServe,
        _ => Rule::Capacity,
    };
    (rule, aim(within))
}

/// `weights`, limited to the cap.
pub(super) fn at_most(weights: Weights, cap_percent: Option<u8>) -> Weights {
    match cap_percent.and_then(|percent| Weights::percent(percent).ok()) {
        Some(cap) if is_more(weights, cap) => cap,
        _ => weights,
    }
}

/// Whether new gets more with `a` than with `b`.
pub(super) fn is_more(a: Weights, b: Weights) -> bool {
    let cross = |a: Weights, b: Weights| u64::from(a.new_weight()) * u64::from(b.old());
    cross(a, b) > cross(b, a)
}
