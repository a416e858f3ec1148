//! What a rollout should do, and what happens when it ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the owner of a rollout wants.
// No doc comments on the variants: the schema is then a plain list of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Intent {
    #[default]
    Run,
    Hold,
    Promote,
    Abort,
}

/// What happens once the new generation serves everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HandoverSpec {
    /// Who changes the selector of `clientService` to that of the new frontends: a user (`Manual`) or the controller
    /// (`Automatic`), which saves the previous selector in the status.
    pub clients: ClientsSpec,
    /// What happens to the old generation once nothing needs it: its objects stay without workers (`Keep`), its frontends are
    /// also scaled to zero (`ScaleToZero`), or its objects are deleted (`Delete`).
    pub retire: RetireSpec,
}

/// Who routes the clients to the new frontends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClientsSpec {
    #[default]
    Manual,
    Automatic,
}

/// What happens to the old generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RetireSpec {
    #[default]
    Keep,
    ScaleToZero,
    Delete,
}
