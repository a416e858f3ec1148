//! The observed updates of a namespace, and what they mean for one deployment. Pure: performs no I/O.
//!
//! Does not depend on how the updates were observed or on the plan in force.

use std::collections::BTreeMap;

use crate::resource::precedence::{self, Standing};
use crate::resource::{Identity, Manifest, Plan, Problems, TargetScope, Update};

/// The updates of a namespace by name.
#[derive(Debug, Default)]
pub(super) struct View(BTreeMap<String, Update>);

/// The decision for one deployment.
#[derive(Debug, PartialEq)]
pub(super) struct PrecedenceDecision {
    /// The update in effect, with its plan; `None` if there is no update.
    pub active: Option<ActiveUpdate>,
    /// The updates that have no effect.
    pub conflicts: Vec<Conflict>,
}

#[derive(Debug, PartialEq)]
pub(super) struct ActiveUpdate {
    pub identity: Identity,
    pub plan: Result<(Manifest, Plan), Problems>,
    /// If the plan is invalid: the plan that the controller uses instead.
    pub instead: Option<(Manifest, Plan)>,
}

impl ActiveUpdate {
    /// The plan to put in force.
    pub fn best(self) -> Option<(Manifest, Plan)> {
        self.plan.ok().or(self.instead)
    }
}

/// An update without effect, because another update controls its deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub loser: Identity,
    pub active: String,
}

impl Conflict {
    pub fn text(&self) -> String {
        let loser = self.loser.name.as_deref().unwrap_or_default();
        let active = &self.active;
        format!(
            "update '{loser}' has no effect: the older '{active}' controls the same deployment; delete one of them, or name \
             '{active}' in spec.supersedes of '{loser}'"
        )
    }
}

/// Whether an update is for the deployment with the names `own`.
pub(super) fn is_own(update: &Update, own: &[String]) -> bool {
    own.iter().any(|name| update.source() == Some(name))
}

impl View {
    pub fn replace(&mut self, all: Vec<Update>) {
        self.0.clear();
        all.into_iter().for_each(|update| self.set(update));
    }

    pub fn set(&mut self, update: Update) {
        self.0.insert(update.name().to_owned(), update);
    }

    pub fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Whether the view has this update, matched by UID, regardless of its spec.
    pub fn has(&self, identity: &Identity) -> bool {
        self.find(identity).is_some()
    }

    /// Whether the view has this update and it is for the deployment with the names `own`.
    pub fn holds(&self, identity: &Identity, own: &[String]) -> bool {
        self.find(identity)
            .is_some_and(|update| is_own(update, own))
    }

    /// Finds this update by name and UID.
    pub fn find(&self, identity: &Identity) -> Option<&Update> {
        let known = self.0.get(identity.name.as_deref()?)?;
        (known.identity.uid == identity.uid).then_some(known)
    }

    /// Decides for the deployment with the names `own`.
    pub fn resolve(&self, own: &[String], scope: &TargetScope) -> PrecedenceDecision {
        let updates = self.0.values().filter(|update| is_own(update, own));
        let updates: Vec<_> = updates.collect();
        let contenders: Vec<_> = updates.iter().map(|update| update.contender()).collect();
        let Some(precedence) = precedence::resolve(&contenders) else {
            return PrecedenceDecision {
                active: None,
                conflicts: Vec::new(),
            };
        };
        let active = updates[precedence.active];
        let plan = active.plan(scope);
        let by_last_valid = plan.is_err().then(|| active.by_last_valid()).flatten();
        let losers = updates.iter().zip(&precedence.standings);
        let losers = losers.filter(|(_, standing)| **standing == Standing::Conflicts);
        PrecedenceDecision {
            conflicts: losers
                .map(|(loser, _)| Conflict {
                    loser: loser.identity.clone(),
                    active: active.name().to_owned(),
                })
                .collect(),
            active: Some(ActiveUpdate {
                identity: active.identity.clone(),
                plan,
                instead: by_last_valid.and_then(|valid| valid.plan(scope).ok()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resource::ReportedStatus;

    fn update(name: &str, created: i64, source: &str, percent: u8) -> Update {
        Update {
            identity: Identity {
                name: Some(name.into()),
                ..Identity::default()
            },
            created,
            spec: json!({
                "newFrontendService": "new:80", "trafficSplitPercent": percent, "sourceDeployment": source,
            }),
            status: ReportedStatus::default(),
        }
    }

    fn resolve(view: &View) -> (Option<u8>, Vec<String>) {
        let scope = TargetScope {
            namespace: "default".into(),
            domain: "cluster.local".into(),
            anywhere: false,
        };
        let decision = view.resolve(&["mine".to_owned(), "mine-too".to_owned()], &scope);
        let percent = decision
            .active
            .map(|active| active.plan.unwrap().1.weights.rounded_percent());
        (
            percent,
            decision.conflicts.iter().map(Conflict::text).collect(),
        )
    }

    #[test]
    fn only_updates_of_the_own_deployment_count() {
        let mut view = View::default();
        assert_eq!(resolve(&view), (None, vec![]));
        view.set(update("a", 1, "other", 10));
        assert_eq!(resolve(&view), (None, vec![]));
        view.set(update("b", 2, "mine-too", 20));
        assert_eq!(resolve(&view), (Some(20), vec![]));
        view.set(update("b", 2, "other", 20));
        assert_eq!(resolve(&view), (None, vec![]));
    }

    #[test]
    fn an_update_is_identified_by_its_uid_and_not_by_its_name() {
        let own = ["mine".to_owned()];
        let of = |uid: &str, source: &str| {
            let mut update = update("a", 1, source, 10);
            update.identity.uid = Some(uid.into());
            update
        };
        let known = of("one", "mine").identity;
        let mut view = View::default();
        assert!(!view.has(&known));
        view.set(of("one", "mine"));
        assert!(view.has(&known) && view.holds(&known, &own));
        // Edited to name another deployment, then deleted and created again.
        view.set(of("one", "other"));
        assert!(view.has(&known) && !view.holds(&known, &own));
        view.set(of("two", "mine"));
        assert!(!view.has(&known) && !view.holds(&known, &own));
    }

    #[test]
    fn objects_missing_from_a_list_are_gone() {
        let mut view = View::default();
        view.set(update("a", 1, "mine", 10));
        view.replace(vec![update("b", 2, "mine", 20)]);
        assert_eq!(resolve(&view), (Some(20), vec![]));
        view.remove("b");
        assert_eq!(resolve(&view), (None, vec![]));
    }

    #[test]
    fn the_younger_one_reports_that_it_has_no_effect() {
        let mut view = View::default();
        view.set(update("b", 1, "mine", 10));
        view.set(update("a", 2, "mine", 20));
        let (percent, text) = resolve(&view);
        assert_eq!(percent, Some(10));
        assert!(
            text[0].starts_with("update 'a' has no effect: the older 'b' controls"),
            "{text:?}"
        );
    }
}
