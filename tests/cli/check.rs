//! `crossfade check`: which plans it accepts, and how it explains errors in the others.

use std::fs;
use std::path::{Path, PathBuf};

use super::command_line::{hostile_manifest, steers, texts};
use crate::rig::proxy::run;
use crate::rig::*;

fn corpus(kind: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus/plan")
        .join(kind);
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    files
}

#[test]
fn check_accepts_valid_files() {
    for path in corpus("good") {
        let (status, stdout, stderr) = texts(&run(&["check", path.to_str().unwrap()]));
        assert_eq!(status, Some(0), "{}: {stdout}{stderr}", path.display());
        assert!(stdout.contains(path.to_str().unwrap()), "{stdout}");
    }
}

#[test]
fn check_names_every_problem_at_once_with_path_and_line() {
    let mut files = corpus("bad");
    // `check` checks each of several documents; only `proxy --plan` refuses them.
    files.retain(|path| !path.ends_with("two-documents.yaml"));
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let (status, stdout, stderr) = texts(&run(&["check", path.to_str().unwrap()]));
        assert_eq!(status, Some(1), "{}: {stdout}{stderr}", path.display());
        let output = stdout + &stderr;
        for problem in text
            .lines()
            .filter_map(|line| line.strip_prefix("# expect: "))
        {
            let field = problem.split(": ").nth(1).unwrap_or(problem);
            assert!(
                output.contains(field),
                "{}: {problem} is not in\n{output}",
                path.display()
            );
            if let Some(line) = problem
                .strip_prefix("line ")
                .and_then(|rest| rest.split(':').next())
            {
                let as_word = output.contains(&format!("line {line}:"));
                let as_place = output.contains(&format!("{}:{line}", path.display()));
                assert!(
                    as_word || as_place,
                    "{}: line {line} is not in\n{output}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn check_checks_several_files_and_names_each() {
    let good = corpus("good")[0].to_str().unwrap().to_owned();
    let bad = corpus("bad")[0].to_str().unwrap().to_owned();
    let (status, stdout, stderr) = texts(&run(&["check", &good, &bad]));
    assert_eq!(status, Some(1));
    let output = stdout + &stderr;
    assert!(output.contains(&good) && output.contains(&bad), "{output}");
    let (status, _, _) = texts(&run(&["check", &good, &good]));
    assert_eq!(status, Some(0));
    let (status, stdout, stderr) = texts(&run(&["check", "/no/such.yaml"]));
    assert_eq!(status, Some(1), "{stdout}{stderr}");
    assert!((stdout + &stderr).contains("/no/such.yaml"));
}

#[test]
fn check_prints_no_control_characters_and_no_forged_lines() {
    let file = PlanFile::new(&hostile_manifest());
    for form in ["text", "json"] {
        let (status, stdout, stderr) = texts(&run(&["check", &file.as_str(), "-o", form]));
        assert_eq!(status, Some(1), "{stdout:?}{stderr:?}");
        let output = stdout + &stderr;
        assert!(!steers(&output), "{form}: {output:?}");
        assert!(!output.contains("\nplan: ok"), "{output}");
        assert!(
            output.contains(r"\u009b2J\u0085\u202e\u2028\r\nplan"),
            "{form}: {output}"
        );
    }
}

#[test]
fn check_reports_names_that_an_api_server_would_reject_in_a_manifest_for_a_cluster() {
    let of = |metadata: &str, spec: &str| {
        format!(
            "apiVersion: nvidia.com/v1alpha1\nkind: DynamoUpdateConfig\nmetadata: {metadata}\nspec:\n  newFrontendService: \"a:1\"\n  \
             trafficSplitPercent: 5\n{spec}"
        )
    };
    let source = "  sourceDeployment: old\n";
    for (metadata, spec, expected) in [
        (
            "{name: My_Update}",
            "",
            "line 3: metadata.name: 'My_Update' is not a valid object name",
        ),
        (
            "{name: [a]}",
            "",
            "line 3: metadata.name: must be a string, not",
        ),
        (
            "{name: a, namespace: X Y}",
            "",
            "line 3: metadata.namespace: 'X Y' is not a valid name of a namespace",
        ),
        (
            "{name: a, namespace: a.b}",
            "",
            "line 3: metadata.namespace: 'a.b' is not a valid name of a namespace",
        ),
        (
            "{name: a}",
            "  supersedes: a\n",
            "line 8: spec.supersedes: an update cannot supersede itself",
        ),
    ] {
        let file = PlanFile::new(&of(metadata, &format!("{source}{spec}")));
        let (status, stdout, stderr) = texts(&run(&["check", &file.as_str()]));
        assert_eq!(status, Some(1), "{metadata}: {stdout}{stderr}");
        assert!(stdout.contains(expected), "{stdout}");
        // Without a source, it is a file for `crossfade proxy --plan`, which needs no name.
        if spec.is_empty() {
            let file = PlanFile::new(&of(metadata, ""));
            let (status, stdout, stderr) = texts(&run(&["check", &file.as_str()]));
            assert_eq!(status, Some(0), "{metadata}: {stdout}{stderr}");
        }
    }
    let note = "metadata.name: is not set, but required in a cluster; `crossfade proxy --plan` accepts this file";
    for metadata in ["{}", "{name: }"] {
        let text = of(metadata, source);
        let file = PlanFile::new(&text);
        let (status, stdout, stderr) = texts(&run(&["check", &file.as_str()]));
        assert_eq!(status, Some(0), "{metadata}: {stdout}{stderr}");
        assert!(
            format!("{stdout}{stderr}").contains(note),
            "{stdout}{stderr}"
        );
        // A proxy also needs the split.
        let file = PlanFile::new(&text.replace("  trafficSplitPercent: 5\n", ""));
        let (status, stdout, stderr) = texts(&run(&["check", &file.as_str()]));
        assert_eq!(status, Some(1), "{metadata}: {stdout}{stderr}");
        let expected = "line 3: metadata.name: is required in a cluster";
        assert!(stdout.contains(expected), "{stdout}");
    }
    for metadata in ["{name: a, namespace: b}", "{generateName: a-}"] {
        let file = PlanFile::new(&of(metadata, source));
        let (status, stdout, stderr) = texts(&run(&["check", &file.as_str()]));
        assert_eq!(status, Some(0), "{metadata}: {stdout}{stderr}");
    }
}

#[test]
fn check_reads_only_regular_files_of_bounded_size() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let large = directory.path().join("large");
    fs::write(&large, vec![b'\n'; (1 << 20) + 1]).unwrap();
    for (path, why) in [
        ("/dev/zero", "not a regular file"),
        (pipe.to_str().unwrap(), "not a regular file"),
        (directory.path().to_str().unwrap(), "not a regular file"),
        (large.to_str().unwrap(), "larger than 1 MiB"),
    ] {
        let (status, stdout, stderr) = texts(&run(&["check", path]));
        assert_eq!(status, Some(1), "{stdout}{stderr}");
        assert!(stderr.contains(path) && stderr.contains(why), "{stderr}");
        // A shell passes `<(...)` as such a file.
        let hint = stderr.contains("use `-` to read standard input, which may be a pipe");
        assert_eq!(hint, why == "not a regular file", "{stderr}");
        let args = [
            "proxy",
            "--old",
            "a:1",
            "--plan",
            path,
            "--listen",
            "127.0.0.1:0",
        ];
        let (status, _, stderr) = texts(&run(&args));
        assert_eq!(status, Some(1), "{stderr}");
        let named = format!("cannot load plan {path}: ");
        assert!(stderr.contains(&named) && stderr.contains(why), "{stderr}");
    }
}

#[test]
fn check_names_fields_that_have_no_effect_in_a_file() {
    let text = manifest("new:8000", 3, 1, "sourceDeployment: dgd-old\npaused: true");
    let file = PlanFile::new(&text);
    let (status, stdout, stderr) = texts(&run(&["check", &file.as_str()]));
    assert_eq!(status, Some(0), "{stderr}");
    let output = stdout + &stderr;
    assert!(
        output.contains("sourceDeployment") && output.contains("paused"),
        "{output}"
    );
}

/// Runs the program with this standard input.
fn fed(args: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_crossfade"))
        .args(args)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The program may exit before it has read everything.
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, &input));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    texts(&output)
}

