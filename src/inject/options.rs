//! The options of an injection.

use serde::{Deserialize, Serialize};

/// User options; missing ones come from the manifest, or from the record of an earlier injection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Options {
    /// Image of crossfade. An earlier one is read from the container, not from the record.
    #[serde(skip)]
    pub image: Option<String>,
    /// A plain container instead of a native sidecar.
    #[serde(skip_serializing_if = "is_false")]
    pub plain_container: bool,
    /// The frontend's container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Where the frontend listens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The argument and the variable that sets the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_arg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_env: Option<String>,
    /// Path of the health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// The name that updates use for these pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
    /// How long open streams may take to end when a pod is deleted, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<u64>,
    /// The CPU and the memory that crossfade requests, and the limit of its CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_request: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_request: Option<String>,
    /// Whether a preStop hook of the frontend that does more than wait may be replaced.
    #[serde(skip_serializing_if = "is_false")]
    pub replace_pre_stop: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde requires it")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Options {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// These options, completed with the earlier ones.
    pub(super) fn or(&self, earlier: &Self) -> Self {
        let (new, old) = (self.clone(), earlier.clone());
        Self {
            image: new.image.or(old.image),
            plain_container: new.plain_container || old.plain_container,
            container: new.container.or(old.container),
            port: new.port.or(old.port),
            port_arg: new.port_arg.or(old.port_arg),
            port_env: new.port_env.or(old.port_env),
            health: new.health.or(old.health),
            deployment: new.deployment.or(old.deployment),
            drain: new.drain.or(old.drain),
            cpu_request: new.cpu_request.or(old.cpu_request),
            cpu_limit: new.cpu_limit.or(old.cpu_limit),
            memory_request: new.memory_request.or(old.memory_request),
            replace_pre_stop: new.replace_pre_stop || old.replace_pre_stop,
        }
    }
}
