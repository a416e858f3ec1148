//! What the API server checks of a resource beyond types and bounds, as CEL rules with their messages.
//!
//! The reader of files and the proxy refuse the same by [`super::judge`]; here it is said where a person hears of it at
//! once, by `kubectl apply`. Must not know what a plan makes of the fields.
//!
//! Beware of the cost that the API server estimates from the bounds of the schema: a rule over a list or text needs its
//! greatest length.

use serde_json::{Value as Json, json};

/// The form of one target, as [`super::Target`] reads it: a scheme and a host, or a host and a port.
const TARGET: &str = r"\\s*((?i:https?)://([^\\s/?#@,:\\[\\]]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{1,5})?/?|([^\\s/?#@,:\\[\\]]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5})\\s*";

fn rule(rule: &str, message: &str) -> Json {
    json!({"rule": rule, "message": message})
}

/// Of the resource as a whole, where its name is known.
#[cfg(feature = "kube")]
pub(super) fn resource() -> Json {
    json!([rule(
        "!has(self.spec.supersedes) || self.spec.supersedes != self.metadata.name",
        "spec.supersedes: an update cannot supersede itself; name the older update that this one replaces",
    )])
}

/// Of the `spec`.
pub(super) fn spec() -> Json {
    let agrees = "!has(self.weights) || !has(self.trafficSplitPercent) \
         || self.weights.old + self.weights.new == 0 \
         || (self.weights.new == 0 ? self.trafficSplitPercent == 0 \
         : self.weights.old == 0 ? self.trafficSplitPercent == 100 \
         : self.trafficSplitPercent >= 1 && self.trafficSplitPercent <= 99 \
         && self.trafficSplitPercent == ROUNDED)";
    let rounded = "(PERCENT < 1 ? 1 : PERCENT > 99 ? 99 : PERCENT)";
    let percent = "(200 * self.weights.new + self.weights.old + self.weights.new) \
         / (2 * (self.weights.old + self.weights.new))";
    let agrees = agrees
        .replace("ROUNDED", rounded)
        .replace("PERCENT", &format!("({percent})"));
    let told_apart = told_apart();
    json!([
        rule(
            &agrees,
            "trafficSplitPercent and weights contradict each other: the percentage must be the rounded share of new \
             in weights (0 and 100 only if exact); give one of the two or make them agree. The controller writes both: \
             beside a percentage of your own give weights: null, or use `crossfade set`",
        ),
        rule(
            "has(self.sourceDeployment)",
            "sourceDeployment is required: it names the old generation, whose proxies follow this update",
        ),
        rule(
            &format!(
                "!has(self.sourceDeployment) || !has(self.targetDeployment) \
                 || self.sourceDeployment != self.targetDeployment || {told_apart}"
            ),
            "sourceDeployment and targetDeployment name the same object: say by workers.old and workers.new which \
             workers belong to which generation, each by a kind, name, revision or selector of its own",
        ),
        rule(
            "!has(self.tls) || self.newFrontendService.trim().lowerAscii().startsWith('https://')",
            "tls is given, but newFrontendService is not https://",
        ),
    ])
}

/// Whether the workers of the two generations can be others. Two selectors are taken for different ones here: to compare
/// them would cost more than the API server allows.
fn told_apart() -> String {
    const FIELDS: [&str; 4] = ["kind", "name", "revision", "selector"];
    let (old, new) = ("self.workers.old", "self.workers.new");
    let says = |side: &str| {
        let says = FIELDS.map(|field| format!("has({side}.{field})"));
        format!("has({side}) && ({})", says.join(" || "))
    };
    let differ = FIELDS.map(|field| match field {
        "selector" => format!("has({old}.selector) || has({new}.selector)"),
        field => format!(
            "(has({old}.{field}) ? {old}.{field} : '') != (has({new}.{field}) ? {new}.{field} : '')"
        ),
    });
    format!(
        "(has(self.workers) && {} && {} && ({}))",
        says(old),
        says(new),
        differ.join(" || ")
    )
}

/// Of `weights`.
pub(super) fn weights() -> Json {
    json!([rule(
        "self.old > 0 || self.new > 0",
        "at least one of old and new must be more than 0",
    )])
}

/// Of `newFrontendService`.
pub(super) fn targets() -> Json {
    json!([rule(
        &format!("self.matches('^{TARGET}(,{TARGET})*$')"),
        "must be host:port, http://host[:port] or https://host[:port], or several of these separated by commas; \
         without a path, query or password",
    )])
}

/// Of a field that names an object of the cluster.
pub(super) fn object_name() -> Json {
    json!([rule(
        "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        "must be the name of an object: lower-case letters, digits, '-' and '.', beginning and ending with a letter \
         or digit",
    )])
}

/// Of a number whose least value is a fraction: where the value is a whole number, the API server's own check cuts the
/// fraction off and lets 0 pass.
pub(super) fn more_than_zero() -> Json {
    json!([rule("self > 0.0", "must be more than 0")])
}

/// Of `probe`.
pub(super) fn probe() -> Json {
    json!([
        rule(
            "!(has(self.path) && has(self.model))",
            "path cannot be given beside model; a model has its own path",
        ),
        rule(
            "!has(self.path) || self.path.matches('^/[!-~]*$')",
            "path must start with '/' and hold no spaces",
        ),
    ])
}

/// Of `tls`.
pub(super) fn tls() -> Json {
    json!([rule(
        "has(self.clientCertFile) == has(self.clientKeyFile)",
        "clientCertFile and clientKeyFile belong together: give both or none",
    )])
}

/// Of a list of header names (RFC 9110 §5.6.2).
pub(super) fn header_names() -> Json {
    json!([
        rule(
            "self.all(name, name.matches('^[A-Za-z0-9!#$%&*+.^_`|~-]+$'))",
            "each must be the name of a header: letters, digits and '-'",
        ),
        rule(
            "self.all(one, self.exists_one(other, other.lowerAscii() == one.lowerAscii()))",
            "names a header twice",
        ),
    ])
}

/// Of a list of names.
pub(super) fn no_name_twice() -> Json {
    json!([rule(
        "self.all(one, self.exists_one(other, other == one))",
        "names a field twice",
    )])
}
