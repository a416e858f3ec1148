//! An update as the API server returns it.

use kube::api::DynamicObject;

use crate::resource::{Identity, ReportedStatus, Update};

/// The update in `object`, without its status.
#[must_use]
pub fn update_of(object: &DynamicObject) -> Update {
    let created = object.metadata.creation_timestamp.as_ref();
    Update {
        identity: identity_of(object),
        created: created.map_or(0, |time| time.0.as_second()),
        spec: object.data.get("spec").cloned().unwrap_or_default(),
        status: ReportedStatus::default(),
    }
}

/// The name of an update and the generation of its last edit.
#[must_use]
pub fn identity_of(object: &DynamicObject) -> Identity {
    let metadata = &object.metadata;
    Identity {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        generation: metadata.generation,
    }
}
