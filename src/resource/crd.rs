//! The CustomResourceDefinitions that `crossfade crd` prints and `deploy/crd/crd.yaml` holds.

use kube::CustomResourceExt;
use serde_json::Value as Json;

use super::{rollout, rollout::DynamoRollout, rules, spec::DynamoUpdateConfig};

/// The definition of `DynamoUpdateConfig` as JSON for the API server.
#[must_use]
pub fn crd() -> Json {
    definition::<DynamoUpdateConfig>(&rules::resource())
}

/// The definition of `DynamoRollout` as JSON for the API server.
#[must_use]
pub fn rollout_crd() -> Json {
    definition::<DynamoRollout>(&rollout::rules::resource())
}

fn definition<K: CustomResourceExt>(rules: &Json) -> Json {
    let mut crd = serde_json::to_value(K::crd())
        .expect("a definition made of plain types can be written as JSON");
    for version in crd["spec"]["versions"].as_array_mut().into_iter().flatten() {
        let schema = &mut version["schema"]["openAPIV3Schema"];
        tidy(schema);
        schema["x-kubernetes-validations"] = rules.clone();
    }
    crd
}

/// The definitions as YAML, with a header that says how they were generated.
#[must_use]
pub fn crd_yaml() -> String {
    let body =
        |crd: &Json| serde_saphyr::to_string(crd).expect("plain JSON can be written as YAML");
    format!(
        "# Made by `crossfade crd`. Do not edit: the source is src/resource/spec.rs, rollout.rs and the status of both.\n---\n{}---\n{}",
        body(&crd()),
        body(&rollout_crd())
    )
}

/// Removes what has no meaning to the API server: unknown formats, and `nullable`. The API server drops a null that is not
/// allowed as if the field were absent, as does the reader of files.
fn tidy(schema: &mut Json) {
    const FORMATS: [&str; 6] = ["int32", "int64", "float", "double", "date", "date-time"];
    match schema {
        Json::Object(fields) => {
            fields.remove("nullable");
            for bound in ["minimum", "maximum"] {
                if let Some(whole) = fields
                    .get(bound)
                    .and_then(Json::as_f64)
                    .filter(|bound| bound.fract() == 0.0)
                {
                    // The bounds are whole numbers far below 2^53.
                    fields.insert(bound.into(), Json::from(whole as i64));
                }
            }
            let known = |format: &Json| format.as_str().is_some_and(|name| FORMATS.contains(&name));
            if fields
                .get("format")
                .is_some_and(|format| format.is_string() && !known(format))
            {
                fields.remove("format");
            }
            if let Some(Json::String(text)) = fields.get_mut("description") {
                // Joins the lines of a doc comment into paragraphs.
                *text = text
                    .replace("\n\n", "\u{0}")
                    .replace('\n', " ")
                    .replace('\u{0}', "\n\n");
            }
            fields.values_mut().for_each(tidy);
        }
        Json::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::schema::tests::each_schema;

    #[test]
    fn every_field_has_a_description_that_is_for_users() {
        let mut count = 0;
        for (crd, part) in [
            (crd(), "spec"),
            (crd(), "status"),
            (rollout_crd(), "spec"),
            (rollout_crd(), "status"),
        ] {
            let fields = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
            each_schema(&fields[part], part, &mut |schema, path| {
                count += 1;
                let said = schema["description"].as_str().unwrap_or_default();
                assert!(path.ends_with("[]") || said.len() > 10, "{path}: {said:?}");
                // Intra-doc links are for readers of the source.
                assert!(!said.contains("[`"), "{path}: {said}");
            });
        }
        assert!(count > 120, "{count}");
    }

    #[test]
    fn deploy_holds_the_definition_that_the_program_prints() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd/crd.yaml");
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == crd_yaml(),
            "deploy/crd/crd.yaml has drifted: write it anew by `crossfade crd >deploy/crd/crd.yaml`"
        );
    }
}
