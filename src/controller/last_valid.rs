//! The last valid spec of an update, as this process saw it or as the status records it.

use serde_json::Value as Json;

use crate::resource::LastValidStatus;

/// The last valid spec of an update.
#[derive(Clone)]
pub(super) struct LastValid {
    pub uid: Option<String>,
    /// `metadata.generation` of that spec.
    pub generation: i64,
    pub spec: Json,
}

impl LastValid {
    /// The form for the status, next to `instead_of`: the generation of the invalid edit.
    pub fn status(self, instead_of: Option<i64>) -> Option<LastValidStatus> {
        Some(LastValidStatus {
            generation: self.generation,
            instead_of: instead_of?,
            spec: self.spec,
        })
    }
}
