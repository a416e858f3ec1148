//! The schema of the `spec`, generated from its types, and a reader that checks a tree against it.
//!
//! Files and clusters share one schema, so that they cannot drift apart: the reader enforces for files what the API server
//! enforces in a cluster. Does not depend on the meaning of any field.

use std::sync::LazyLock;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Number, Value as Json};

use super::{
    problems::{Problem, Problems},
    spec::DynamoUpdateConfigSpec,
    tree::{Entry, Node, Value},
};

/// The JSON Schema (2020-12) of the `spec`, without references.
#[must_use]
pub fn schema() -> &'static Json {
    static SCHEMA: LazyLock<Json> = LazyLock::new(of::<DynamoUpdateConfigSpec>);
    &SCHEMA
}

/// The JSON Schema (2020-12) of a type, without references.
pub(super) fn of<T: JsonSchema>() -> Json {
    SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// Checks `node` against the schema of the `spec`.
///
/// Records every problem and returns the rest without the fields that have problems, so that it can still be checked; `None` if
/// `node` is not an object.
///
/// A field that is null counts as absent, as it does for the API server.
pub(super) fn read(node: &Node, problems: &mut Problems) -> Option<Map<String, Json>> {
    read_as(node, schema(), problems)
}

/// Like [`read`], for the `spec` of another schema.
pub(super) fn read_as(
    node: &Node,
    schema: &Json,
    problems: &mut Problems,
) -> Option<Map<String, Json>> {
    let Value::Map(entries) = &node.value else {
        mismatch("spec", node, "an object", problems);
        return None;
    };
    let (fields, _) = object(node, entries, schema, "spec", problems);
    Some(fields)
}

/// The part of a `spec` that the schema knows, at all depths.
pub(super) fn only_known(spec: &Json) -> Json {
    only_known_of(spec, schema())
}

/// The same for another schema.
pub(super) fn only_known_of(spec: &Json, schema: &Json) -> Json {
    fn prune(value: &Json, schema: &Json) -> Json {
        match value {
            Json::Object(fields) if schema["properties"].is_object() => fields
                .iter()
                .filter_map(|(name, value)| {
                    let field = schema["properties"].get(name)?;
                    Some((name.clone(), prune(value, field)))
                })
                .collect(),
            _ => value.clone(),
        }
    }
    prune(spec, schema)
}

/// The valid part of `node`; `None` if there is none.
fn value(node: &Node, schema: &Json, path: &str, problems: &mut Problems) -> Option<Json> {
    let wanted = type_of(schema);
    if schema["x-kubernetes-int-or-string"] == true {
        return int_or_string(node, path, problems);
    }
    match (&node.value, wanted) {
        (Value::Map(entries), "object") => {
            let (fields, complete) = object(node, entries, schema, path, problems);
            complete.then_some(Json::Object(fields))
        }
        (Value::List(items), "array") => list(node, items, schema, path, problems),
        (Value::Text(text), "string") => {
            let length = text.chars().count();
            let unit = "character";
            bounded_length(length, schema, ["minLength", "maxLength"], unit)
                .and_then(|()| one_of(text, schema))
                .map_err(|message| problems.push(Problem::new(path, message).at(node.line)))
                .ok()
                .map(|()| Json::from(text.as_str()))
        }
        (Value::Bool(value), "boolean") => Some(Json::from(*value)),
        (Value::Integer(value), "integer" | "number") => {
            number(node, (*value).into(), schema, path, problems)
        }
        (Value::Float(value), "number") => match Number::from_f64(*value) {
            Some(finite) => number(node, finite, schema, path, problems),
            None => mismatch(path, node, "a finite number", problems),
        },
        (_, "object") => mismatch(path, node, "an object", problems),
        (_, "array") => mismatch(path, node, "a list", problems),
        (_, "string") => mismatch(path, node, "text", problems),
        (_, "boolean") => mismatch(path, node, "true or false", problems),
        (_, "integer") => mismatch(path, node, "a whole number", problems),
        _ => mismatch(path, node, "a number", problems),
    }
}

/// Reads an integer or a text. Whether it is a valid amount is checked later, with the other rules.
fn int_or_string(node: &Node, path: &str, problems: &mut Problems) -> Option<Json> {
    match &node.value {
        // Larger numbers are rejected later as an amount, with the same message as an invalid text.
        Value::Integer(number @ 0..=0xFFFF_FFFF) => Some(Json::from(*number)),
        Value::Integer(number) => Some(Json::from(number.to_string())),
        Value::Text(text) => Some(Json::from(text.as_str())),
        _ => mismatch(path, node, "a number or a percentage", problems),
    }
}

/// The valid fields, and whether all required ones are among them.
fn object(
    node: &Node,
    entries: &[Entry],
    schema: &Json,
    path: &str,
    problems: &mut Problems,
) -> (Map<String, Json>, bool) {
    let mut fields = Map::new();
    if let Err(message) = bounded_length(
        entries.len(),
        schema,
        ["minProperties", "maxProperties"],
        "field",
    ) {
        problems.push(Problem::new(path, message).at(node.line));
    }
    let given = |entry: &&Entry| !matches!(entry.node.value, Value::Null);
    for entry in entries.iter().filter(given) {
        let path = format!("{path}.{}", entry.key);
        let field = schema["properties"]
            .get(&entry.key)
            .or_else(|| schema.get("additionalProperties"));
        if let Some(field) = field.filter(|field| field.is_object()) {
            if let Some(value) = value(&entry.node, field, &path, problems) {
                fields.insert(entry.key.clone(), value);
            }
        } else {
            let message = unknown_field(&entry.key, schema);
            problems.push(Problem::new(path, message).at(entry.node.line));
        }
    }
    let mut complete = true;
    for name in names(&schema["required"]) {
        if !entries.iter().filter(given).any(|entry| entry.key == name) {
            problems.push(Problem::new(format!("{path}.{name}"), "is required").at(node.line));
        }
        complete &= fields.contains_key(name);
    }
    (fields, complete)
}

fn list(
    node: &Node,
    items: &[Node],
    schema: &Json,
    path: &str,
    problems: &mut Problems,
) -> Option<Json> {
    let before = problems.len();
    if let Err(message) = bounded_length(items.len(), schema, ["minItems", "maxItems"], "item") {
        problems.push(Problem::new(path, message).at(node.line));
    }
    let mut values = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        values.extend(value(item, &schema["items"], &path, problems));
    }
    (problems.len() == before).then_some(Json::Array(values))
}

