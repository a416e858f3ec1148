//! Checks the architecture: top-level modules use only modules on lower levels, the pure modules are pure, and the table
//! in `src/lib.rs` matches the tables here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each top-level module and its level.
const LEVELS: &[(u8, &str)] = &[
    (11, "cli"),
    (10, "app"),
    (9, "discovery"),
    (8, "config"),
    (7, "downstream"),
    (6, "admin"),
    (6, "proxy"),
    (5, "controller"),
    (5, "snapshot"),
    (4, "managed_update"),
    (4, "pages"),
    (4, "simulation"),
    (4, "status"),
    (4, "upstream"),
    (3, "guard"),
    (3, "k8s"),
    (3, "scaling"),
    (3, "state_api"),
    (2, "request_body"),
    (2, "resource"),
    (2, "telemetry"),
    (1, "analysis"),
    (1, "continuation"),
    (1, "demo"),
    (1, "failover"),
    (1, "http1"),
    (1, "next_generation"),
    (1, "rollout"),
    (1, "tls"),
    (1, "transport"),
    (0, "backoff"),
    (0, "duration"),
    (0, "dynamo_graph"),
    (0, "error_chain"),
    (0, "files"),
    (0, "inject"),
    (0, "latency"),
    (0, "lifecycle"),
    (0, "memory"),
    (0, "model_list"),
    (0, "printable"),
    (0, "split"),
    (0, "sse"),
];

/// The modules that decide or compute, and do nothing else.
const PURE: &[&str] = &[
    "analysis",
    "backoff",
    "continuation",
    "duration",
    "error_chain",
    "failover",
    "http1",
    "latency",
    "memory",
    "model_list",
    "printable",
    "rollout",
    "scaling",
    "simulation",
    "split",
    "sse",
];

/// What a pure module must not use outside its tests: clocks, randomness, tasks, sockets, files, logs, metrics.
const IMPURE: &[&str] = &[
    "tokio",
    "tracing",
    "prometheus",
    "fastrand",
    "Instant::now",
    "SystemTime",
    "elapsed()",
    "std::fs",
    "std::io::std",
    "std::net",
    "std::thread",
    "println!",
];

