//! The last valid spec of an update, which its status records while the current spec is invalid.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// The last valid spec of an update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastValidStatus {
    /// The generation of that spec (`metadata.generation`).
    #[schemars(range(min = 0))]
    pub generation: i64,
    /// The generation of the invalid spec. `lastValid` applies only while this is the latest generation.
    #[schemars(range(min = 0))]
    pub instead_of: i64,
    /// The spec, with the split adjusted for capacity that has been lost since.
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub spec: Json,
}
