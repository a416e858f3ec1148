//! The capacity that the quotas of a namespace leave to a rollout.

use kube::api::ApiResource;
use serde_json::Value as Json;

use super::super::old_frontends::kind;
use crate::k8s::Object;

/// The entry of a quota that limits GPUs.
const GPU_QUOTA: &str = "requests.nvidia.com/gpu";
/// The entries that limit pods: those that have not ended, and all of them.
const POD_QUOTAS: [&str; 2] = ["pods", "count/pods"];

/// The GPUs that the quotas of a namespace still admit.
pub(super) fn gpus_left(quotas: &[Object]) -> Option<u32> {
    left(quotas, GPU_QUOTA)
}

/// The pods that they still admit. A quota with scopes may be for other pods, so it does not count.
pub(super) fn pods_left(quotas: &[Object]) -> Option<u32> {
    let is_for_all = |quota: &&Object| {
        let spec = &quota.data["spec"];
        spec["scopes"].is_null() && spec["scopeSelector"].is_null()
    };
    let for_all: Vec<_> = quotas.iter().filter(is_for_all).cloned().collect();
    let each = POD_QUOTAS.into_iter();
    each.filter_map(|entry| left(&for_all, entry)).min()
}

fn left(quotas: &[Object], entry: &str) -> Option<u32> {
    let number = |value: &Json| {
        let text = value.as_str().and_then(|text| text.parse().ok());
        value.as_u64().or(text)
    };
    let left = quotas.iter().filter_map(|quota| {
        let status = &quota.data["status"];
        let hard = number(&status["hard"][entry])?;
        let used = number(&status["used"][entry]).unwrap_or(0);
        Some(u32::try_from(hard.saturating_sub(used)).unwrap_or(u32::MAX))
    });
    left.min()
}

pub(super) fn quotas() -> ApiResource {
    kind("", "v1", "ResourceQuota", "resourcequotas")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::object;

    #[test]
    fn the_tightest_quota_counts() {
        let quota = |hard: Json, used: Json| {
            object(json!({"metadata": {"name": "q"}, "status": {
                "hard": {GPU_QUOTA: hard}, "used": {GPU_QUOTA: used},
            }}))
        };
        assert_eq!(gpus_left(&[]), None);
        let quotas = [
            quota(json!("16"), json!("9")),
            quota(json!("8"), json!("5")),
        ];
        assert_eq!(gpus_left(&quotas), Some(3));
        assert_eq!(gpus_left(&[quota(Json::Null, json!("5"))]), None);
        assert_eq!(gpus_left(&[quota(json!("4"), json!("5"))]), Some(0));
        assert_eq!(pods_left(&quotas), None);
    }

    #[test]
    fn pods_are_counted_by_either_entry_and_not_by_a_quota_for_some() {
        let quota = |entry: &str, used: &str, spec: Json| {
            object(json!({"metadata": {"name": "q"}, "spec": spec, "status": {
                "hard": {entry: "10"}, "used": {entry: used},
            }}))
        };
        let all = quota("pods", "4", json!({}));
        assert_eq!(pods_left(std::slice::from_ref(&all)), Some(6));
        let counted = quota("count/pods", "9", json!({}));
        assert_eq!(pods_left(&[all.clone(), counted]), Some(1));
        let some = quota("pods", "10", json!({"scopes": ["BestEffort"]}));
        assert_eq!(pods_left(&[all, some]), Some(6));
    }
}
