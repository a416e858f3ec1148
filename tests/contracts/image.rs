//! The Dockerfile copies all files that the build needs, and .dockerignore does not exclude them.

use std::fs;
use std::path::{Path, PathBuf};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The paths below the package that `Dockerfile` copies from the context.
fn copied() -> Vec<PathBuf> {
    let copied: Vec<PathBuf> = read("Dockerfile")
        .lines()
        .filter_map(|line| {
            line.strip_prefix("COPY ")
                .filter(|rest| !rest.starts_with("--from"))
        })
        .flat_map(|rest| {
            let mut paths: Vec<PathBuf> = rest.split_whitespace().map(PathBuf::from).collect();
            paths.pop();
            paths
        })
        .collect();
    assert!(!copied.is_empty(), "nothing is copied");
    copied
}

fn is_copied(path: &Path) -> bool {
    copied().iter().any(|copied| path.starts_with(copied))
}

/// The files outside of `src` that are included by files in `src`.
fn included() -> Vec<PathBuf> {
    let mut included = Vec::new();
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        for entry in fs::read_dir(package.join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if package.join(&path).is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(package.join(&path)).unwrap_or_default();
            for macro_name in ["include_str!(\"", "include_bytes!(\""] {
                for rest in text.split(macro_name).skip(1) {
                    let named = rest.split('"').next().unwrap();
                    let real = package.join(&folder).join(named).canonicalize();
                    let real =
                        real.unwrap_or_else(|error| panic!("{}: {named}: {error}", path.display()));
                    let below = real.strip_prefix(package.canonicalize().unwrap()).unwrap();
                    included.push(below.to_path_buf());
                }
            }
        }
    }
    assert!(
        included.iter().any(|path| path.starts_with("deploy")),
        "{included:?}"
    );
    included
}

#[test]
fn the_image_copies_all_files_that_the_build_needs() {
    let mut needed = included();
    // Cargo also needs all targets that are named in the manifest or are in their default directories.
    needed.extend(["Cargo.toml", "Cargo.lock", "src", "benches", "examples"].map(PathBuf::from));
    let lacking: Vec<_> = needed.iter().filter(|path| !is_copied(path)).collect();
    assert!(
        lacking.is_empty(),
        "not copied by the Dockerfile: {lacking:?}"
    );
}

#[test]
fn no_copied_file_is_ignored_by_dockerignore() {
    let ignored = read(".dockerignore");
    let sent: Vec<&Path> = ignored
        .lines()
        .filter_map(|line| Some(Path::new(line.strip_prefix('!')?)))
        .collect();
    assert!(ignored.lines().any(|line| line == "*"), "all is sent");
    let kept: Vec<_> = copied()
        .into_iter()
        .filter(|path| !sent.iter().any(|sent| path.starts_with(sent)))
        .collect();
    assert!(kept.is_empty(), "ignored by .dockerignore: {kept:?}");
}
