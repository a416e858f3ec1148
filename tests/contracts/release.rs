//! The release process: pinned actions and images, no write permissions in build jobs, consistent licenses, and consistent archive
//! names.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn workflows() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows");
    let files = fs::read_dir(folder).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let files: Vec<_> = files
        .map(|path| {
            (
                path.display().to_string(),
                fs::read_to_string(&path).unwrap(),
            )
        })
        .collect();
    assert!(files.len() > 1);
    files
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}

/// The jobs of a workflow, with the text of each.
fn jobs(workflow: &str) -> Vec<(&str, String)> {
    let (_, jobs) = workflow.split_once("\njobs:\n").unwrap();
    let mut found: Vec<(&str, String)> = Vec::new();
    for line in jobs.lines() {
        let name = line
            .strip_prefix("  ")
            .filter(|rest| !rest.starts_with([' ', '#', '-']));
        match name.and_then(|name| name.split_once(':')) {
            Some((name, _)) => found.push((name, String::new())),
            None => {
                if let Some((_, text)) = found.last_mut() {
                    *text += &format!("{line}\n");
                }
            }
        }
    }
    found
}

#[test]
fn actions_and_base_images_are_pinned_by_digest() {
    let mut actions = 0;
    for (file, text) in workflows() {
        for line in text.lines().filter_map(|line| line.split_once("uses: ")) {
            let (_, used) = line;
            let (_, pin) = used
                .split_once('@')
                .unwrap_or_else(|| panic!("{file}: {used}"));
            let (commit, version) = pin
                .split_once(" # v")
                .unwrap_or_else(|| panic!("{file}: {used} has no version"));
            assert!(is_hex(commit, 40), "{file}: {used}");
            assert!(version.split('.').count() == 3, "{file}: {used}");
            actions += 1;
        }
    }
    assert!(actions > 10);
    let dockerfile = read("Dockerfile");
    let bases = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("FROM "));
    let mut digests = 0;
    for base in bases.filter(|base| !base.starts_with("scratch")) {
        let (_, digest) = base
            .split_once("@sha256:")
            .unwrap_or_else(|| panic!("{base}"));
        assert!(is_hex(&digest[..64], 64), "{base}");
        digests += 1;
    }
    assert_eq!(digests, 2);
}

#[test]
fn no_job_persists_credentials_and_no_build_job_may_write() {
    for (file, text) in workflows() {
        assert!(text.contains("\npermissions: {contents: read}\n"), "{file}");
        for (name, job) in jobs(&text) {
            let checkouts = job.matches("actions/checkout@").count();
            let bare = job.matches("persist-credentials: false").count();
            assert_eq!(checkouts, bare, "{file}: {name}");
            assert!(job.contains("timeout-minutes:"), "{file}: {name}");
            let writes = job.contains("write");
            for builder in [
                "make ",
                "cargo ",
                "package.sh",
                "charts.sh",
                "install.sh",
                "build-push-action",
            ] {
                assert!(
                    !(writes && job.contains(builder)),
                    "{file}: {name} may write, and runs {builder}"
                );
            }
        }
    }
}

#[test]
fn only_the_step_that_creates_the_release_gets_the_token() {
    let release = read(".github/workflows/release.yml");
    let steps = release.split("\n    - ");
    let with_token: Vec<_> = steps.filter(|step| step.contains("GH_TOKEN")).collect();
    let [step] = with_token.as_slice() else {
        panic!("{with_token:?}");
    };
    assert!(step.contains("\n      env: {GH_TOKEN: ") && step.contains("gh release create"));
    // All commands that use it are in that step.
    assert_eq!(
        release.matches("gh release ").count(),
        step.matches("gh release ").count()
    );
}

#[test]
fn the_image_is_unprivileged_and_contains_the_licenses() {
    let dockerfile = read("Dockerfile");
    let (_, last) = dockerfile.rsplit_once("\nFROM ").unwrap();
    for line in [
        "USER 65532:65532",
        "COPY LICENSE /LICENSE",
        "COPY --from=build /THIRD-PARTY.txt /THIRD-PARTY.txt",
        "ENTRYPOINT [\"/crossfade\"]",
    ] {
        assert!(last.lines().any(|other| other == line), "no {line}");
    }
    assert!(
        dockerfile.contains("objcopy --strip-debug")
            && dockerfile.contains("cargo auditable build")
    );
}