const PLAN: &str = "apiVersion: nvidia.com/v1alpha1\nkind: DynamoUpdateConfig\nmetadata: {name: x}\nspec:\n  newFrontendService: \"10.0.0.2:8000\"\n  trafficSplitPercent: ";

#[test]
fn check_reads_standard_input_and_prints_json() {
    let (status, stdout, _) = fed(&["check", "-"], format!("{PLAN}5\n").as_bytes());
    assert_eq!(status, Some(0));
    assert!(stdout.starts_with("-: ok: 5% to new"), "{stdout}");
    let (status, stdout, _) = fed(&["check", "-"], format!("{PLAN}500\n").as_bytes());
    assert_eq!(status, Some(1));
    assert!(
        stdout.starts_with("-: line 6: spec.trafficSplitPercent: "),
        "{stdout}"
    );

    let good = PlanFile::new(&format!("{PLAN}5\n"));
    let bad = format!("{PLAN}500\n");
    let (status, stdout, _) = fed(
        &["check", "-o", "json", &good.as_str(), "-"],
        bad.as_bytes(),
    );
    assert_eq!(status, Some(1));
    let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let [first, second] = answer["files"].as_array().unwrap().as_slice() else {
        panic!("{stdout}");
    };
    assert_eq!(
        (&first["valid"], &second["valid"]),
        (&true.into(), &false.into())
    );
    assert_eq!(first["problems"], serde_json::json!([]));
    assert_eq!(second["file"], "-");
    assert_eq!(second["problems"][0]["path"], "spec.trafficSplitPercent");
    assert_eq!(second["problems"][0]["line"], 6);

    for (input, expected) in [
        (&vec![b'#'; 1024 * 1024 + 1][..], "the text is too large"),
        (b"", "contains no document"),
    ] {
        let (status, stdout, _) = fed(&["check", "-"], input);
        assert_eq!(status, Some(1));
        assert!(stdout.contains(expected), "{stdout}");
    }
    let (status, stdout, stderr) = fed(&["check", "-"], b"\xff");
    assert_eq!((status, stdout.as_str()), (Some(1), ""));
    assert!(
        stderr.contains("-: line 1 is not UTF-8: save the file as UTF-8"),
        "{stderr}"
    );
    for utf_16 in [&b"\xff\xfea\0"[..], b"\xfe\xff\0a", b"a\0b\0", b"\0a\0b"] {
        let (_, _, stderr) = fed(&["check", "-"], utf_16);
        assert!(stderr.contains("-: is UTF-16"), "{stderr}");
    }
    let (status, stdout, stderr) = fed(&["check", "-", "-o", "json"], b"\xff");
    assert_eq!((status, stderr.as_str()), (Some(1), ""));
    assert!(stdout.contains("line 1 is not UTF-8"), "{stdout}");
    let (status, _, stderr) = fed(&["check", "-", "-o", "xml"], b"");
    assert!(status == Some(2) && stderr.contains("xml"), "{stderr}");
}