fn number(
    node: &Node,
    number: Number,
    schema: &Json,
    path: &str,
    problems: &mut Problems,
) -> Option<Json> {
    let value = number.as_f64()?;
    let bound = |name| schema.get(name).and_then(Json::as_f64);
    let (min, max) = (bound("minimum"), bound("maximum"));
    if min.is_none_or(|min| value >= min) && max.is_none_or(|max| value <= max) {
        return Some(Json::Number(number));
    }
    let range = match (min, max) {
        (Some(min), Some(max)) => format!("from {min} to {max}"),
        (Some(min), None) => format!("at least {min}"),
        (_, max) => format!("at most {}", max.unwrap_or_default()),
    };
    mismatch(path, node, &range, problems)
}

/// Whether `length` is within the bounds that `schema` gives by the names `[min, max]`.
fn bounded_length(
    length: usize,
    schema: &Json,
    [min, max]: [&str; 2],
    unit: &str,
) -> Result<(), String> {
    let bound = |name| schema.get(name).and_then(Json::as_u64);
    let length = length as u64;
    match (bound(min), bound(max)) {
        (Some(_), _) if length == 0 => Err("must not be empty".into()),
        (Some(min), _) if length < min => {
            Err(format!("must have at least {min} {unit}s, has {length}"))
        }
        (_, Some(max)) if length > max => {
            Err(format!("must have at most {max} {unit}s, has {length}"))
        }
        _ => Ok(()),
    }
}

/// Whether `text` is one of those that `schema` lists, if it lists any.
fn one_of(text: &str, schema: &Json) -> Result<(), String> {
    let mut known = names(&schema["enum"]).peekable();
    if known.peek().is_none() || names(&schema["enum"]).any(|name| name == text) {
        return Ok(());
    }
    let hint = match nearest(text, names(&schema["enum"])) {
        Some(meant) => format!("; did you mean '{meant}'?"),
        None => String::new(),
    };
    let known: Vec<_> = known.collect();
    let text = text.escape_debug();
    Err(format!(
        "must be one of {}, not '{text}'{hint}",
        known.join(", ")
    ))
}

