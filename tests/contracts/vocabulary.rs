//! The vocabulary: names that gave way to the field's own terms do not come back.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that occur nowhere: not in the code, its comments, the documents, or the manifests.
const WORDS: &[&str] = &[
    "rescue", "rescued", "refuge", "refuges", "shelves", "shelf", "unseen", "lookout", "lookouts",
    "teller", "makings", "oldside", "glance", "rush", "movable", "tale",
];

/// Names that no type has. As words they are plain English.
const TYPES: &[&str] = &[
    "Again", "Tries", "Tried", "Place", "World", "Shared", "Door", "Feed", "Fed", "Wish", "Late",
    "Traits", "Eyes", "Held", "Post", "News", "Reach", "Claim", "Moment",
];

/// Names that no module has.
const MODULES: &[&str] = &[
    "save", "moved", "eyes", "held", "concern", "story", "tell", "told", "words", "whole", "board",
    "tally", "wish", "old", "trust", "ask", "pauses", "dry", "news", "behind", "parting", "judge",
    "ruling", "sight", "hand", "stop", "doors", "machine", "plain", "outbox", "turn", "acks",
    "voice", "scene", "stage", "late", "traits", "feed",
];

fn files(folder: &str, kinds: &[&str]) -> Vec<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    let mut folders = vec![package.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|kind| kinds.iter().any(|known| kind == *known))
            {
                files.push(path);
            }
        }
    }
    files
}

/// The words of a text: letters, digits and underscores, as in an identifier.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// All that is found, with one file each time that has it.
fn found() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let sources = files("src", &["rs", "js", "html", "css"]);
    assert!(sources.len() > 100, "the sources are not here");
    let documents = ["docs", "deploy"].map(|folder| files(folder, &["md", "yaml", "json"]));
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    for path in sources
        .iter()
        .chain(documents.iter().flatten())
        .chain([&readme])
    {
        let text = fs::read_to_string(path).unwrap();
        let file = path.display().to_string();
        for word in words(&text).map(str::to_lowercase) {
            if WORDS.contains(&&*word) {
                found.insert((word, file.clone()));
            }
        }
    }
    for path in sources
        .iter()
        .filter(|path| path.extension().is_some_and(|kind| kind == "rs"))
    {
        let text = fs::read_to_string(path).unwrap();
        let file = path.display().to_string();
        let module = path.file_stem().unwrap().to_string_lossy().into_owned();
        if MODULES.contains(&&*module) {
            found.insert((module, file.clone()));
        }
        let code = text.lines().filter_map(|line| line.split("//").next());
        for line in code {
            let mut words = words(line);
            let declares = words.any(|word| ["struct", "enum", "trait", "type"].contains(&word));
            let name = words.next().filter(|name| declares && TYPES.contains(name));
            found.extend(name.map(|name| (name.to_owned(), file.clone())));
        }
    }
    found
}

#[test]
fn names_that_gave_way_to_the_field_s_terms_do_not_come_back() {
    let found = found();
    assert!(found.is_empty(), "use the field's term: {found:#?}");
}
