//! An update as the API server stores it, and its plan for a proxy in the same namespace.

use serde_json::Value as Json;

use super::{
    DynamoUpdateConfigSpec, Identity, Manifest, Plan, Problem, Problems, TargetScope, WeightsSpec,
    cap::is_lifted, last_valid::LastValidStatus, phase::UpdatePhase, precedence::Contender, schema,
    target::TargetAddress, tree::Node, validate::validate,
};
use crate::split::Weights;

/// The field manager for the fields of an update that the controller writes.
pub const UPDATE_MANAGER: &str = "crossfade-controller";

/// An update from a cluster, not yet validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The name of the update and the generation of the edit.
    pub identity: Identity,
    /// `metadata.creationTimestamp`, in seconds since 1970.
    pub created: i64,
    /// `spec`, as it was written.
    pub spec: Json,
    /// The parts of `status` that matter to a proxy.
    pub status: ReportedStatus,
}

/// The part of the status of an update that proxies read. Only the controller may write it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportedStatus {
    /// `status.phase`, if it is known.
    pub phase: Option<UpdatePhase>,
    /// The cap that the controller lifted because it found no ready worker of old (`status.liftedCapPercent`). It may have
    /// been reported for an earlier spec, and still holds while the cap is the same and all requests should go to new.
    pub lifted_cap: Option<u8>,
    /// The last split that the controller wanted (`status.wanted`). It applies while the spec gives none, so that replacing
    /// the whole spec by one without a split moves no traffic.
    pub wanted: Option<Weights>,
    /// The capacity of old in percent of its full size (`status.old.capacityPercent`).
    pub old_capacity: Option<u32>,
    /// The last valid spec, while the current one is invalid (`status.lastValid`).
    pub last_valid: Option<Box<LastValidStatus>>,
}

impl ReportedStatus {
    /// Reads a status. Fields that cannot be parsed are ignored.
    #[cfg(feature = "kube")]
    #[must_use]
    pub fn of(status: &Json) -> Self {
        fn read<T: serde::de::DeserializeOwned>(value: Option<&Json>) -> Option<T> {
            serde_json::from_value(value?.clone()).ok()
        }
        Self {
            phase: read(status.get("phase")),
            lifted_cap: read(status.get("liftedCapPercent")),
            old_capacity: read(status.pointer("/old/capacityPercent")),
            wanted: read(status.get("wanted"))
                .and_then(|split: super::status::SplitStatus| split.exact()),
            last_valid: read(status.get("lastValid")),
        }
    }
}

impl Update {
    /// `metadata.name`
    #[must_use]
    pub fn name(&self) -> &str {
        self.identity.name.as_deref().unwrap_or_default()
    }

    /// `spec.sourceDeployment`
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        self.spec.get("sourceDeployment")?.as_str()
    }

    /// The fields that decide the precedence of the update.
    #[must_use]
    pub fn contender(&self) -> Contender<'_> {
        Contender {
            name: self.name(),
            created: self.created,
            supersedes: self.spec.get("supersedes").and_then(Json::as_str),
        }
    }

    /// This update with its last valid spec, if the controller uses that instead of this edit.
    #[must_use]
    pub fn by_last_valid(&self) -> Option<Self> {
        let valid = self.status.last_valid.as_ref()?;
        (Some(valid.instead_of) == self.identity.generation).then(|| Self {
            identity: Identity {
                // An earlier edit is in force instead of this one.
                generation: Some(valid.generation),
                ..self.identity.clone()
            },
            created: self.created,
            spec: valid.spec.clone(),
            status: ReportedStatus {
                last_valid: None,
                ..self.status.clone()
            },
        })
    }

    /// The plan, with every target restricted to `scope`.
    ///
    /// Ignores unknown fields: the resource may have been written for a newer proxy, with a newer definition.
    ///
    /// # Errors
    ///
    /// All problems of the spec.
    pub fn plan(&self, scope: &TargetScope) -> Result<(Manifest, Plan), Problems> {
        let mut problems = Problems::default();
        let known = schema::only_known(&self.spec);
        let spec = schema::read(&Node::from(known), &mut problems)
            .filter(|_| problems.is_empty())
            .map(|fields| serde_json::from_value(Json::Object(fields)));
        let mut spec: DynamoUpdateConfigSpec = match spec {
            Some(Ok(spec)) => spec,
            Some(Err(error)) => return Err(Problems::one("spec", error.to_string())),
            None => return Err(problems),
        };
        let unless_given = self.status.wanted.unwrap_or(Weights::ALL_OLD);
        let plan = validate(
            self.identity.clone(),
            &spec,
            Some(unless_given),
            &mut problems,
        );
        let Some(mut plan) = plan.filter(|_| problems.is_empty()) else {
            return Err(problems);
        };
        within(scope, &mut plan)?;
        let cap = spec.max_traffic_split_percent;
        if let Some(wanted) = plan.capped_from
            && is_lifted(cap, self.status.lifted_cap, wanted.is_all_new())
        {
            (plan.weights, plan.capped_from) = (wanted, None);
        }
        plan.old_drains |= self.status.phase.is_some_and(UpdatePhase::old_drains);
        if let Some(wanted) = self.status.wanted.filter(|_| !spec.gives_split()) {
            // The manifest may be saved, but without the status.
            let (old, new) = (wanted.old(), wanted.new_weight());
            spec.weights = Some(WeightsSpec { old, new });
        }
        let manifest = Manifest {
            identity: self.identity.clone(),
            spec,
            without_effect: Vec::new(),
        };
        Ok((manifest, plan))
    }
}

