//! The vocabulary: retired terms do not come back.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that must not occur anywhere in the code, comments, documents, or manifests.
const WORDS: &[&str] = &[
    "rescue", "rescued", "refuge", "refuges", "shelves", "shelf", "unseen", "lookout", "lookouts",
    "teller", "makings", "oldside", "glance", "rush", "movable", "tale",
];

/// Words that must not be part of a name in the code. In prose, they are plain English.
const NAMES: &[&str] = &[
    "told",
    "tell",
    "tells",
    "telling",
    "asker",
    "judge",
    "judged",
    "judges",
    "judging",
    "judgement",
    "saves",
    "looked",
    "ruler",
    "ruled",
    "news",
    "traits",
    "epilogue",
    "eyes",
    "seldom",
    "concerned",
    "complaints",
    "heir",
];

/// Names that no type may have.
const TYPES: &[&str] = &[
    "Again",
    "Tries",
    "Tried",
    "Place",
    "World",
    "Shared",
    "Door",
    "Feed",
    "Fed",
    "Wish",
    "Late",
    "Traits",
    "Eyes",
    "Held",
    "Post",
    "News",
    "Reach",
    "Claim",
    "Moment",
    "Wanted",
    "Settings",
    "Seen",
    "Asked",
    "Ask",
    "Question",
    "Machine",
    "Stage",
    "Phase",
    "Proxy",
    "Watching",
    "Which",
    "Lead",
    "Leads",
    "Apart",
    "Aim",
    "Half",
    "Whole",
    "Alone",
    "Why",
    "Course",
    "Made",
    "Unanswered",
    "Stated",
    "By",
    "Promise",
    "Early",
    "Trials",
    "Otherwise",
    "Broke",
    "Around",
    "Elsewhere",
];

/// Names that no function may have: adverbs, participles, and words that named several things each.
const FUNCTIONS: &[&str] = &[
    "see",
    "look_at",
    "look_after",
    "tend",
    "pretend",
    "essence",
    "still",
    "meant",
    "there",
    "told",
    "restate",
    "reconsider",
    "may_pass",
    "wants",
    "want",
    "go_on",
    "place",
    "broke",
    "came",
    "question",
    "asked",
    "doubts",
    "blame",
    "otherwise",
    "again",
    "any_scene",
    "ask",
    "behind",
    "in_words",
    "look",
    "words",
];

/// Names that no variable, field, parameter, or function of the program may have.
const IDENTIFIERS: &[&str] = &[
    "ask", "asked", "asking", "behind", "dry", "look", "moment", "moments",
];

/// Names that no module may have.
const MODULES: &[&str] = &[
    "save",
    "saves",
    "moved",
    "eyes",
    "seldom",
    "held",
    "concern",
    "story",
    "tell",
    "telling",
    "told",
    "words",
    "whole",
    "board",
    "tally",
    "wish",
    "old",
    "trust",
    "ask",
    "pauses",
    "dry",
    "news",
    "behind",
    "parting",
    "judge",
    "ruling",
    "sight",
    "hand",
    "stop",
    "doors",
    "plain",
    "outbox",
    "turn",
    "acks",
    "voice",
    "scene",
    "stage",
    "machine",
    "late",
    "traits",
    "feed",
    "look",
    "looks",
    "chronicle",
    "contest",
    "holes",
    "doubts",
    "promises",
    "hazards",
    "crowds",
    "heads",
    "odd",
    "seen",
    "leads",
    "ways",
    "drawn",
    "observed",
];

/// Exceptions to [`NAMES`], [`TYPES`], [`FUNCTIONS`], [`IDENTIFIERS`] and [`MODULES`]: a path prefix, the name, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("src/cli", "judge", "the subcommand, which users type"),
    ("src/main", "judge", "the subcommand, which users type"),
    ("tests/cli", "judge", "the subcommand, which users type"),
    (
        "src/app/commands",
        "judge",
        "the subcommand, which users type",
    ),
    ("src/analysis", "look", "an evaluation, in statistics"),
    ("src/controller/verdict", "look", "of `analysis`"),
    ("src/discovery/analysis", "look", "of `analysis`"),
    ("src/status/verdict", "look", "of `analysis`"),
    ("src/scaling/tests", "look", "of the simulated controller"),
    ("src/inject/server", "words", "of a command line"),
    ("src/demo", "words", "of a generated text"),
    ("src/pages/live", "behind", "in a text with values"),
    ("tests", "words", "of a text"),
    ("tests/proxy", "ask", "sends a request"),
    ("benches", "Settings", "of the load generator"),
    (
        "src/analysis",
        "Seen",
        "of one module, which does not export it",
    ),
    ("src/rollout", "Phase", "of an update, the only one"),
    ("src/state_api/v1", "Phase", "of crossfade.v1"),
    ("src/state_api/v1", "Proxy", "the service of crossfade.v1"),
    ("src/proxy", "Proxy", "of requests, the only one"),
    ("tests/support", "Proxy", "the program as a process"),
    ("benches/e2e", "Proxy", "a program that is measured"),
    ("benches/e2e", "machine", "the computer that measures"),
    ("tests/dynamo", "Stage", "of a request, in a test"),
];

