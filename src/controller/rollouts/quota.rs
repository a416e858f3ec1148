//! The capacity that the quotas of a namespace leave for a rollout.

use std::collections::BTreeMap;

use kube::api::ApiResource;
use serde_json::Value as Json;

use crate::k8s::kinds::api_resource;
use crate::k8s::{Object, thousandths};

/// The entry of a quota that limits GPUs.
const GPU_QUOTA: &str = "requests.nvidia.com/gpu";
/// The entries that limit pods: pods that have not ended, and all pods.
const POD_QUOTAS: [&str; 2] = ["pods", "count/pods"];

/// The GPUs that the quotas of a namespace still allow.
pub(super) fn gpus_left(quotas: &[Object]) -> Option<u32> {
    left(quotas, GPU_QUOTA)
}

/// The pods that they still allow. A quota with scopes may be for other pods, so it does not count.
pub(super) fn pods_left(quotas: &[Object]) -> Option<u32> {
    let for_all: Vec<_> = quotas.iter().filter(is_for_all).cloned().collect();
    let each = POD_QUOTAS.into_iter();
    each.filter_map(|entry| left(&for_all, entry)).min()
}

/// The amounts of CPU, memory, and other resources that they still allow, by entry and in thousandths. A quota with scopes may be
/// for other pods, so it does not count.
pub(super) fn resources_left(quotas: &[Object]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for quota in quotas.iter().filter(is_for_all) {
        let status = &quota.data["status"];
        for (entry, hard) in status["hard"].as_object().into_iter().flatten() {
            let is_counted_apart = entry == GPU_QUOTA || POD_QUOTAS.contains(&&**entry);
            let Some(hard) = thousandths(hard).filter(|_| !is_counted_apart) else {
                continue;
            };
            let used = thousandths(&status["used"][entry]).unwrap_or(0);
            let left = hard.saturating_sub(used);
            let least: &mut u64 = all.entry(entry.clone()).or_insert(left);
            *least = left.min(*least);
        }
    }
    all
}

fn is_for_all(quota: &&Object) -> bool {
    let spec = &quota.data["spec"];
    spec["scopes"].is_null() && spec["scopeSelector"].is_null()
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
    api_resource("", "v1", "ResourceQuota", "resourcequotas")
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
    fn other_resources_are_counted_in_the_unit_of_the_quota() {
        let quota = |spec: Json, hard: Json, used: Json| {
            object(json!({
                "metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": used},
            }))
        };
        let hard = json!({
            "requests.cpu": "10", "limits.memory": "2Gi", GPU_QUOTA: "4", "pods": "3", "count/secrets": "5",
        });
        let used = json!({"requests.cpu": "8500m", "limits.memory": "1Gi"});
        let of_class = json!({"scopeSelector": {"matchExpressions": []}});
        let quotas = [
            quota(json!({}), hard, used),
            quota(
                json!({}),
                json!({"requests.cpu": "2"}),
                json!({"requests.cpu": "1"}),
            ),
            quota(of_class, json!({"requests.cpu": "0"}), json!({})),
        ];
        let left = resources_left(&quotas);
        let left: Vec<_> = left.iter().map(|(entry, left)| (&**entry, *left)).collect();
        let expected = [
            ("count/secrets", 5000),
            ("limits.memory", 1_073_741_824_000),
            ("requests.cpu", 1000),
        ];
        assert_eq!(left, expected);
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