/// Records that `node` is not of the `wanted` type.
fn mismatch(path: &str, node: &Node, wanted: &str, problems: &mut Problems) -> Option<Json> {
    let hint = match (&node.value, wanted) {
        (Value::Text(text), "a whole number" | "a number") if text.parse::<f64>().is_ok() => {
            "; write it without quotes or leading zeros"
        }
        (Value::Text(text), "true or false") if matches!(&**text, "true" | "false") => {
            "; write it without quotes"
        }
        (Value::Integer(_) | Value::Float(_) | Value::Bool(_), "text") => "; put it in quotes",
        _ => "",
    };
    let message = format!("must be {wanted}, not {}{hint}", node.value);
    problems.push(Problem::new(path, message).at(node.line));
    None
}

/// The type that `schema` requires, besides null.
fn type_of(schema: &Json) -> &str {
    match &schema["type"] {
        Json::Array(types) => types
            .iter()
            .filter_map(Json::as_str)
            .find(|name| *name != "null")
            .unwrap_or_default(),
        single => single.as_str().unwrap_or_default(),
    }
}

fn names(list: &Json) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
}

fn unknown_field(name: &str, schema: &Json) -> String {
    let known = schema["properties"].as_object().into_iter().flatten();
    match nearest(name, known.map(|(known, _)| known.as_str())) {
        Some(known) => format!("unknown field; did you mean '{known}'?"),
        None => "unknown field".into(),
    }
}

/// The name that was probably meant: it differs only in case and separators, or is abbreviated, or has at most a third of its
/// letters mistyped.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| -> String {
        name.chars()
            .take(64)
            .filter(|letter| !matches!(letter, '_' | '-'))
            .flat_map(char::to_lowercase)
            .collect()
    };
    let name = plain(name);
    let near = |known: &'a str| {
        let letters = plain(known);
        let distance = strsim::levenshtein(&name, &letters);
        let cut_short = name.chars().count() >= 4 && letters.starts_with(&name);
        (cut_short || distance * 3 <= letters.chars().count()).then_some((distance, known))
    };
    known
        .filter_map(near)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::resource) fn each_schema(
        schema: &Json,
        path: &str,
        visit: &mut impl FnMut(&Json, &str),
    ) {
        visit(schema, path);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            each_schema(field, &format!("{path}.{name}"), visit);
        }
        for inner in ["items", "additionalProperties"] {
            if schema[inner].is_object() {
                each_schema(&schema[inner], &format!("{path}[]"), visit);
            }
        }
    }

    #[test]
    fn the_reader_knows_every_keyword_of_the_schema() {
        each_schema(schema(), "spec", &mut |schema, path| {
            for (keyword, argument) in schema.as_object().expect(path) {
                let known = match keyword.as_str() {
                    "type" => matches!(
                        type_of(schema),
                        "object" | "array" | "string" | "boolean" | "integer" | "number"
                    ),
                    "additionalProperties" => argument.is_object(),
                    "enum" => names(argument).count() > 0,
                    "properties" | "required" | "items" | "minimum" | "maximum" | "minLength"
                    | "maxLength" | "minItems" | "maxItems" | "maxProperties" => true,
                    // A rule of the API server; `validate` rejects the same.
                    "x-kubernetes-validations" => true,
                    // These do not restrict values.
                    keyword => {
                        ["$schema", "title", "description", "default", "format"].contains(&keyword)
                    }
                };
                assert!(known, "{path}: {keyword}: {argument}");
            }
        });
    }

    #[test]
    fn every_number_has_bounds_that_its_type_can_hold() {
        each_schema(schema(), "spec", &mut |schema, path| {
            if matches!(type_of(schema), "integer" | "number") {
                assert!(schema["minimum"].is_number(), "{path}");
                assert!(schema["maximum"].is_number(), "{path}");
            }
        });
    }

    #[test]
    fn a_typo_gets_the_intended_name_as_a_suggestion() {
        let known = ["trafficSplitPercent", "models", "tls", "probe"];
        for (name, meant) in [
            ("trafficSplitPrecent", Some("trafficSplitPercent")),
            ("traffic_split_percent", Some("trafficSplitPercent")),
            ("TrafficSplit", Some("trafficSplitPercent")),
            ("model", Some("models")),
            ("TLS", Some("tls")),
            ("replicas", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known.into_iter()), meant, "{name}");
        }
    }
}
