//! What proxies do with the requests of a rollout: the fields of the `DynamoUpdateConfig` that the controller creates for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resource::rules as shared;
use crate::resource::spec::{AffinitySpec, DrainSpec, FailoverSpec, ProbeSpec};

/// What proxies do with the requests of a rollout, as in a `DynamoUpdateConfig`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = shared::moves()))]
pub struct TrafficSpec {
    /// The models that the new generation must serve before it gets requests. By default, all models that the old one serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 512)))]
    pub models: Option<Vec<String>>,
    /// How the requests of a session are kept on one generation.
    pub affinity: AffinitySpec,
    /// What happens to a request when its generation fails.
    pub failover: FailoverSpec,
    /// What happens to streams that are still open on the old generation.
    pub drain: DrainSpec,
    /// Regular probes that check whether the frontends can serve. Off by default; `{}` enables them with the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeSpec>,
}
