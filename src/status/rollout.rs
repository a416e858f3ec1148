//! The edits that a user makes to a rollout: each one writes what it is to do.

use serde_json::json;

use super::{Change, Section};
use crate::resource::{DynamoRollout, Intent};

/// The revision that an undo goes back to: the old generation of the rollout.
const OLD: i64 = 1;

/// What the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutVerb {
    /// Changes neither sizes nor split.
    Pause,
    /// Goes forward by the strategy.
    Resume,
    /// Goes forward without analysis and steps.
    Promote,
    /// Goes back to the old generation.
    Abort,
    /// Goes back to the old generation, also after the end.
    Undo,
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
                "neither sizes nor split change, except that requests leave a generation that cannot serve",
            )],
            Self::Resume => vec![
                intent(Intent::Run, "it goes forward by its strategy"),
                undo(None, "it would go back"),
            ],
            Self::Promote => vec![
                intent(
                    Intent::Promote,
                    "it goes forward without analysis and steps",
                ),
                undo(None, "it would go back"),
            ],
            Self::Abort => vec![intent(Intent::Abort, "it goes back to the old generation")],
            Self::Undo => {
                let mut wanted = vec![undo(Some(OLD), "it goes back to the old generation")];
                if spec.intent == Intent::Hold {
                    wanted.push(intent(Intent::Run, "a hold would keep it where it is"));
                }
                wanted
            }
        };
        let is_new = |change: &Change| change.from != change.to;
        wanted.into_iter().filter(is_new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::DynamoRolloutSpec;

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
            (RolloutVerb::Undo, "spec.undoTo: none -> 1   ("),
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
            shown(RolloutVerb::Undo, &rollout(Intent::Abort, Some(1))),
            [""; 0]
        );
    }

    #[test]
    fn what_stands_against_a_verb_is_taken_away() {
        let undone = rollout(Intent::Hold, Some(1));
        for verb in [RolloutVerb::Resume, RolloutVerb::Promote] {
            let shown = shown(verb, &undone);
            assert!(
                shown[1].starts_with("spec.undoTo: 1 -> none   ("),
                "{shown:?}"
            );
        }
        let shown = shown(RolloutVerb::Undo, &rollout(Intent::Hold, None));
        assert!(
            shown[1].starts_with(r#"spec.intent: "Hold" -> "Run""#),
            "{shown:?}"
        );
    }
}
