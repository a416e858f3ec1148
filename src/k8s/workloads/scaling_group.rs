//! Grove's PodCliqueScalingGroups (grove.io/v1alpha1). A replica consists of one of each of its cliques. There is no
//! `readyReplicas`; `availableReplicas` counts replicas in which every clique has enough ready pods.

use std::borrow::Cow;

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::grove::{GROUP, INDEX};
use super::{Cache, Counts, NotSynced, Part, PodsOf, Scaling, WorkerQuery, Workload, object};
use crate::k8s::kinds::api_resource;

pub(super) struct ScalingGroups;

impl Workload for ScalingGroups {
    fn kind(&self) -> &'static str {
        "PodCliqueScalingGroup"
    }

    fn count(&self, cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
        let objects = object::selected_without_generations(cache, &self.resource(), which)?;
        Ok(object::sum(&objects, which, |object| {
            object::replicas(object, "/status/availableReplicas")
        }))
    }

    fn scaling(&self) -> Option<&dyn Scaling> {
        Some(self)
    }
}

impl Scaling for ScalingGroups {
    fn resource(&self) -> ApiResource {
        let plural = "podcliquescalinggroups";
        api_resource("grove.io", "v1alpha1", self.kind(), plural)
    }

    fn parts(&self, object: &DynamicObject) -> Vec<Part> {
        vec![Part {
            role: object::named_role(object),
            name: String::new(),
            desired: object::number(object, "/spec/replicas").unwrap_or(1),
            ready: object::number(object, "/status/availableReplicas").unwrap_or(0),
            present: object::number(object, "/status/replicas").unwrap_or(0),
        }]
    }

    /// The cliques, which the group only names, specify the pods.
    fn replica<'a>(&self, _: &'a DynamicObject, _: &Part) -> Vec<(Cow<'a, Json>, u32)> {
        Vec::new()
    }

    fn pods(&self, object: &DynamicObject, _: &Part) -> Option<PodsOf> {
        Some(PodsOf {
            labels: [(GROUP.to_owned(), object.metadata.name.clone()?)].into(),
            replica: Some(INDEX),
        })
    }
}
