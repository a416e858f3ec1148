//! The edits that a user makes to a rollout.

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::change::retry;
use super::{Change, Section};
use crate::resource::rollout_status::RevisionStatus;
use crate::resource::{DynamoRollout, Intent};

/// The revision of the old generation, if the status does not contain it.
const FIRST: i64 = 1;

/// The requested edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutVerb {
    /// Changes neither sizes nor split.
    Pause,
    /// Continues according to the strategy.
    Resume,
    /// Continues without analysis and steps.
    Promote,
    /// Goes back to the old generation.
    Abort,
    /// Goes back to this revision, even after the rollout has ended; by default to the old generation.
    Undo(Option<i64>),
    /// Retries a new generation that has failed the analysis. Requested at this time.
    Retry(Timestamp),
}

impl RolloutVerb {
    /// The changes that it makes to a rollout; empty if there is nothing to change.
    #[must_use]
    pub fn changes(self, rollout: &DynamoRollout) -> Vec<Change> {
        let spec = &rollout.spec;
        let intent = |to: Intent, why| Change {
            section: Section::Spec,
            field: "intent",
            from: json!(spec.intent),
            to: json!(to),
            why,
        };
        let undo = |to: Option<i64>, why| Change {
            section: Section::Spec,
            field: "undoTo",
            from: json!(spec.undo_to),
            to: json!(to),
            why,
        };
        let wanted = match self {
            Self::Pause => vec![intent(
                Intent::Hold,
                "sizes and split stay as they are, except to move requests away from a generation that cannot serve",
            )],
            Self::Resume => vec![
                intent(
                    Intent::Run,
                    "the rollout continues to the new generation according to its strategy",
                ),
                undo(None, "the rollout would return to a revision"),
            ],
            Self::Promote => vec![
                intent(
                    Intent::Promote,
                    "the rollout continues to the new generation without analysis and steps",
                ),
                undo(None, "the rollout would return to a revision"),
            ],
            Self::Abort => vec![intent(
                Intent::Abort,
                "the rollout returns to the old generation",
            )],
            Self::Undo(to) => {
                let to = to.unwrap_or_else(|| of_generation(rollout, "old").unwrap_or(FIRST));
                let is_new = of_generation(rollout, "new") == Some(to);
                let why = match is_new {
                    true => "the rollout goes to the new generation",
                    false => "the rollout returns to this revision",
                };
                let mut wanted = vec![undo(Some(to), why)];
                match spec.intent {
                    Intent::Hold => {
                        wanted.push(intent(Intent::Run, "a hold would stop the rollout"));
                    }
                    Intent::Abort if is_new => {
                        wanted.push(intent(
                            Intent::Run,
                            "an abort would return it to the old generation",
                        ));
                    }
                    _ => {}
                }
                wanted
            }
            Self::Retry(at) => {
                let status = rollout.status.as_ref();
                let analysis = status.and_then(|status| status.analysis.as_ref());
                retry(&rollout.metadata, analysis, at).into_iter().collect()
            }
        };
        let is_new = |change: &Change| change.from != change.to;
        wanted.into_iter().filter(is_new).collect()
    }

    /// A warning if it will have no effect.
    #[must_use]
    pub fn caveat(self, rollout: &DynamoRollout) -> Option<String> {
        let Self::Undo(Some(to)) = self else {
            return None;
        };
        let revisions = revisions(rollout);
        match revisions.iter().find(|known| known.revision == to) {
            Some(known) if known.exists => None,
            Some(_) => Some(format!(
                "warning: objects of revision {to} have been deleted, so the rollout cannot go back to it"
            )),
            None => Some(format!(
                "warning: revision {to} is not kept; `crossfade rollout history` lists those that are"
            )),
        }
    }
}

/// The revisions of a rollout.
fn revisions(rollout: &DynamoRollout) -> &[RevisionStatus] {
    let status = rollout.status.as_ref();
    status.map_or(&[], |status| &status.revisions)
}

