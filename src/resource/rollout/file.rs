//! Reads a `DynamoRollout` from a file, and checks one from another source.

use std::sync::LazyLock;

use serde_json::{Value as Json, json};

use super::{DynamoRolloutSpec, ROLLOUT_KIND, problems, rules};
use crate::resource::{
    is_within,
    manifest::{self, Identity},
    problems::{Problem, Problems},
    schema,
    tree::Node,
    yaml,
};

/// A manifest that was read without problems.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutManifest {
    /// The identity of the rollout.
    pub identity: Identity,
    /// The spec, with defaults filled in.
    pub spec: DynamoRolloutSpec,
}

/// The JSON Schema (2020-12) of the `spec` of a rollout, without references.
#[must_use]
pub fn rollout_schema() -> &'static Json {
    static SCHEMA: LazyLock<Json> = LazyLock::new(schema::of::<DynamoRolloutSpec>);
    &SCHEMA
}

/// Reads the manifest of a rollout, in YAML or JSON, of at most [`crate::resource::MAX_BYTES`].
///
/// # Errors
///
/// All problems, in the order of their lines.
pub fn load_rollout(text: &str) -> Result<RolloutManifest, Problems> {
    let mut problems = Problems::default();
    let root = yaml::parse(text, &mut problems);
    let read = root.and_then(|root| read(&root, &mut problems));
    problems.sort();
    match read {
        Some(manifest) if problems.is_empty() => Ok(manifest),
        _ => Err(problems),
    }
}

/// Adds every problem to `problems`, and returns what can be read.
pub(in crate::resource) fn read(root: &Node, problems: &mut Problems) -> Option<RolloutManifest> {
    let resource = manifest::only_resource(root, ROLLOUT_KIND, problems)?;
    let (identity, node) = manifest::open(resource, ROLLOUT_KIND, rollout_schema(), problems);
    let spec = spec(node?, problems)?;
    for problem in rule_problems(&spec, problems) {
        let line = resource.line_of(&problem.path);
        problems.push(problem.at(line));
    }
    Some(RolloutManifest { identity, spec })
}

/// The spec without the parts that have a problem.
fn spec(node: &Node, problems: &mut Problems) -> Option<DynamoRolloutSpec> {
    let mut fields = schema::read_as(node, rollout_schema(), problems)?;
    // Placeholders for required fields that violate no rule, so that the other fields are still checked.
    for (name, placeholder) in [
        ("source", json!({"kind": "Deployment", "name": "source"})),
        ("target", json!({"kind": "Deployment", "name": "target"})),
        (
            "frontends",
            json!({"source": "source", "target": "target", "service": "service"}),
        ),
        ("clientService", json!("client-service")),
    ] {
        fields.entry(name).or_insert(placeholder);
    }
    serde_json::from_value(Json::Object(fields))
        .map_err(|error| problems.push(Problem::new("spec", error.to_string())))
        .ok()
}

/// The problems that the schema cannot express, except consequences of a known problem, because of which a field was left out.
fn rule_problems(spec: &DynamoRolloutSpec, known: &Problems) -> Vec<Problem> {
    let mut found = Problems::default();
    problems::validate(spec, &mut found);
    let is_known = |parent: &str| { known.iter() }.any(|known| is_within(&known.path, parent));
    let are_read = !is_known("spec.source") && !is_known("spec.target");
    let found = found.into_iter().filter(|found| {
        let needs = match &*found.path {
            "spec.traffic.drain.moveAfterSeconds" => "spec.traffic.failover",
            path => path,
        };
        !is_known(&found.path)
            && !is_known(needs)
            && (are_read || !rules::REASONS_ABOUT_BOTH_SIDES.contains(&&*found.message))
    });
    found.collect()
}

impl DynamoRolloutSpec {
    /// The spec in `value`, as an API server returns it.
    ///
    /// # Errors
    ///
    /// All problems of the spec, without lines.
    pub fn read(value: &Json) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let known = schema::only_known_of(value, rollout_schema());
        let spec = spec(&Node::from(known), &mut problems);
        if let Some(spec) = &spec {
            for problem in rule_problems(spec, &problems) {
                problems.push(problem);
            }
        }
        match spec {
            Some(spec) if problems.is_empty() => Ok(spec),
            _ => Err(problems),
        }
    }
}

#[cfg(test)]
mod tests;