#[test]
fn the_license_lists_of_the_tools_are_the_same() {
    let list = |file: &str, name: &str| -> BTreeSet<String> {
        let text = read(file);
        let (_, rest) = text.split_once(&format!("\n{name} = [")).unwrap();
        let inside = rest.split(']').next().unwrap();
        inside
            .split('"')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    let allowed = list("deny.toml", "allow");
    assert!(allowed.len() > 5);
    assert_eq!(list("about.toml", "accepted"), allowed);
}

#[test]
fn tools_have_one_version_everywhere() {
    let files = ["Dockerfile", ".github/workflows/release.yml"].map(read);
    let mut versions = BTreeSet::new();
    for text in &files {
        let words = text
            .split_whitespace()
            .filter(|word| word.starts_with("cargo-"));
        versions.extend(words.filter_map(|word| word.split_once('@')));
    }
    let names: BTreeSet<_> = versions.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), versions.len(), "{versions:?}");
    assert!(names.contains("cargo-auditable") && names.contains("cargo-about"));
    let makefile = read("Makefile");
    let about = versions.iter().find(|(name, _)| *name == "cargo-about");
    let (_, version) = about.unwrap();
    assert!(makefile.contains(&format!("CARGO_ABOUT := {version}\n")));
}

#[test]
fn the_krew_manifest_names_the_uploaded_archives() {
    let directory = tempfile::tempdir().unwrap();
    let tag = format!("v{}", env!("CARGO_PKG_VERSION"));
    for (arch, sum) in [("x86_64", "a"), ("aarch64", "b")] {
        let archive = format!("crossfade-{tag}-linux-{arch}.tar.gz");
        let text = format!("{}  {archive}\n", sum.repeat(64));
        fs::write(directory.path().join(format!("{archive}.sha256")), text).unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/.github/krew.sh");
    let krew = |place: &Path| {
        let mut command = Command::new(script);
        command.args([&*tag, "somebody/crossfade"]).arg(place);
        command.output().unwrap()
    };
    let output = krew(directory.path());
    assert!(output.status.success(), "{output:?}");
    let manifest: Value = serde_saphyr::from_slice(&output.stdout).unwrap();
    let (metadata, spec) = (&manifest["metadata"], &manifest["spec"]);
    assert_eq!(
        (&metadata["name"], &spec["version"]),
        (&"crossfade".into(), &tag.clone().into())
    );
    // Krew rejects longer descriptions.
    assert!(spec["shortDescription"].as_str().unwrap().len() <= 50);
    let platforms = spec["platforms"].as_array().unwrap();
    let pairs = [("amd64", "x86_64", "a"), ("arm64", "aarch64", "b")];
    assert_eq!(platforms.len(), pairs.len());
    for (platform, (arch, machine, sum)) in platforms.iter().zip(pairs) {
        assert_eq!(platform["selector"]["matchLabels"]["arch"], arch);
        assert_eq!(platform["sha256"], sum.repeat(64));
        let archive = format!("crossfade-{tag}-linux-{machine}.tar.gz");
        let uri =
            format!("https://github.com/somebody/crossfade/releases/download/{tag}/{archive}");
        assert_eq!(platform["uri"], uri);
        let from = platform["files"].as_array().unwrap().iter();
        let from: Vec<_> = from.map(|file| file["from"].as_str().unwrap()).collect();
        assert_eq!(from, ["*/bin/crossfade", "*/LICENSE", "*/THIRD-PARTY.txt"]);
    }
    // The name of the archive and its directory in package.sh, which the workflow uploads.
    let package = read(".github/package.sh");
    // The documents link to the files beside them.
    let (_, copied) = package.split_once("\ncp -r ").unwrap();
    let copied = copied.lines().next().unwrap();
    let linked = [
        "SECURITY.md",
        "CONTRIBUTING.md",
        "docs",
        "deploy",
        "examples",
        "proto",
        "benches/README.md",
        "benches/figures",
    ];
    for beside in linked {
        assert!(copied.split(' ').any(|name| name == beside), "{copied}");
    }
    for line in [
        "name=crossfade-$tag-linux-$(uname -m)\n",
        "DESTDIR=\"$root\" PREFIX=\n",
        "--output-file \"$root/THIRD-PARTY.txt\"\n",
        "cp -r --parents LICENSE ",
        ">\"$out/$name.tar.gz\"\n",
        ">\"$name.tar.gz.sha256\"\n",
    ] {
        assert!(package.contains(line), "package.sh has no {line:?}");
    }
    let release = read(".github/workflows/release.yml");
    assert!(release.contains(".github/package.sh \"$GITHUB_REF_NAME\" out"));
    assert!(release.contains("gh release upload \"$GITHUB_REF_NAME\" files/*"));
    // Without an archive there is no manifest.
    let empty = tempfile::tempdir().unwrap();
    assert!(!krew(empty.path()).status.success());
}

#[test]
fn users_verify_what_the_release_signs_and_the_release_verifies_it_first() {
    let release = read(".github/workflows/release.yml");
    let page = read("deploy/README.md");
    let issuer = "--certificate-oidc-issuer https://token.actions.githubusercontent.com";
    let identity =
        "https://github.com/OWNER/crossfade/.github/workflows/release.yml@refs/tags/vVERSION";
    assert!(page.contains(issuer) && page.contains(&format!("--certificate-identity {identity}")));
    // In a run for a tag, the reference is the tag.
    let reference = "--certificate-identity \"https://github.com/$GITHUB_WORKFLOW_REF\"";
    assert!(release.contains(issuer) && release.contains(reference));
    for (signed, verified, documented) in [
        (
            "cosign sign --yes --recursive \"$IMAGE@$digest\"",
            "cosign verify \"$IMAGE:$VERSION\"",
            "cosign verify ghcr.io/OWNER/crossfade:VERSION ",
        ),
        (
            "cosign sign --yes \"$IMAGE/charts/$name@$digest\"",
            "cosign verify \"$IMAGE/charts/$chart:$VERSION\"",
            "cosign verify ghcr.io/OWNER/crossfade/charts/crossfade:VERSION ",
        ),
        (
            "cosign sign-blob --yes --bundle \"$file.sigstore.json\" \"$file\"",
            "cosign verify-blob \"${bundle%.sigstore.json}\" --bundle \"$bundle\"",
            "cosign verify-blob FILE --bundle FILE.sigstore.json ",
        ),
    ] {
        let places = [signed, verified, "gh release upload"].map(|step| release.find(step));
        assert!(places.is_sorted() && places[0].is_some(), "{signed}");
        assert!(page.contains(documented), "{documented}");
    }
}

#[test]
fn a_release_is_a_draft_until_it_is_complete() {
    let release = read(".github/workflows/release.yml");
    let steps = [
        "gh release create \"$GITHUB_REF_NAME\" --draft ",
        "gh release upload ",
        "gh release edit \"$GITHUB_REF_NAME\" --draft=false ",
    ];
    let places = steps.map(|step| release.find(step));
    assert!(
        places.is_sorted() && places[0].is_some(),
        "{places:?} of {steps:?}"
    );
}

/// The crossfade images in documents and manifests.
#[test]
fn the_documents_name_one_image() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![package.join("docs"), package.join("deploy")];
    let mut files = vec![package.join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    let mut count = 0;
    for path in files {
        // Skip images.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let words = text.split(|c: char| c.is_whitespace() || "`\"'(){}[],=".contains(c));
        for word in words {
            let Some((registry, tag)) = word.split_once("/crossfade:") else {
                continue;
            };
            // A release has the image of its publisher.
            if registry.starts_with("ghcr.io/OWNER") {
                continue;
            }
            assert_eq!(registry, "registry.example", "{}: {word}", path.display());
            let tag = tag.trim_end_matches('.');
            let is_next = tag == "0.2.0";
            assert!(
                tag == env!("CARGO_PKG_VERSION") || is_next,
                "{}: {word}",
                path.display()
            );
            count += 1;
        }
        assert!(!text.contains("REGISTRY/crossfade"), "{}", path.display());
    }
    assert!(count > 10, "{count}");
}
