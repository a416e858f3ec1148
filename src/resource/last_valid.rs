//! The last valid spec of an update, which its status records while the current spec is invalid.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// The last spec of an update that could be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastValidStatus {
    /// Which edit it was (`metadata.generation`).
    #[schemars(range(min = 0))]
    pub generation: i64,
    /// The edit that cannot be used. `lastValid` applies only as long as this is the last edit.
    #[schemars(range(min = 0))]
    pub instead_of: i64,
    /// The spec, with the split as adjusted for capacity lost since.
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub spec: Json,
}
