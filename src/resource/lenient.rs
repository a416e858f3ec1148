//! Reads a status that another version wrote: drops what cannot be parsed and keeps the rest.
//!
//! A missing field is not an error, but a single unknown enum value fails a whole type. This reader drops only the smallest part
//! that prevents the rest from being parsed.

use serde_json::{Map, Value as Json, json};

use serde::de::DeserializeOwned;

use super::DynamoUpdateConfigStatus;
use super::rollout::status::DynamoRolloutStatus;

/// The maximum number of dropped parts that are reported.
const MAX_LOST: usize = 8;

/// Returns the status in `value` and the paths of at most eight parts of it that cannot be parsed.
#[must_use]
pub fn read_status(value: &Json) -> (DynamoUpdateConfigStatus, Vec<String>) {
    read(value)
}

/// The same for a rollout.
#[must_use]
pub fn read_rollout_status(value: &Json) -> (DynamoRolloutStatus, Vec<String>) {
    read(value)
}

fn read<T: DeserializeOwned + Default>(value: &Json) -> (T, Vec<String>) {
    let mut lost = Vec::new();
    let root = |part: Json| part;
    let kept = keep::<T>(value, "status", &root, &mut lost).unwrap_or_else(|| json!({}));
    (serde_json::from_value(kept).unwrap_or_default(), lost)
}

fn is_readable<T: DeserializeOwned>(root: Json) -> bool {
    serde_json::from_value::<T>(root).is_ok()
}

/// Returns the parts of `value` that can be parsed. `within` wraps a part in an otherwise empty status.
fn keep<T: DeserializeOwned>(
    value: &Json,
    path: &str,
    within: &dyn Fn(Json) -> Json,
    lost: &mut Vec<String>,
) -> Option<Json> {
    if is_readable::<T>(within(value.clone())) {
        return Some(value.clone());
    }
    let before = lost.len();
    let kept = match value {
        Json::Object(fields) => {
            let part = |(name, value): (&String, &Json)| {
                let within = |part: Json| within(json!({name.clone(): part}));
                let kept = keep::<T>(value, &format!("{path}.{name}"), &within, lost)?;
                Some((name.clone(), kept))
            };
            Some(Json::Object(
                fields.iter().filter_map(part).collect::<Map<_, _>>(),
            ))
        }
        Json::Array(items) => {
            let part = |(index, item): (usize, &Json)| {
                let within = |part: Json| within(json!([part]));
                keep::<T>(item, &format!("{path}[{index}]"), &within, lost)
            };
            Some(Json::Array(
                items.iter().enumerate().filter_map(part).collect(),
            ))
        }
        _ => None,
    };
    // Drop an entire object if one of its required fields was dropped.
    let kept = kept.filter(|kept| is_readable::<T>(within(kept.clone())));
    if kept.is_none() {
        lost.truncate(before);
        lost.push(path.to_owned());
    }
    lost.truncate(MAX_LOST);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::status::UpdatePhase;
    use crate::rollout::{Phase as Step, Role};

    #[test]
    fn an_unknown_word_loses_only_its_own_field() {
        let (status, lost) = read_status(&json!({
            "phase": "Rewinding",
            "message": "old and new",
            "memory": {
                "subject": "old to new", "fullSizes": {"worker": 4, "encode": 2}, "phase": "Rewinding",
                "rule": "Moonlight", "contested": true,
            },
        }));
        assert_eq!(
            lost,
            [
                "status.phase",
                "status.memory.fullSizes.encode",
                "status.memory.phase",
                "status.memory.rule"
            ]
        );
        assert_eq!(
            (status.phase, status.message.as_deref()),
            (None, Some("old and new"))
        );
        let memory = status.memory.unwrap();
        assert_eq!(memory.full_sizes, [(Role::Worker, 4)].into());
        assert_eq!((memory.phase, memory.rule), (Step::Pending, None));
        assert!(memory.contested && memory.subject == "old to new");
    }

    #[test]
    fn a_valid_status_is_read_completely() {
        let (status, lost) = read_status(&json!({"phase": "Complete", "unknown": [1]}));
        assert_eq!(
            (status.phase, lost),
            (Some(UpdatePhase::Complete), Vec::new())
        );
    }

    #[test]
    fn an_incomplete_part_is_omitted_and_the_others_stay() {
        let wait = json!({"what": "rain", "since": "2026-01-01T00:00:00Z"});
        let (status, lost) = read_status(&json!({
            "waitingFor": [{"what": 5}, wait, {}], "wanted": {"percent": -1}, "old": {"workers": "3/4", "openStreams": "no"},
        }));
        assert_eq!(status.waiting_for.len(), 1);
        assert_eq!(status.old.unwrap().workers.as_deref(), Some("3/4"));
        assert_eq!(
            lost,
            [
                "status.waitingFor[0]",
                "status.waitingFor[2]",
                "status.wanted",
                "status.old.openStreams"
            ]
        );
        assert_eq!(read_status(&json!("any")).1, ["status"]);
    }
}
