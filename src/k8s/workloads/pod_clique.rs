//! Grove's PodCliques (grove.io/v1alpha1). They have `readyReplicas` but no `availableReplicas`. A clique within a scaling
//! group is a part of each replica of the group and not a worker by itself, so the group counts it.

use std::borrow::Cow;

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::grove::{GROUP, cliques};
use super::{
    Cache, Counts, NotSynced, Part, PodsOf, Scaling, WorkerQuery, Workload, object, scaling,
};

pub(super) struct PodCliques;

/// The pod label with the clique.
const CLIQUE: &str = "grove.io/podclique";

impl Workload for PodCliques {
    fn kind(&self) -> &'static str {
        "PodClique"
    }

    fn count(&self, cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
        let mut objects = object::selected_without_generations(cache, &cliques(), which)?;
        objects.retain(|object| {
            // A clique that is selected by its name counts even if it belongs to a scaling group.
            object.metadata.name.as_ref() == Some(&which.name)
                || object::label(object, GROUP).is_none()
        });
        Ok(object::sum(&objects, which, |object| {
            object::replicas(object, "/status/readyReplicas")
        }))
    }

    fn scaling(&self) -> Option<&dyn Scaling> {
        Some(self)
    }
}

impl Scaling for PodCliques {
    fn resource(&self) -> ApiResource {
        cliques()
    }

    fn replica<'a>(&self, object: &'a DynamicObject, _: &Part) -> Vec<(Cow<'a, Json>, u32)> {
        scaling::once(object, "/spec/podSpec")
    }

    fn pods(&self, object: &DynamicObject, _: &Part) -> Option<PodsOf> {
        Some(PodsOf {
            labels: [(CLIQUE.to_owned(), object.metadata.name.clone()?)].into(),
            replica: None,
        })
    }
}