/// The revision that is `old` or `new` in the current rollout.
fn of_generation(rollout: &DynamoRollout, generation: &str) -> Option<i64> {
    let mut newest = revisions(rollout).iter().rev();
    let found = newest.find(|known| known.generation.as_deref() == Some(generation))?;
    Some(found.revision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::DynamoRolloutSpec;
    use crate::resource::rollout_status::DynamoRolloutStatus;
    use crate::resource::status::AnalysisStatus;
    use crate::rollout::TrialVerdict;

    fn rollout(intent: Intent, undo_to: Option<i64>) -> DynamoRollout {
        let spec = json!({
            "source": {"kind": "Deployment", "name": "v1"},
            "target": {"kind": "Deployment", "name": "v2"},
            "frontends": {"source": "f1", "target": "f2", "service": "f2"},
            "clientService": "chat",
            "intent": intent,
            "undoTo": undo_to,
        });
        DynamoRollout::new("chat", DynamoRolloutSpec::read(&spec).unwrap())
    }

    fn shown(verb: RolloutVerb, rollout: &DynamoRollout) -> Vec<String> {
        let changes = verb.changes(rollout);
        let text = |change: &Change| change.to_string();
        changes.iter().map(text).collect()
    }

    #[test]
    fn each_verb_writes_what_the_rollout_is_to_do_and_nothing_twice() {
        let runs = rollout(Intent::Run, None);
        for (verb, expected) in [
            (RolloutVerb::Pause, r#"spec.intent: "Run" -> "Hold"   ("#),
            (
                RolloutVerb::Promote,
                r#"spec.intent: "Run" -> "Promote"   ("#,
            ),
            (RolloutVerb::Abort, r#"spec.intent: "Run" -> "Abort"   ("#),
            (RolloutVerb::Undo(None), "spec.undoTo: none -> 1   ("),
            (RolloutVerb::Undo(Some(7)), "spec.undoTo: none -> 7   ("),
        ] {
            let shown = shown(verb, &runs);
            assert_eq!(shown.len(), 1, "{shown:?}");
            assert!(shown[0].starts_with(expected), "{shown:?}");
        }
        assert_eq!(shown(RolloutVerb::Resume, &runs), [""; 0]);
        assert_eq!(
            shown(RolloutVerb::Pause, &rollout(Intent::Hold, None)),
            [""; 0]
        );
        assert_eq!(
            shown(RolloutVerb::Undo(None), &rollout(Intent::Abort, Some(1))),
            [""; 0]
        );
    }

    #[test]
    fn another_try_is_requested_only_after_a_failure() {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut rollout = rollout(Intent::Run, None);
        assert_eq!(shown(RolloutVerb::Retry(at), &rollout), [""; 0]);
        for (verdict, count) in [(TrialVerdict::Pass, 0), (TrialVerdict::Fail, 1)] {
            let analysis = AnalysisStatus {
                verdict,
                ..AnalysisStatus::default()
            };
            rollout.status = Some(DynamoRolloutStatus {
                analysis: Some(analysis),
                ..DynamoRolloutStatus::default()
            });
            let changes = RolloutVerb::Retry(at).changes(&rollout);
            assert_eq!(changes.len(), count, "{changes:?}");
        }
        let shown = shown(RolloutVerb::Retry(at), &rollout);
        let expected = r#"annotation crossfade/retried-at: none -> "2026-01-02T03:04:05Z"   ("#;
        assert!(shown[0].starts_with(expected), "{shown:?}");
    }

    #[test]
    fn an_undo_goes_to_the_old_generation_or_to_a_revision_that_is_kept() {
        let mut kept = rollout(Intent::Abort, None);
        let revision = |revision: i64, generation: Option<&str>, exists| RevisionStatus {
            revision,
            generation: generation.map(str::to_owned),
            workers: "Deployment v".into(),
            frontends: "f".into(),
            at: None,
            exists,
        };
        kept.status = Some(DynamoRolloutStatus {
            revisions: vec![
                revision(1, None, false),
                revision(2, Some("old"), true),
                revision(3, Some("new"), true),
            ],
            ..DynamoRolloutStatus::default()
        });
        for (to, expected) in [
            (None, vec!["spec.undoTo: none -> 2   ("]),
            (
                Some(3),
                vec![
                    "spec.undoTo: none -> 3   (",
                    r#"spec.intent: "Abort" -> "Run""#,
                ],
            ),
        ] {
            let shown = shown(RolloutVerb::Undo(to), &kept);
            assert_eq!(shown.len(), expected.len(), "{shown:?}");
            for (shown, expected) in shown.iter().zip(expected) {
                assert!(shown.starts_with(expected), "{shown}");
            }
        }
        for (to, expected) in [
            (None, None),
            (Some(3), None),
            (Some(1), Some("have been deleted")),
            (Some(9), Some("is not kept")),
        ] {
            let caveat = RolloutVerb::Undo(to).caveat(&kept);
            assert_eq!(caveat.is_some(), expected.is_some(), "{to:?}");
            assert!(
                caveat
                    .unwrap_or_default()
                    .contains(expected.unwrap_or_default())
            );
        }
    }

    #[test]
    fn fields_that_contradict_a_verb_are_removed() {
        let undone = rollout(Intent::Hold, Some(1));
        for verb in [RolloutVerb::Resume, RolloutVerb::Promote] {
            let shown = shown(verb, &undone);
            assert!(
                shown[1].starts_with("spec.undoTo: 1 -> none   ("),
                "{shown:?}"
            );
        }
        let shown = shown(RolloutVerb::Undo(None), &rollout(Intent::Hold, None));
        assert!(
            shown[1].starts_with(r#"spec.intent: "Hold" -> "Run""#),
            "{shown:?}"
        );
    }
}