const ROLLOUT: &str = "apiVersion: nvidia.com/v1alpha1\nkind: DynamoRollout\nmetadata: {name: chat}\nspec:\n  \
                       source: {kind: Deployment, name: v1}\n  \
                       target: {roles: {prefill: {kind: Deployment, name: p2}, decode: {kind: StatefulSet, name: d2}}}\n  \
                       frontends: {source: v1, target: v2, service: v2}\n  clientService: chat\n";

#[test]
fn check_also_checks_rollouts() {
    let text = ROLLOUT;
    let (status, stdout, stderr) = fed(&["check", "-"], text.as_bytes());
    assert_eq!((status, &*stderr), (Some(0), ""), "{stdout}");
    assert_eq!(
        stdout,
        "-: ok: a rollout from Deployment v1 to StatefulSet d2 (decode) and Deployment p2 (prefill), for the clients of Service \
         chat\n"
    );
    let wrong = text.replace("clientService", "clientServise");
    let (status, stdout, _) = fed(&["check", "-"], wrong.as_bytes());
    assert_eq!(status, Some(1));
    assert!(stdout.contains("did you mean 'clientService'?"), "{stdout}");
    assert!(!stdout.contains("DynamoUpdateConfig"), "{stdout}");
}

#[test]
fn check_reports_only_the_kind_of_a_resource_that_it_does_not_know() {
    let other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replicas: 1}\n";
    let wanted = "must be DynamoUpdateConfig or DynamoRollout";
    for (text, expected) in [
        (
            other.to_owned(),
            format!("-: line 2: kind: {wanted}, not the text \"Deployment\"\n"),
        ),
        (
            other.replace("kind: Deployment\n", ""),
            format!("-: line 1: kind: is required, and {wanted}\n"),
        ),
        (
            "port: 8000\n".to_owned(),
            format!("-: line 1: kind: is required, and {wanted}\n"),
        ),
        (
            "kind: List\nitems: [{kind: Pod, spec: {}}]\n".to_owned(),
            format!("-: line 2: kind: {wanted}, not the text \"Pod\"\n"),
        ),
        (
            "a list".to_owned(),
            "-: line 1: must be a DynamoUpdateConfig or DynamoRollout, not the text \"a list\"\n"
                .to_owned(),
        ),
    ] {
        let (status, stdout, stderr) = fed(&["check", "-"], text.as_bytes());
        assert_eq!(
            (status, &*stdout, &*stderr),
            (Some(1), &*expected, ""),
            "{text}"
        );
    }
    // With a typing error in the kind, the fields are still checked.
    let typo = PLAN.replace("UpdateConfig", "UpdateConfg");
    let (status, stdout, _) = fed(&["check", "-"], format!("{typo}500\n").as_bytes());
    assert_eq!(status, Some(1));
    for expected in ["kind: must be DynamoUpdateConfig", "must be from 0 to 100"] {
        assert!(stdout.contains(expected), "{stdout}");
    }
}

