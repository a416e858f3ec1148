//! The edits that a user makes to an update. They are shown before they are applied.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value as Json, json};

use crate::resource::status::AnalysisStatus;
use crate::resource::{DynamoUpdateConfig, DynamoUpdateConfigSpec, RETRIED_AT};
use crate::rollout::TrialVerdict;

/// The requested change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Sends this percentage to new, and pauses, since the controller would change it.
    Split(u8),
    /// Holds the split.
    Pause,
    /// Lets the split follow the workers again.
    Resume,
    /// Sends everything to new and lets old drain.
    DrainOld,
    /// Retries a new generation that has failed the analysis. Requested at this time.
    Retry(Timestamp),
}

/// One field that changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub section: Section,
    pub field: &'static str,
    /// Null if absent.
    pub from: Json,
    pub to: Json,
    /// Why it changes, if the user did not request it explicitly.
    pub why: &'static str,
}

/// Where a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Spec,
    Annotations,
}

impl Verb {
    /// The changes that it makes to an update; empty if there is nothing to change.
    #[must_use]
    pub fn changes(self, update: &DynamoUpdateConfig) -> Vec<Change> {
        match self {
            Self::Retry(at) => {
                let analysis = update
                    .status
                    .as_ref()
                    .and_then(|status| status.analysis.as_ref());
                retry(&update.metadata, analysis, at).into_iter().collect()
            }
            verb => verb.of_spec(&update.spec),
        }
    }

    fn of_spec(self, spec: &DynamoUpdateConfigSpec) -> Vec<Change> {
        let paused = |to: bool, why| Change {
            section: Section::Spec,
            field: "paused",
            from: json!(spec.paused),
            to: json!(to),
            why,
        };
        let drain_old = |to: bool, why| Change {
            section: Section::Spec,
            field: "drainOld",
            from: json!(spec.drain_old),
            to: json!(to),
            why,
        };
        let wanted = match self {
            Self::Split(percent) => vec![
                Change {
                    section: Section::Spec,
                    field: "trafficSplitPercent",
                    from: json!(spec.traffic_split_percent),
                    to: json!(percent),
                    why: "",
                },
                Change {
                    section: Section::Spec,
                    field: "weights",
                    from: json!(spec.weights),
                    to: Json::Null,
                    why: "replaced by the percentage",
                },
                paused(
                    true,
                    "so that the controller does not change the split; undo with `resume`",
                ),
            ],
            Self::Retry(_) => Vec::new(),
            Self::Pause => vec![paused(true, "the controller holds the split")],
            Self::Resume => vec![
                paused(false, "the split follows the workers again"),
                drain_old(false, "old gets its share again"),
            ],
            Self::DrainOld => vec![
                drain_old(
                    true,
                    "all requests go to new as soon as it can serve, and old drains",
                ),
                paused(false, "a pause would hold the split"),
            ],
        };
        let is_new = |change: &Change| {
            let is_off = |value: &Json| value.is_null() || *value == Json::Bool(false);
            change.from != change.to && !(is_off(&change.from) && is_off(&change.to))
        };
        wanted.into_iter().filter(is_new).collect()
    }

