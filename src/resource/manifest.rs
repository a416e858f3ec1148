//! The envelope of the `spec`: `apiVersion`, `kind`, `metadata` and `status`, as a user writes it or `kubectl get -o yaml`
//! prints it.

use serde_json::Value as Json;

use super::{
    object_name::is_object_name,
    problems::{Problem, Problems},
    schema::nearest,
    spec::DynamoUpdateConfigSpec,
    tree::{Node, Value},
};

/// The group and version of the resource.
pub const API_VERSION: &str = "nvidia.com/v1alpha1";
/// The kind of the resource.
pub const KIND: &str = "DynamoUpdateConfig";

/// A manifest that was read without problems.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The identity of the update.
    pub identity: Identity,
    /// The spec, with defaults filled in.
    pub spec: DynamoUpdateConfigSpec,
    /// Fields of the `spec` that are set but only have an effect in a cluster.
    pub without_effect: Vec<&'static str>,
}

/// The parts of `metadata` that identify an update and its edit. All of them are optional in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `metadata.namespace`
    pub namespace: Option<String>,
    /// `metadata.name`
    pub name: Option<String>,
    /// `metadata.uid`
    pub uid: Option<String>,
    /// `metadata.generation`, which identifies an edit of the `spec`.
    pub generation: Option<i64>,
}

impl Identity {
    /// The source of a plan from a cluster, in a form for users: `cluster: NAMESPACE/NAME`.
    #[must_use]
    pub fn source(&self) -> String {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("cluster: {}/{}", part(&self.namespace), part(&self.name))
    }
}

/// The single resource in `root`, which may be a `List` around it.
pub(super) fn only_resource<'a>(
    root: &'a Node,
    kind: &str,
    problems: &mut Problems,
) -> Option<&'a Node> {
    if root.text("kind") != Some("List") {
        return Some(root);
    }
    match root.get("items").map(|items| &items.value) {
        Some(Value::List(items)) if items.len() == 1 => items.first(),
        Some(Value::List(items)) => {
            let message = format!("must contain exactly one {kind}, contains {}", items.len());
            problems.push(Problem::new("items", message).at(root.line_of("items")));
            None
        }
        _ => {
            problems.push(Problem::new("items", "must be a list").at(root.line_of("items")));
            None
        }
    }
}

/// Whether a `kind` is this one, or probably a misspelling of it.
fn is_meant(node: &Node, kind: &str) -> bool {
    match &node.value {
        Value::Text(text) => nearest(text, std::iter::once(kind)).is_some(),
        _ => false,
    }
}

/// Which of two kinds the single resource in `root` has, possibly misspelled.
///
/// # Errors
/// When it has another kind, or none.
pub(super) fn which<'k>(root: &Node, kinds: [&'k str; 2]) -> Result<&'k str, Problems> {
    let wanted = kinds.join(" or ");
    let mut problems = Problems::default();
    let Some(resource) = only_resource(root, &wanted, &mut problems) else {
        return Err(problems);
    };
    let problem = match (&resource.value, resource.get("kind")) {
        (Value::Map(_), Some(node)) => {
            if let Some(kind) = kinds.into_iter().find(|kind| is_meant(node, kind)) {
                return Ok(kind);
            }
            Problem::new("kind", format!("must be {wanted}, not {}", node.value)).at(node.line)
        }
        (Value::Map(_), None) => {
            let message = format!("is required, and must be {wanted}");
            Problem::new("kind", message).at(resource.line)
        }
        (value, _) => {
            Problem::new("", format!("must be a {wanted}, not {value}")).at(resource.line)
        }
    };
    Err(problem.into())
}

