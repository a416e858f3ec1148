//! Tests each rule by example.

#[cfg(test)]
mod capacity;
#[cfg(test)]
mod completion;
#[cfg(test)]
mod credit;
#[cfg(test)]
mod drain_old;
#[cfg(test)]
mod end;
#[cfg(test)]
mod frontends;
#[cfg(test)]
mod gate;
#[cfg(test)]
mod gone;
#[cfg(test)]
mod people;
#[cfg(test)]
mod registered;
#[cfg(test)]
mod reporting;
#[cfg(test)]
mod requirements;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod trial;

use super::*;

/// The reasons of the decision's events.
fn reasons(decision: &Decision) -> Vec<&'static str> {
    decision.events.iter().map(|event| event.reason).collect()
}

fn holds(decision: &Decision, kind: ConditionKind) -> (bool, &'static str) {
    let mut conditions = decision.conditions.iter();
    let condition = conditions.find(|condition| condition.kind == kind);
    condition
        .map(|condition| (condition.holds, condition.reason))
        .expect("all are always there")
}
