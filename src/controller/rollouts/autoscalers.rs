//! Finds the autoscalers of the objects of a rollout.

use super::objects::{self, Objects};
use crate::k8s::kinds::api_resource;
use crate::k8s::{Cache, NotSynced, Object};

/// The objects that an autoscaler scales: kind and name, with the name of the autoscaler.
pub(super) fn scalers(
    cache: &Cache,
    namespace: &str,
) -> Result<Vec<(String, String, String)>, NotSynced> {
    let autoscalers = api_resource(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
    );
    let found = cache.of(&autoscalers, namespace)?;
    let of = |autoscaler: &Object| {
        let target = &autoscaler.data["spec"]["scaleTargetRef"];
        let text = |field: &str| target[field].as_str().map(str::to_owned);
        let name = autoscaler.metadata.name.clone().unwrap_or_default();
        Some((text("kind")?, text("name")?, name))
    };
    Ok(found.iter().filter_map(of).collect())
}

/// The autoscaler of one of `objects`, as text for users.
pub(super) fn scaler(objects: &Objects, scalers: &[(String, String, String)]) -> Option<String> {
    let is_of = |(kind, name, _): &&(String, String, String)| {
        let mut objects = objects.values();
        objects.any(|(of, scaled)| {
            let is_owner = of == kind && objects::name(scaled) == name;
            is_owner || scaled.sized_kind(of) == kind && objects::name_of(scaled.sized()) == name
        })
    };
    let (.., autoscaler) = scalers.iter().find(is_of)?;
    Some(format!("HorizontalPodAutoscaler {autoscaler}"))
}
