//! How far a proxy lags behind the newest edit of an update.

use kube::core::ObjectMeta;

use crate::state_api::v1;

/// How far a proxy lags behind the newest edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lag {
    /// The newest edit.
    None,
    /// This many edits are missing.
    Edits(i64),
    /// It follows a resource of the same name that has been deleted.
    Deleted,
    /// It has no edit of this update, or there is nothing to compare with.
    Unknown,
}

/// How far the plan of a proxy lags behind.
pub(super) fn lag(plan: &v1::Plan, newest: Option<&ObjectMeta>) -> Lag {
    let (Some(has), Some(newest)) = (&plan.resource, newest) else {
        return Lag::Unknown;
    };
    if has.name != newest.name {
        return Lag::Unknown;
    }
    if let (Some(has), Some(newest)) = (&has.uid, &newest.uid)
        && has != newest
    {
        return Lag::Deleted;
    }
    match (has.generation, newest.generation) {
        (Some(has), Some(newest)) if has < newest => Lag::Edits(newest - has),
        (Some(_), Some(_)) => Lag::None,
        _ => Lag::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_behind_by_edits_or_by_a_whole_resource() {
        let newest = ObjectMeta {
            name: Some("u".into()),
            uid: Some("b".into()),
            generation: Some(5),
            ..Default::default()
        };
        let has = |name: &str, uid: &str, generation| {
            let resource = v1::Resource {
                name: Some(name.into()),
                uid: Some(uid.into()),
                generation,
                ..Default::default()
            };
            let plan = v1::Plan {
                resource: Some(resource),
                ..Default::default()
            };
            lag(&plan, Some(&newest))
        };
        assert_eq!(has("u", "b", Some(5)), Lag::None);
        assert_eq!(has("u", "b", Some(3)), Lag::Edits(2));
        assert_eq!(has("u", "a", Some(9)), Lag::Deleted);
        assert_eq!(has("other", "b", Some(5)), Lag::Unknown);
        assert_eq!(has("u", "b", None), Lag::Unknown);
        assert_eq!(lag(&v1::Plan::default(), Some(&newest)), Lag::Unknown);
    }
}