/// Files that are skipped, and the reason.
const UNREAD: &[(&str, &str)] = &[
    ("CHANGELOG.md", "says what a name was before"),
    ("tests/contracts/vocabulary.rs", "lists the words"),
    ("tests/corpus", "texts of others, and of earlier versions"),
    ("tests/openai", "texts of others"),
    ("target", "is built"),
];

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// The path relative to the package, with `/`.
fn name_of(path: &Path) -> String {
    let name = path.strip_prefix(PACKAGE).unwrap();
    name.to_string_lossy().into_owned()
}

/// All files with these extensions in these directories.
fn files(roots: &[&str], kinds: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut paths: Vec<_> = roots
        .iter()
        .map(|root| Path::new(PACKAGE).join(root))
        .collect();
    while let Some(path) = paths.pop() {
        let name = name_of(&path);
        if UNREAD.iter().any(|(unread, _)| name.starts_with(unread)) {
            continue;
        }
        if path.is_dir() {
            paths.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if path
            .extension()
            .is_none_or(|kind| kinds.iter().any(|known| kind == *known))
        {
            files.push(path);
        }
    }
    files
}

/// The words of a text, split at every character that is not alphanumeric and before each capital letter.
fn parts(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        let mut part = String::new();
        let mut was_lower = false;
        for letter in word.chars() {
            if letter.is_uppercase() && was_lower {
                parts.push(std::mem::take(&mut part));
            }
            was_lower = !letter.is_uppercase();
            part.extend(letter.to_lowercase());
        }
        parts.push(part);
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// A Rust or JavaScript file without comments and literals.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n')
        } else if rest.starts_with("r#\"") {
            rest.find("\"#").map(|end| end + 2)
        } else if next == '"' {
            let mut letters = rest.char_indices().skip(1);
            loop {
                match letters.next() {
                    Some((_, '\\')) => drop(letters.next()),
                    Some((at, '"')) => break Some(at + 1),
                    Some(_) => {}
                    None => break None,
                }
            }
        } else if rest.starts_with("'\"'") {
            Some(3)
        } else if let Some(escaped) = rest.strip_prefix("'\\") {
            escaped.find('\'').map(|end| end + 3)
        } else {
            code.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = skipped.map_or("", |end| &rest[end..]);
    }
    code
}

fn is_excepted(file: &str, name: &str) -> bool {
    let mut exceptions = EXCEPTIONS.iter();
    exceptions.any(|(path, excepted, _)| file.starts_with(path) && name == *excepted)
}

/// All occurrences: the term and the file.
fn found() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let roots = [
        "src",
        "tests",
        "benches",
        "examples",
        "fuzz/fuzz_targets",
        "proto",
        "docs",
        "deploy",
        ".github",
        "Makefile",
        "README.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
    ];
    let kinds = [
        "rs", "js", "html", "css", "proto", "py", "sh", "md", "yaml", "yml", "json",
    ];
    let all = files(&roots, &kinds);
    assert!(all.len() > 300, "the source files are missing");
    for path in &all {
        let Ok(text) = fs::read_to_string(path) else {
            continue;
        };
        let words = parts(&text).into_iter();
        let words = words.filter(|word| WORDS.contains(&&**word));
        found.extend(words.map(|word| (word, name_of(path))));
    }
    let sources = files(
        &["src", "tests", "benches", "examples", "fuzz/fuzz_targets"],
        &["rs", "js"],
    );
    for path in &sources {
        let file = name_of(path);
        let module = path.file_stem().unwrap().to_string_lossy().into_owned();
        if MODULES.contains(&&*module) && !is_excepted(&file, &module) {
            found.insert((module, file.clone()));
        }
        let code = code(&fs::read_to_string(path).unwrap());
        let names = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        let names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
        for pair in names.windows(2) {
            let declares = ["struct", "enum", "trait", "type"].contains(&pair[0]);
            let is_function = ["fn", "function"].contains(&pair[0]);
            let is_retired = (declares && TYPES.contains(&pair[1]))
                || (is_function && FUNCTIONS.contains(&pair[1]));
            if is_retired && !is_excepted(&file, pair[1]) {
                found.insert((pair[1].to_owned(), file.clone()));
            }
        }
        for name in names {
            let is_retired = file.starts_with("src/") && IDENTIFIERS.contains(&name);
            if is_retired && !is_excepted(&file, name) {
                found.insert((name.to_owned(), file.clone()));
            }
            let parts = parts(name);
            // Longer names are sentences of tests.
            let is_sentence = parts.len() > 4;
            let part = parts.iter().find(|part| NAMES.contains(&&***part));
            if let Some(part) = part.filter(|part| !is_sentence && !is_excepted(&file, part)) {
                found.insert((format!("{part} in {name}"), file.clone()));
            }
        }
    }
    found
}

#[test]
fn retired_terms_do_not_come_back() {
    let found = found();
    assert!(found.is_empty(), "use the standard term: {found:#?}");
}

#[test]
fn names_are_split_and_strings_are_not_names() {
    assert_eq!(
        parts("is_toldApart HTTP2"),
        ["is", "told", "apart", "http2"]
    );
    let text =
        "let a = \"told \\\" b\"; // told\nlet c = '\"'; let d = r#\"told\"#; let e = '\\'';";
    assert!(!code(text).contains("told"), "{}", code(text));
    assert!(code(text).contains("let e"));
}