#[test]
fn check_reports_all_problems_of_a_rollout_at_once() {
    let text = ROLLOUT
        .replace("kind: Deployment, name: v1", "kind: Deploymnt, name: V_1")
        .replace(", service: v2", "")
        .replace("clientService: chat", "clientService: Chat!");
    let text = format!(
        "{text}  color: red\n  revisionHistoryLimit: 500\n  strategy: {{maxSurge: 0, maxUnavailable: 0}}\n  \
         steps: [{{percent: 50}}, {{percent: 25}}]\n"
    );
    let (status, stdout, _) = fed(&["check", "-"], text.as_bytes());
    assert_eq!(status, Some(1));
    let lines: Vec<_> = stdout.lines().collect();
    for (line, expected) in lines.iter().zip([
        "line 5: spec.source.kind: must be one of",
        "line 5: spec.source.name: ",
        "line 7: spec.frontends.service: is required",
        "line 8: spec.clientService: ",
        "line 9: spec.color: unknown field",
        "line 10: spec.revisionHistoryLimit: must be from 0 to 100",
        "line 11: spec.strategy: maxSurge and maxUnavailable must not both be 0",
        "line 12: spec.steps[1].percent: each step must have a higher percent",
    ]) {
        assert!(line.starts_with(&format!("-: {expected}")), "{stdout}");
    }
    assert_eq!(lines.len(), 8, "{stdout}");
}

#[test]
fn check_checks_every_document_of_a_file_and_names_it_with_its_line() {
    let text = format!("{PLAN}5\n---\n{ROLLOUT}---\n# nothing\n---\n{PLAN}500\n---\nkind: Pod\n");
    let (status, stdout, stderr) = fed(&["check", "-"], text.as_bytes());
    assert_eq!((status, &*stderr), (Some(1), ""), "{stdout}");
    let lines: Vec<_> = stdout.lines().collect();
    for (line, expected) in lines.iter().zip([
        "-: document 1: note: the file has several documents: `crossfade proxy --plan` rejects it",
        "-: document 1: ok: 5% to new",
        "-: document 2: ok: a rollout from Deployment v1",
        "-: document 3, line 24: spec.trafficSplitPercent: must be from 0 to 100, not 500",
        "-: document 3: note: the file has several documents",
        "-: document 4, line 26: kind: must be DynamoUpdateConfig or DynamoRollout",
    ]) {
        assert!(line.starts_with(expected), "{stdout}");
    }
    assert_eq!(lines.len(), 6, "{stdout}");

    let (_, stdout, _) = fed(&["check", "-", "-o", "json"], text.as_bytes());
    let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let files = answer["files"].as_array().unwrap();
    let summary: Vec<_> = { files.iter() }
        .map(|file| (file["document"].as_u64().unwrap(), file["valid"] == true))
        .collect();
    assert_eq!(summary, [(1, true), (2, true), (3, false), (4, false)]);

    // What cannot be read ends the file.
    let text = format!("{PLAN}5\n---\na: [1\n---\n{PLAN}6\n");
    let (status, stdout, _) = fed(&["check", "-"], text.as_bytes());
    assert_eq!(status, Some(1));
    assert!(stdout.contains("-: document 2, line "), "{stdout}");
    let good = format!("{PLAN}5\n---\n{ROLLOUT}");
    assert_eq!(fed(&["check", "-"], good.as_bytes()).0, Some(0));
}