    /// A warning if something limits its effect.
    #[must_use]
    pub fn caveat(self, spec: &DynamoUpdateConfigSpec) -> Option<String> {
        let cap = spec.max_traffic_split_percent?;
        let percent = match self {
            Self::Split(percent) => percent,
            Self::DrainOld => 100,
            Self::Pause | Self::Resume | Self::Retry(_) => return None,
        };
        (percent > cap).then(|| {
            format!("warning: maxTrafficSplitPercent is {cap}, so new gets no more than {cap}%")
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Json| match value {
            Json::Null => "none".to_owned(),
            value => value.to_string(),
        };
        let (from, to) = (value(&self.from), value(&self.to));
        match self.section {
            Section::Spec => write!(f, "spec.{}: {from} -> {to}", self.field)?,
            Section::Annotations => write!(f, "annotation {}: {from} -> {to}", self.field)?,
        }
        match self.why {
            "" => Ok(()),
            why => write!(f, "   ({why})"),
        }
    }
}

/// The changes as a JSON merge patch (RFC 7396) of the displayed version of the resource: `version` is its
/// `metadata.resourceVersion`.
pub(super) fn patch(changes: &[Change], version: Option<&str>) -> Json {
    let of = |section| -> Map<String, Json> {
        let changes = changes.iter().filter(|change| change.section == section);
        changes
            .map(|change| (change.field.to_owned(), change.to.clone()))
            .collect()
    };
    let mut patch = json!({"metadata": {"resourceVersion": version}});
    let (spec, annotations) = (of(Section::Spec), of(Section::Annotations));
    if !spec.is_empty() {
        patch["spec"] = spec.into();
    }
    if !annotations.is_empty() {
        patch["metadata"]["annotations"] = annotations.into();
    }
    patch
}

/// The annotation that requests a retry after new has failed.
pub(super) fn retry(
    metadata: &ObjectMeta,
    analysis: Option<&AnalysisStatus>,
    at: Timestamp,
) -> Option<Change> {
    let annotations = metadata.annotations.as_ref();
    let failed = analysis?.verdict == TrialVerdict::Fail;
    failed.then(|| Change {
        section: Section::Annotations,
        field: RETRIED_AT,
        from: json!(annotations.and_then(|notes| notes.get(RETRIED_AT))),
        to: json!(at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        why: "new gets requests and is analysed again, starting with the first step",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::WeightsSpec;
    use crate::resource::status::DynamoUpdateConfigStatus;

    fn changes(verb: Verb, spec: &DynamoUpdateConfigSpec) -> Vec<Change> {
        verb.changes(&DynamoUpdateConfig::new("u", spec.clone()))
    }

    fn shown(verb: Verb, spec: &DynamoUpdateConfigSpec) -> Vec<String> {
        let changes = changes(verb, spec);
        changes.iter().map(Change::to_string).collect()
    }

    #[test]
    fn a_split_by_hand_replaces_the_ratio_and_holds_the_controller_off() {
        let mut spec = DynamoUpdateConfigSpec::to("new:8000");
        spec.traffic_split_percent = Some(25);
        spec.weights = Some(WeightsSpec { old: 3, new: 1 });
        let changes = changes(Verb::Split(40), &spec);
        assert_eq!(
            shown(Verb::Split(40), &spec),
            [
                "spec.trafficSplitPercent: 25 -> 40",
                r#"spec.weights: {"old":3,"new":1} -> none   (replaced by the percentage)"#,
                "spec.paused: none -> true   (so that the controller does not change the split; undo with `resume`)",
            ]
        );
        assert_eq!(
            patch(&changes, Some("7")),
            json!({
                "metadata": {"resourceVersion": "7"},
                "spec": {"trafficSplitPercent": 40, "weights": null, "paused": true},
            })
        );
    }

    #[test]
    fn another_try_is_asked_for_by_an_annotation_and_only_after_a_failure() {
        let at: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let spec = DynamoUpdateConfigSpec::to("new:8000");
        let mut update = DynamoUpdateConfig::new("u", spec);
        assert_eq!(Verb::Retry(at).changes(&update), []);
        for (verdict, count) in [(TrialVerdict::Pass, 0), (TrialVerdict::Fail, 1)] {
            update.status = Some(DynamoUpdateConfigStatus {
                analysis: Some(AnalysisStatus {
                    verdict,
                    ..Default::default()
                }),
                ..Default::default()
            });
            assert_eq!(Verb::Retry(at).changes(&update).len(), count);
        }
        let changes = Verb::Retry(at).changes(&update);
        let shown = changes[0].to_string();
        let expected = r#"annotation crossfade/retried-at: none -> "2026-01-02T03:04:05Z"   ("#;
        assert!(shown.starts_with(expected), "{shown}");
        assert_eq!(
            patch(&changes, Some("7")),
            json!({"metadata": {
                "resourceVersion": "7",
                "annotations": {"crossfade/retried-at": "2026-01-02T03:04:05Z"},
            }})
        );
    }

    #[test]
    fn fields_that_are_already_set_are_not_changed() {
        let mut spec = DynamoUpdateConfigSpec::to("new:8000");
        assert_eq!(shown(Verb::Resume, &spec), [""; 0]);
        spec.paused = Some(true);
        spec.traffic_split_percent = Some(40);
        assert_eq!(shown(Verb::Pause, &spec), [""; 0]);
        assert_eq!(shown(Verb::Split(40), &spec), [""; 0]);
        assert_eq!(shown(Verb::Resume, &spec).len(), 1);
    }

    #[test]
    fn draining_old_ends_a_pause_and_resuming_ends_the_drain() {
        let mut spec = DynamoUpdateConfigSpec::to("new:8000");
        spec.paused = Some(true);
        let drained = shown(Verb::DrainOld, &spec);
        assert!(
            drained[0].starts_with("spec.drainOld: none -> true"),
            "{drained:?}"
        );
        assert!(
            drained[1].starts_with("spec.paused: true -> false"),
            "{drained:?}"
        );
        spec.drain_old = Some(true);
        let resumed = shown(Verb::Resume, &spec);
        assert!(
            resumed[1].starts_with("spec.drainOld: true -> false"),
            "{resumed:?}"
        );
        spec.max_traffic_split_percent = Some(30);
        assert!(Verb::DrainOld.caveat(&spec).unwrap().contains("30%"));
    }

    #[test]
    fn a_split_above_the_cap_gets_a_warning() {
        let mut spec = DynamoUpdateConfigSpec::to("new:8000");
        spec.max_traffic_split_percent = Some(30);
        assert_eq!(Verb::Split(30).caveat(&spec), None);
        assert!(Verb::Split(31).caveat(&spec).unwrap().contains("30%"));
    }
}
