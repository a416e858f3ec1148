//! Reads a `DynamoRollout` from a file, and checks one that came from elsewhere.

use std::sync::LazyLock;

use serde_json::Value as Json;

use super::{DynamoRolloutSpec, ROLLOUT_KIND, problems};
use crate::resource::{
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
    let read = read(text, &mut problems);
    problems.sort();
    match read {
        Some(manifest) if problems.is_empty() => Ok(manifest),
        _ => Err(problems),
    }
}

fn read(text: &str, problems: &mut Problems) -> Option<RolloutManifest> {
    let root = yaml::parse(text, problems)?;
    let resource = manifest::only_resource(&root, ROLLOUT_KIND, problems)?;
    let (identity, node) = manifest::open(resource, ROLLOUT_KIND, rollout_schema(), problems);
    let spec = spec(node?, problems)?;
    let mut found = Problems::default();
    problems::validate(&spec, &mut found);
    for problem in found.into_iter() {
        let line = resource.line_of(&problem.path);
        problems.push(problem.at(line));
    }
    Some(RolloutManifest { identity, spec })
}

fn spec(node: &Node, problems: &mut Problems) -> Option<DynamoRolloutSpec> {
    let fields = schema::read_as(node, rollout_schema(), problems)?;
    if !problems.is_empty() {
        return None;
    }
    serde_json::from_value(Json::Object(fields))
        .map_err(|error| problems.push(Problem::new("spec", error.to_string())))
        .ok()
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
            problems::validate(spec, &mut problems);
        }
        match spec {
            Some(spec) if problems.is_empty() => Ok(spec),
            _ => Err(problems),
        }
    }
}

#[cfg(test)]
mod tests;
