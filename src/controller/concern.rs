//! Which objects an update has to do with: by names and labels, rather too many than too few.
//!
//! Must not know what the objects mean.

use std::collections::{BTreeMap, BTreeSet};

use crate::k8s::Object;
use crate::k8s::workloads::{is_selected, labels};

/// May an object have to do with an update: does it bear one of the names that the update knows, or its labels?
pub(super) fn concerns(update: &Object, object: &Object) -> bool {
    let spec = &update.data["spec"];
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let fields = [
        "sourceDeployment",
        "targetDeployment",
        "clientService",
        "newDynamoNamespace",
    ];
    names.extend(fields.iter().filter_map(|field| spec[*field].as_str()));
    let service = spec["newFrontendService"].as_str().unwrap_or_default();
    let services = service.split(',').map(|target| target.trim());
    let services = services.map(|target| target.rsplit("//").next().unwrap_or(target));
    names.extend(services.filter_map(|target| target.split(['.', ':']).next()));
    for side in ["old", "new"] {
        let workers = &spec["workers"][side];
        names.extend(workers["name"].as_str());
        let selector = workers["selector"].clone();
        let selector: BTreeMap<String, String> =
            serde_json::from_value(selector).unwrap_or_default();
        if !selector.is_empty() && is_selected(object, &selector) {
            return true;
        }
    }
    names.remove("");
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let is_part = |part: &&str| {
        name.strip_prefix(*part)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    names.iter().any(is_part)
        || labels(object)
            .is_some_and(|labels| labels.values().any(|value| names.contains(value.as_str())))
        || object.data["spec"]["data"]["endpoints"].is_object()
}