/// One source file: its path below the package, and its text without comments.
struct Source {
    path: PathBuf,
    code: String,
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(package().join(path)).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// All Rust files below `folder`, as paths below the package.
fn rust_files(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(package().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if package().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn sources() -> Vec<Source> {
    let sources: Vec<_> = rust_files("src")
        .into_iter()
        .map(|path| Source {
            code: without_comments(&read(&path)),
            path,
        })
        .collect();
    assert!(sources.len() > LEVELS.len(), "no sources found");
    sources
}

/// Cuts each line at `//`. A string that contains it loses its rest, which names no module.
fn without_comments(text: &str) -> String {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The top-level module that a file belongs to; `None` for `lib.rs` and `main.rs`, which are above all modules.
fn module(path: &Path) -> Option<String> {
    let first = path.components().nth(1)?;
    let name = Path::new(first.as_os_str()).file_stem()?.to_str()?;
    (!["lib", "main"].contains(&name)).then(|| name.to_owned())
}

fn level(module: &str) -> u8 {
    let found = LEVELS.iter().find(|(_, known)| *known == module);
    found
        .unwrap_or_else(|| panic!("the module '{module}' has no level: add it to the tables"))
        .0
}

/// The first segments of all `crate::…` paths, groups included.
fn modules_named(code: &str) -> BTreeSet<String> {
    code.split("crate::")
        .skip(1)
        .flat_map(|path| match path.strip_prefix('{') {
            None => vec![identifier(path)],
            Some(group) => first_segments(group),
        })
        // `lib.rs` exports nothing but modules.
        .filter(|name| !name.is_empty())
        .collect()
}

fn identifier(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

/// The first segments of a group, from after its opening brace.
fn first_segments(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut members = vec![String::new()];
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => members.push(String::new()),
            c => members
                .last_mut()
                .expect("there is always one member")
                .push(c),
        }
    }
    let members = members.iter();
    members.map(|member| identifier(member.trim())).collect()
}

/// The other modules that each module uses, each with a file that does.
fn imports() -> BTreeMap<String, BTreeMap<String, PathBuf>> {
    let mut imports: BTreeMap<String, BTreeMap<String, PathBuf>> = BTreeMap::new();
    for source in sources() {
        let Some(module) = module(&source.path) else {
            continue;
        };
        let others = imports.entry(module.clone()).or_default();
        for named in modules_named(&source.code) {
            if named != module {
                others.insert(named, source.path.clone());
            }
        }
    }
    imports
}

#[test]
fn a_module_uses_only_modules_on_lower_levels() {
    let mut wrong = Vec::new();
    for (module, others) in imports() {
        for (other, path) in others {
            if level(&other) >= level(&module) {
                wrong.push(format!(
                    "{}: {module} (level {}) uses {other} (level {})",
                    path.display(),
                    level(&module),
                    level(&other)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_top_level_module_reaches_another_one_by_super() {
    for source in sources() {
        // In `src/foo.rs` itself `super` is the crate, except in an inline module, which is indented.
        let is_top_level = source.path.components().count() == 2;
        let reaches =
            |line: &&str| line.starts_with("use super::") || line.contains("super::super");
        let line = source
            .code
            .lines()
            .find(|line| is_top_level && reaches(line));
        assert_eq!(line, None, "{}", source.path.display());
    }
}

#[test]
fn the_pure_modules_are_pure() {
    let mut wrong = Vec::new();
    for source in sources() {
        let is_pure = module(&source.path).is_some_and(|module| PURE.contains(&&*module));
        if !is_pure || is_for_tests(&source.path) {
            continue;
        }
        let code = source.code.split("#[cfg(test)]\nmod tests {").next();
        for word in IMPURE {
            if code.is_some_and(|code| code.contains(word)) {
                wrong.push(format!("{}: {word}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Is the whole file, or one of those that it is a module of, declared under `#[cfg(test)]`?
fn is_for_tests(path: &Path) -> bool {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap();
    let parent = path.parent().unwrap().with_extension("rs");
    package().join(&parent).is_file()
        && (read(&parent).contains(&format!("#[cfg(test)]\nmod {name};")) || is_for_tests(&parent))
}

#[test]
fn the_architecture_page_shows_the_levels_that_are_checked() {
    let page = read(Path::new("src/lib.rs"));
    let shown: Vec<(u8, String)> = page
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("//! |")?.split('|').map(str::trim);
            let level = cells.next()?.parse().ok()?;
            let module = cells.next()?.strip_prefix("[`")?.strip_suffix("`]")?;
            Some((level, module.to_owned()))
        })
        .collect();
    let checked: Vec<(u8, String)> = LEVELS
        .iter()
        .map(|(level, module)| (*level, (*module).to_owned()))
        .collect();
    assert_eq!(shown, checked);

    let modules: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    let known: BTreeSet<&str> = LEVELS.iter().map(|(_, module)| *module).collect();
    assert_eq!(modules, known);
}

#[test]
fn every_file_starts_with_a_module_comment_and_none_is_called_mod_rs() {
    let folders = ["src", "tests", "benches", "examples", "fuzz/fuzz_targets"];
    let mut wrong = Vec::new();
    for path in folders.into_iter().flat_map(rust_files) {
        if path.ends_with("mod.rs") {
            wrong.push(format!("{}: is called mod.rs", path.display()));
        }
        if !read(&path).starts_with("//! ") {
            wrong.push(format!("{}: does not open with //!", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn paths_are_found_in_all_their_forms() {
    let code = "use crate::a::{b, c};\nuse crate::{d, e::{f, g::h}, i_j::*};\nlet x = crate::k::l();\npub(crate) use m;";
    let named: Vec<_> = modules_named(code).into_iter().collect();
    assert_eq!(named, ["a", "d", "e", "i_j", "k"]);
}
