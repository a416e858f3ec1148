//! CEL rules for what the API server checks beyond types and bounds, with their messages.
//!
//! [`super::validate::validate`] rejects the same for files and proxies; these rules report it earlier, on `kubectl apply`.
//!
//! The API server estimates the cost of a rule from the bounds of the schema, so a rule over a list or a string needs a
//! maximum length.

use serde_json::{Value as Json, json};

/// The host of a target, without checks of names and addresses.
const HOST: &str = r"([^\\s/?#@,:\\[\\]]+|\\[[0-9A-Fa-f:.]+\\])";

/// A port: 1 to 65535.
const PORT: &str =
    "0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";

/// The syntax of one target, as [`super::TargetAddress`] parses it: a scheme and a host, or a host and a port.
fn target() -> String {
    format!(r"\\s*((?i:https?)://{HOST}(:{PORT})?/?|{HOST}:{PORT})\\s*")
}

/// Why `drain.moveAfterSeconds` is rejected.
pub(super) const MOVES_MESSAGE: &str =
    "moves streams to the other generation, which needs failover.continuation.mode: AnyGeneration";

/// Why `steps` are rejected.
pub(super) const STEPS_MESSAGE: &str =
    "each step must have a higher percent than the one before it";

pub(super) fn rule(rule: &str, message: &str) -> Json {
    json!({"rule": rule, "message": message})
}

/// Rules for the whole resource, where its name is available.
#[cfg(feature = "kube")]
pub(super) fn resource() -> Json {
    json!([rule(
        "!has(self.spec.supersedes) || self.spec.supersedes != self.metadata.name",
        "spec.supersedes: an update cannot supersede itself; name the older update that this one replaces",
    )])
}

/// Rules for `spec`.
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
    let distinguishes = distinguishes();
    json!([
        rule(
            &agrees,
            "trafficSplitPercent and weights contradict each other: the percentage must be the rounded share of new \
             in weights (0 and 100 only if exact); set only one of the two, or make them agree. The controller writes both: \
             if you set a percentage, also set weights: null, or use `crossfade set`",
        ),
        rule(
            "has(self.sourceDeployment)",
            "sourceDeployment is required: it names the old generation, whose proxies follow this update",
        ),
        rule(
            &format!(
                "!has(self.sourceDeployment) || !has(self.targetDeployment) \
                 || self.sourceDeployment != self.targetDeployment || {distinguishes}"
            ),
            "sourceDeployment and targetDeployment name the same object: use workers.old and workers.new to say which \
             workers belong to which generation, each with its own kind, name, revision, or selector",
        ),
        rule(
            "!has(self.tls) || self.newFrontendService.trim().lowerAscii().startsWith('https://')",
            "tls is given, but newFrontendService is not https://",
        ),
        moves_rule(),
    ])
}

fn moves_rule() -> Json {
    rule(
        "!has(self.drain) || !has(self.drain.moveAfterSeconds) \
         || (has(self.failover) && has(self.failover.continuation) && has(self.failover.continuation.mode) \
         && self.failover.continuation.mode == 'AnyGeneration')",
        &format!("drain.moveAfterSeconds {MOVES_MESSAGE}"),
    )
}

/// Rules for what proxies do with requests, in a rollout.
pub(super) fn moves() -> Json {
    json!([moves_rule()])
}

/// Whether `workers` distinguishes the two generations. Two selectors count as different here, because a comparison would
/// exceed the cost limit of the API server.
fn distinguishes() -> String {
    const FIELDS: [&str; 4] = ["kind", "name", "revision", "selector"];
    let (old, new) = ("self.workers.old", "self.workers.new");
    let says = |generation: &str| {
        let says = FIELDS.map(|field| format!("has({generation}.{field})"));
        format!("has({generation}) && ({})", says.join(" || "))
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

/// Rules for `weights`.
pub(super) fn weights() -> Json {
    json!([rule(
        "self.old > 0 || self.new > 0",
        "at least one of old and new must be more than 0",
    )])
}

/// Rules for `newFrontendService`.
pub(super) fn targets() -> Json {
    let target = target();
    json!([rule(
        &format!("self.matches('^{target}(,{target})*$')"),
        "must be host:port, http://host[:port], or https://host[:port], or several of these separated by commas; \
         with ports from 1 to 65535, and without a path, query, or password",
    )])
}

/// A DNS label (RFC 1123) as a regular expression.
const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

/// Rules for a field that names an object in the cluster: what [`is_object_name`](super::is_object_name) checks, except the length.
pub(super) fn object_name() -> Json {
    json!([rule(
        &format!("self.matches('^{LABEL}([.]{LABEL})*$')"),
        "must be the name of an object: lower-case letters, digits, '-', and '.', where each part between dots begins and ends \
     with a letter or digit",
    )])
}

/// Rules for a number with a fractional minimum. If the value is an integer, the API server's own check truncates the minimum
/// and accepts 0.
pub(super) fn more_than_zero() -> Json {
    json!([rule("self > 0.0", "must be more than 0")])
}

/// Rules for `analysis.confidence`, whose bounds the API server truncates for an integer.
pub(super) fn confidence() -> Json {
    json!([rule(
        "self >= 0.5 && self < 1.0",
        "must be at least 0.5 and less than 1"
    )])
}

/// Rules for `steps`.
pub(super) fn steps() -> Json {
    json!([rule(
        "self.map(step, step.percent).isSorted() \
         && self.all(one, self.exists_one(other, other.percent == one.percent))",
        STEPS_MESSAGE,
    )])
}

/// Rules for `probe`.
pub(super) fn probe() -> Json {
    json!([
        rule(
            "!(has(self.path) && has(self.model))",
            "path and model cannot both be set; a model has its own path",
        ),
        rule(
            "!has(self.path) || self.path.matches('^/[!-~]*$')",
            "path must start with '/' and contain no spaces",
        ),
    ])
}

/// Rules for `tls`.
pub(super) fn tls() -> Json {
    json!([rule(
        "has(self.clientCertFile) == has(self.clientKeyFile)",
        "clientCertFile and clientKeyFile must be set together",
    )])
}

/// Rules for a list of header names (RFC 9110 §5.6.2).
pub(super) fn header_names() -> Json {
    json!([
        rule(
            "self.all(name, name.matches('^[A-Za-z0-9!#$%&*+.^_`|~-]+$'))",
            "each must be the name of a header: letters, digits, and '-'",
        ),
        rule(
            "self.all(one, self.exists_one(other, other.lowerAscii() == one.lowerAscii()))",
            "names a header twice",
        ),
    ])
}

/// Rules for a list of names.
pub(super) fn no_name_twice() -> Json {
    json!([rule(
        "self.all(one, self.exists_one(other, other == one))",
        "names a field twice",
    )])
}
