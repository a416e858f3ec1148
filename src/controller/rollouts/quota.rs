//! What the quotas of a namespace leave to a rollout.

use kube::api::ApiResource;
use serde_json::Value as Json;

use super::super::old_frontends::kind;
use crate::k8s::Object;

/// The entry of a quota that limits GPUs.
const GPU_QUOTA: &str = "requests.nvidia.com/gpu";

/// The GPUs that the quotas of a namespace still admit.
pub(super) fn quota_left(quotas: &[Object]) -> Option<u32> {
    let number = |value: &Json| {
        let text = value.as_str().and_then(|text| text.parse().ok());
        value.as_u64().or(text)
    };
    let left = quotas.iter().filter_map(|quota| {
        let status = &quota.data["status"];
        let hard = number(&status["hard"][GPU_QUOTA])?;
        let used = number(&status["used"][GPU_QUOTA]).unwrap_or(0);
        Some(u32::try_from(hard.saturating_sub(used)).unwrap_or(u32::MAX))
    });
    left.min()
}

pub(super) fn quotas() -> ApiResource {
    kind("", "v1", "ResourceQuota", "resourcequotas")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn object(object: Json) -> Object {
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn the_tightest_quota_counts() {
        let quota = |hard: Json, used: Json| {
            object(json!({"metadata": {"name": "q"}, "status": {
                "hard": {GPU_QUOTA: hard}, "used": {GPU_QUOTA: used},
            }}))
        };
        assert_eq!(quota_left(&[]), None);
        let quotas = [
            quota(json!("16"), json!("9")),
            quota(json!("8"), json!("5")),
        ];
        assert_eq!(quota_left(&quotas), Some(3));
        assert_eq!(quota_left(&[quota(Json::Null, json!("5"))]), None);
        assert_eq!(quota_left(&[quota(json!("4"), json!("5"))]), Some(0));
    }
}
