//! Reads a status of another version: what cannot be read is left out, and all else is kept.
//!
//! A field that is missing is not an error, but a word that is not known fails a whole type. Here it costs the smallest part
//! that the rest can do without. Must not know what any field means.

use serde_json::{Map, Value as Json, json};

use super::DynamoUpdateConfigStatus;

/// The most parts that are named one by one.
const MAX_LOST: usize = 8;

/// The status in `value`, and the paths of what cannot be read in it, at most eight of them.
#[must_use]
pub fn read_status(value: &Json) -> (DynamoUpdateConfigStatus, Vec<String>) {
    let mut lost = Vec::new();
    let root = |part: Json| part;
    let kept = keep(value, "status", &root, &mut lost).unwrap_or_else(|| json!({}));
    (serde_json::from_value(kept).unwrap_or_default(), lost)
}

fn is_readable(root: Json) -> bool {
    serde_json::from_value::<DynamoUpdateConfigStatus>(root).is_ok()
}

/// What of `value` can be read, where `within` puts a part to its place in a status that has nothing else.
fn keep(
    value: &Json,
    path: &str,
    within: &dyn Fn(Json) -> Json,
    lost: &mut Vec<String>,
) -> Option<Json> {
    if is_readable(within(value.clone())) {
        return Some(value.clone());
    }
    let before = lost.len();
    let kept = match value {
        Json::Object(fields) => {
            let part = |(name, value): (&String, &Json)| {
                let within = |part: Json| within(json!({name.clone(): part}));
                let kept = keep(value, &format!("{path}.{name}"), &within, lost)?;
                Some((name.clone(), kept))
            };
            Some(Json::Object(
                fields.iter().filter_map(part).collect::<Map<_, _>>(),
            ))
        }
        Json::Array(items) => {
            let part = |(index, item): (usize, &Json)| {
                let within = |part: Json| within(json!([part]));
                keep(item, &format!("{path}[{index}]"), &within, lost)
            };
            Some(Json::Array(
                items.iter().enumerate().filter_map(part).collect(),
            ))
        }
        _ => None,
    };
    // A type with fields that it cannot do without is left out whole.
    let kept = kept.filter(|kept| is_readable(within(kept.clone())));
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
    use crate::resource::status::Phase;
    use crate::rollout::{Phase as Step, Role};

    #[test]
    fn a_word_that_is_not_known_costs_that_word_alone() {
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
    fn what_can_be_read_in_full_is_read_in_full() {
        let (status, lost) = read_status(&json!({"phase": "Complete", "unknown": [1]}));
        assert_eq!((status.phase, lost), (Some(Phase::Complete), Vec::new()));
    }

    #[test]
    fn a_part_that_lacks_what_it_needs_is_left_out_and_others_stay() {
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
