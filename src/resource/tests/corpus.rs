//! Whole files: valid and invalid files of the corpus, damaged files, and arbitrary text.

use std::{fs, path::Path};

use proptest::prelude::*;

use super::*;

/// The files of the corpus, as (name, text).
fn corpus(kind: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus/plan")
        .join(kind);
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let path = file.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            (path.display().to_string(), text)
        })
        .collect();
    assert!(files.len() > 3);
    files.sort_unstable();
    files
}

#[test]
fn every_good_file_of_the_corpus_loads() {
    for (name, text) in corpus("good") {
        if let Err(problems) = load(&text) {
            panic!("{name}:\n{problems}");
        }
    }
}

/// Comments in an invalid file list all expected problems in order, as `# expect: …`.
#[test]
fn every_bad_file_of_the_corpus_has_exactly_the_problems_it_names() {
    for (name, text) in corpus("bad") {
        let expected: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# expect: "))
            .collect();
        let found = problems(&text);
        assert_eq!(found.len(), expected.len(), "{name}: {found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{name}: {found}");
        }
    }
}

#[test]
fn every_cluster_field_is_named_as_without_effect() {
    let properties = schema()["properties"].as_object().unwrap();
    let mut described: Vec<_> = properties
        .iter()
        .filter(|(_, field)| {
            field["description"]
                .as_str()
                .unwrap()
                .ends_with("Cluster only.")
        })
        .map(|(name, _)| name.as_str())
        .collect();
    let (_, text) = corpus("good")
        .into_iter()
        .find(|(name, _)| name.ends_with("every-field.yaml"))
        .unwrap();
    let (manifest, _) = load(&text).unwrap();
    let mut named = manifest.without_effect;
    named.sort_unstable();
    described.sort_unstable();
    assert_eq!(named, described);
    let json = serde_json::to_value(&manifest.spec).unwrap();
    for field in properties.keys() {
        let default = serde_json::to_value(DynamoUpdateConfigSpec::default()).unwrap();
        assert_ne!(
            json.get(field),
            default.get(field),
            "every-field.yaml lacks {field}"
        );
    }
}

#[test]
fn a_spec_written_as_json_loads_as_the_same_spec() {
    for (name, text) in corpus("good") {
        let (manifest, plan) = load(&text).unwrap();
        let json = serde_json::json!({
            "apiVersion": API_VERSION, "kind": KIND, "spec": manifest.spec,
        });
        let again = load(&serde_json::to_string_pretty(&json).unwrap())
            .unwrap_or_else(|problems| panic!("{name}: {problems}"));
        assert_eq!(again.0.spec, manifest.spec, "{name}");
        assert_eq!(again.1.weights, plan.weights, "{name}");
    }
}

proptest! {
    #[test]
    fn any_text_loads_or_has_a_problem(text in "\\PC{0,80}") {
        if let Err(problems) = load(&text) {
            prop_assert!(!problems.is_empty());
        }
    }

    /// Valid files with characters removed or inserted must neither panic nor yield an empty error.
    #[test]
    fn a_damaged_file_loads_or_has_a_problem(
        file in 0usize..64, at in 0usize..4096, cut in 0usize..64, put in "[ -~\n]{0,12}",
    ) {
        let files = corpus("good");
        let mut text: Vec<char> = files[file % files.len()].1.chars().collect();
        let at = at % text.len();
        let end = (at + cut).min(text.len());
        text.splice(at..end, put.chars());
        let text: String = text.into_iter().collect();
        match load(&text) {
            Ok((manifest, plan)) => {
                prop_assert_eq!(Plan::of(manifest.identity, &manifest.spec), Ok(plan));
            }
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                let lines = text.split(['\r', '\n']).count();
                for problem in &problems {
                    prop_assert!(problem.line.is_none_or(|line| line <= lines), "{problem}\n{text}");
                }
            }
        }
    }
}