/// Checks the envelope of `resource`, and returns its identity and `spec`.
pub(super) fn open<'a>(
    resource: &'a Node,
    kind: &str,
    schema: &Json,
    problems: &mut Problems,
) -> (Identity, Option<&'a Node>) {
    let Value::Map(entries) = &resource.value else {
        let message = format!("must be a {kind}, not {}", resource.value);
        problems.push(Problem::new("", message).at(resource.line));
        return (Identity::default(), None);
    };
    if let Some(node) = resource.get("kind")
        && !is_meant(node, kind)
    {
        // The fields of another resource would only be reported as unknown ones.
        let message = format!("must be {kind}, not {}", node.value);
        problems.push(Problem::new("kind", message).at(node.line));
        return (Identity::default(), None);
    }
    let known = ["apiVersion", "kind", "metadata", "spec", "status"];
    for entry in entries {
        if !known.contains(&entry.key.as_str()) {
            let message = match nearest(&entry.key, known.into_iter()) {
                Some(known) => format!("unknown field; did you mean '{known}'?"),
                None if !schema["properties"][&entry.key].is_null() => {
                    "unknown field; it belongs under 'spec'".into()
                }
                None => "unknown field".into(),
            };
            problems.push(Problem::new(&entry.key, message).at(entry.node.line));
        }
    }
    for (key, wanted) in [("apiVersion", API_VERSION), ("kind", kind)] {
        let problem = match resource.get(key) {
            None => format!("is required, and must be {wanted}"),
            Some(_) if resource.text(key) == Some(wanted) => continue,
            Some(node) => format!("must be {wanted}, not {}", node.value),
        };
        problems.push(Problem::new(key, problem).at(resource.line_of(key)));
    }
    let spec = resource.get("spec");
    if spec.is_none() {
        problems.push(Problem::new("spec", "is required").at(resource.line));
    }
    (identity(resource), spec)
}

/// Checks what only an API server does otherwise: the names, which are optional in a file for a proxy. Returns whether it has a name.
pub(super) fn check_names(resource: &Node, needs_name: bool, problems: &mut Problems) -> bool {
    let mut report = |path: &str, message: String| {
        problems.push(Problem::new(path, message).at(resource.line_of(path)));
    };
    let of = |key| {
        resource
            .get("metadata")
            .and_then(|metadata| metadata.get(key))
    };
    let value = |node: Option<&Node>| node.map(|node| node.value.clone());
    let is_missing = |value: &Option<Value>| matches!(value, None | Some(Value::Null));
    let name = value(of("name"));
    let mut has_name = true;
    match &name {
        Some(Value::Text(name)) if !is_object_name(name) => {
            report(
                "metadata.name",
                format!("'{}' is not a valid object name", name.escape_debug()),
            );
        }
        Some(Value::Text(_)) => {}
        missing if is_missing(missing) && is_missing(&value(of("generateName"))) => {
            has_name = false;
            if needs_name {
                report("metadata.name", "is required in a cluster".to_owned());
            }
        }
        missing if is_missing(missing) => {}
        Some(other) => report("metadata.name", format!("must be a string, not {other}")),
        None => {}
    }
    match value(of("namespace")) {
        Some(Value::Text(name)) if !is_object_name(&name) || name.contains('.') => {
            report(
                "metadata.namespace",
                format!(
                    "'{}' is not a valid name of a namespace",
                    name.escape_debug()
                ),
            );
        }
        None | Some(Value::Text(_) | Value::Null) => {}
        Some(other) => report(
            "metadata.namespace",
            format!("must be a string, not {other}"),
        ),
    }
    let supersedes = resource
        .get("spec")
        .and_then(|spec| spec.text("supersedes"));
    if let (Some(Value::Text(name)), Some(other)) = (&name, supersedes)
        && name == other
    {
        report(
            "spec.supersedes",
            "an update cannot supersede itself; name the older update that this one replaces"
                .to_owned(),
        );
    }
    has_name
}

/// `metadata` may have any shape: fields of the wrong type are ignored.
fn identity(resource: &Node) -> Identity {
    let Some(metadata) = resource.get("metadata") else {
        return Identity::default();
    };
    let text = |key| metadata.text(key).map(str::to_owned);
    let generation = match metadata.get("generation").map(|node| &node.value) {
        Some(Value::Integer(generation)) => Some(*generation),
        _ => None,
    };
    Identity {
        namespace: text("namespace"),
        name: text("name"),
        uid: text("uid"),
        generation,
    }
}