/// Expands the targets of `plan` and checks that they are within `scope`.
fn within(scope: &TargetScope, plan: &mut Plan) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let mut reached: Vec<TargetAddress> = Vec::with_capacity(plan.new.len());
    for target in &plan.new {
        match scope.of(target) {
            Ok(target) => reached.push(target),
            Err(error) => {
                problems.push(Problem::new("spec.newFrontendService", error.to_string()));
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut once: Vec<TargetAddress> = Vec::with_capacity(reached.len());
    for target in reached {
        let same = |known: &TargetAddress| (&known.host, known.port) == (&target.host, target.port);
        if !once.iter().any(same) {
            once.push(target);
        }
    }
    plan.new = once;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn update(spec: Json) -> Update {
        Update {
            identity: Identity {
                name: Some("u".into()),
                generation: Some(3),
                ..Identity::default()
            },
            created: 0,
            spec,
            status: ReportedStatus::default(),
        }
    }

    fn scope() -> TargetScope {
        TargetScope {
            namespace: "default".into(),
            domain: "cluster.local".into(),
            anywhere: false,
        }
    }

    fn problems(spec: Json) -> String {
        update(spec).plan(&scope()).unwrap_err().to_string()
    }

    #[test]
    fn an_update_is_a_plan_by_the_whole_name_of_its_service() {
        let (manifest, plan) = update(json!({
            "newFrontendService": "new:8000", "trafficSplitPercent": 25, "sourceDeployment": "old",
        }))
        .plan(&scope())
        .unwrap();
        assert_eq!(
            plan.new[0].to_string(),
            "http://new.default.svc.cluster.local:8000"
        );
        assert_eq!(plan.identity.generation, Some(3));
        assert_eq!(manifest.spec.new_frontend_service, "new:8000");
        assert!(manifest.without_effect.is_empty());
    }

    #[test]
    fn fields_of_a_newer_definition_are_ignored() {
        let newer = json!({
            "newFrontendService": "new:8000", "trafficSplitPercent": 25, "mirror": {"percent": 1},
            "failover": {"holdSeconds": 1, "later": true},
        });
        let (_, plan) = update(newer).plan(&scope()).unwrap();
        assert_eq!(plan.failover.hold.as_secs(), 1);
    }

    #[test]
    fn problems_are_reported_as_for_a_file() {
        let said = problems(json!({"newFrontendService": "new:8000", "trafficSplitPercent": 101}));
        assert_eq!(
            said,
            "spec.trafficSplitPercent: must be from 0 to 100, not 101"
        );
        let said = problems(json!({"newFrontendService": "1.1.1.1:80", "trafficSplitPercent": 1}));
        assert!(
            said.starts_with("spec.newFrontendService: http://1.1.1.1:80 is an address"),
            "{said}"
        );
        assert!(problems(json!("text")).starts_with("spec: must be an object"));
    }

    #[test]
    fn a_certificate_is_that_of_the_name_as_it_was_written_for_each_target() {
        let spec = json!({"newFrontendService": "https://new,https://other.default", "trafficSplitPercent": 1});
        let plan = update(spec).plan(&scope()).unwrap().1;
        let called: Vec<_> = plan
            .new
            .iter()
            .map(|target| target.called().to_string())
            .collect();
        assert_eq!(called, ["new", "other.default"]);
        assert_eq!(plan.tls, None);
    }

    #[test]
    fn one_service_by_two_names_is_one_target() {
        let spec = json!({"newFrontendService": "new:80,new.default:80", "trafficSplitPercent": 1});
        assert_eq!(update(spec).plan(&scope()).unwrap().1.new.len(), 1);
    }

    #[test]
    fn the_cap_does_not_keep_requests_on_an_old_generation_that_is_out() {
        for (split, lifted_cap, expected) in [
            (100, None, 25),
            (100, Some(25), 100),
            (50, Some(25), 25),
            // A different cap was lifted.
            (100, Some(50), 25),
        ] {
            let update = Update {
                status: ReportedStatus {
                    lifted_cap,
                    ..ReportedStatus::default()
                },
                ..update(json!({
                    "newFrontendService": "new:80", "trafficSplitPercent": split,
                    "maxTrafficSplitPercent": 25,
                }))
            };
            let (_, plan) = update.plan(&scope()).unwrap();
            assert_eq!(
                plan.weights.rounded_percent(),
                expected,
                "{split} {lifted_cap:?}"
            );
        }
    }

    #[test]
    fn a_split_that_is_not_given_is_as_the_controller_wanted_it_last_and_at_first_all_to_old() {
        let spec = json!({"newFrontendService": "new:80", "maxTrafficSplitPercent": 50});
        for (wanted, expected, capped) in [
            (None, Weights::ALL_OLD, None),
            (Weights::new(2, 1).ok(), Weights::new(2, 1).unwrap(), None),
            (
                Some(Weights::ALL_NEW),
                Weights::new(1, 1).unwrap(),
                Some(Weights::ALL_NEW),
            ),
        ] {
            let update = Update {
                status: ReportedStatus {
                    wanted,
                    ..ReportedStatus::default()
                },
                ..update(spec.clone())
            };
            let (manifest, plan) = update.plan(&scope()).unwrap();
            assert_eq!((plan.weights, plan.capped_from), (expected, capped));
            // If there is a split, the manifest contains it, so that a saved manifest keeps it across a restart.
            assert_eq!(manifest.spec.gives_split(), wanted.is_some());
            let again = Update {
                status: ReportedStatus::default(),
                spec: serde_json::to_value(&manifest.spec).unwrap(),
                ..update
            };
            assert_eq!(again.plan(&scope()).unwrap().1, plan);
        }
        // A split in the spec takes precedence.
        let update = Update {
            status: ReportedStatus {
                wanted: Some(Weights::ALL_NEW),
                ..ReportedStatus::default()
            },
            ..update(json!({"newFrontendService": "new:80", "trafficSplitPercent": 25}))
        };
        let weights = update.plan(&scope()).unwrap().1.weights;
        assert_eq!(weights.rounded_percent(), 25);
    }

    #[cfg(feature = "kube")]
    #[test]
    fn an_edit_that_cannot_be_used_is_replaced_by_what_the_controller_goes_by_instead() {
        let mut update = update(json!({"newFrontendService": "new:0", "trafficSplitPercent": 0}));
        assert_eq!(update.by_last_valid(), None);
        let valid = json!({"newFrontendService": "new:80", "trafficSplitPercent": 25});
        let status = |instead_of: i64| {
            json!({
                "phase": "Degraded", "old": {"capacityPercent": 75},
                "lastValid": {"generation": 2, "insteadOf": instead_of, "spec": valid},
            })
        };
        // Reported for an earlier edit: the controller has not seen this one yet.
        update.status = ReportedStatus::of(&status(2));
        assert_eq!(update.by_last_valid(), None);
        update.status = ReportedStatus::of(&status(3));
        let by_valid = update.by_last_valid().unwrap();
        let (_, plan) = by_valid.plan(&scope()).unwrap();
        assert_eq!(plan.weights.rounded_percent(), 25);
        assert_eq!(plan.identity.generation, Some(2));
        assert_eq!(by_valid.status.old_capacity, Some(75));
        // Values that another version wrote are ignored.
        let strange =
            json!({"phase": "Rewinding", "liftedCapPercent": 300, "lastValid": {"spec": {}}});
        assert_eq!(ReportedStatus::of(&strange), ReportedStatus::default());
        assert_eq!(ReportedStatus::of(&Json::Null), ReportedStatus::default());
    }

    #[test]
    fn old_is_not_a_fallback_once_the_controller_drains_it() {
        let spec = json!({"newFrontendService": "new:80", "trafficSplitPercent": 100});
        for (phase, drains) in [
            (None, false),
            (Some(UpdatePhase::Progressing), false),
            (Some(UpdatePhase::Draining), true),
            (Some(UpdatePhase::Complete), true),
        ] {
            let update = Update {
                status: ReportedStatus {
                    phase,
                    ..ReportedStatus::default()
                },
                ..update(spec.clone())
            };
            assert_eq!(
                update.plan(&scope()).unwrap().1.old_drains,
                drains,
                "{phase:?}"
            );
        }
    }
}
