//! What a rollout should do, and what happens when it ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the owner of a rollout wants.
// No doc comments on the variants: the schema is then a plain list of names. The same below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Intent {
    // Continue to the new generation according to the strategy.
    #[default]
    Run,
    // Move nothing.
    Hold,
    // Continue to the new generation without analysis and steps.
    Promote,
    // Go back.
    Abort,
}

/// What happens once the new generation serves everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Handover {
    /// Who changes the selector of `clientService` to that of the new frontends: a user (`Manual`) or the controller
    /// (`Automatic`), which saves the previous selector in the status.
    pub clients: ClientHandover,
    /// What happens to the old generation once nothing needs it: its objects stay without workers (`Keep`), its frontends are
    /// also scaled to zero (`ScaleToZero`), or its objects are deleted (`Delete`).
    pub retire: Retire,
}

/// Who routes the clients to the new frontends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClientHandover {
    // A user.
    #[default]
    Manual,
    // The controller.
    Automatic,
}

/// What happens to the old generation once nothing needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Retire {
    // Its objects stay, without workers.
    #[default]
    Keep,
    // Its frontends are scaled to zero.
    ScaleToZero,
    // Its objects are deleted.
    Delete,
}
