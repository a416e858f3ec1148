//! The command line of `inject`: files and standard input, outputs, and exit statuses.

use std::process::Command;

use super::*;
use crate::program::run;

#[test]
fn manifests_go_to_standard_output_and_the_explanation_to_standard_error() {
    let text = include_str!("../../corpus/inject/vllm.yaml");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/inject/vllm.yaml");
    let (status, out, err) = run(&["inject", "-"], text.as_bytes());
    assert_eq!((status, &out), (Some(0), &injected(text).unwrap().text));
    assert!(
        err.contains(
            "Deployment/mistral-7b (line 1): crossfade 0.1.0 is added as a native sidecar"
        ),
        "{err}"
    );
    assert_eq!(run(&["inject", file], b"").1, out);

    assert_eq!(run(&["inject"], text.as_bytes()).1, out);

    let (status, back, err) = run(&["uninject", "-"], out.as_bytes());
    assert_eq!((status, back.as_str()), (Some(0), text));
    assert!(
        err.contains("Deployment/mistral-7b (line 1): crossfade 0.1.0 is removed"),
        "{err}"
    );
    let (status, same, err) = run(&["uninject", "-"], text.as_bytes());
    assert_eq!((status, same.as_str()), (Some(0), text));
    assert!(err.contains("found nothing to remove"), "{err}");
}

#[test]
fn a_dry_run_prints_no_manifests_and_a_diff_only_the_changes() {
    let text = include_str!("../../corpus/inject/vllm.yaml");
    let (status, out, err) = run(&["inject", "-", "--dry-run"], text.as_bytes());
    assert_eq!((status, out.as_str()), (Some(0), ""));
    assert!(err.contains("is added as"), "{err}");
    let (status, out, _) = run(&["inject", "-", "--diff"], text.as_bytes());
    assert_eq!(status, Some(0));
    assert!(out.starts_with("--- -\n+++ -\n@@ "), "{out}");
    assert!(out.contains("\n-                      - containerPort: 8000\n+                      - containerPort: 8080\n"), "{out}");
    let (status, _, err) = run(&["inject", "-", "--diff", "--dry-run"], b"");
    assert!(
        status == Some(2) && err.contains("cannot be used with"),
        "{err}"
    );
}

#[test]
fn errors_exit_with_status_2_and_print_no_manifest() {
    for (args, input, expected) in [
        (
            &["inject", "-"][..],
            &b"a: [1"[..],
            "crossfade: standard input: document 1, line 1: not valid YAML",
        ),
        (
            &["inject", "-"],
            b"\xff\xfea\0",
            "is UTF-16, as PowerShell writes it: save it as UTF-8",
        ),
        (
            &["inject", "-"],
            b"a: 1\nb: f\xfcr\n",
            "line 2 is not UTF-8: save the file as UTF-8",
        ),
        (
            &["inject", "-"],
            b"kind: Service\n",
            "no frontend was found",
        ),
        (
            &["inject", "/no/such/file"],
            b"",
            "/no/such/file: cannot be read",
        ),
        (
            &["inject", "/"],
            b"",
            "is not a regular file; use `-` to read standard input",
        ),
        (&["inject"], b"", "standard input: the input is empty"),
        (
            &["inject", "-"],
            b"# nothing\n---\n",
            "standard input: the input is empty",
        ),
        (&["rbac", ""], b"", "is not a name that Kubernetes accepts"),
        (
            &["rbac", "Default_1"],
            b"",
            "is not a name that Kubernetes accepts",
        ),
        (&["inject", "-", "--port", "0"], b"", "--port"),
        (&["inject", "-", "--port", "x"], b"", "--port"),
        (&["inject", "-", "--drain", "soon"], b"", "--drain"),
        (
            &["inject", "-", "--health", "live"],
            b"",
            "must start with '/'",
        ),
        (&["inject", "-", "--port-arg", ""], b"", "--port-arg"),
        (&["inject", "-", "--port-arg", "port"], b"", "--port-arg"),
        (
            &["inject", "-", "--port-arg", "--port 80"],
            b"",
            "--port-arg",
        ),
        (&["inject", "-", "--port-env", ""], b"", "--port-env"),
        (&["inject", "-", "--port-env", "A=B"], b"", "--port-env"),
        (
            &["inject", "-", "--frontend-container", ""],
            b"",
            "--frontend-container",
        ),
        (
            &["inject", "-", "--port-arg", "--p", "--port-env", "P"],
            b"",
            "cannot be used with",
        ),
        (
            &["inject", "-", "--cpu-limit", "1Gi"],
            b"",
            "--cpu-limit <QUANTITY>': must be a number of CPUs",
        ),
        (
            &["inject", "-", "--cpu-request", "0"],
            b"",
            "must be more than 0",
        ),
        (
            &["inject", "-", "--memory-request", "500m"],
            b"",
            "must be a size, such as 256Mi",
        ),
        (
            &["inject", "-", "--memory-request", "2Gi"],
            b"",
            "must be at most 1Gi, the sidecar's limit",
        ),
        (&["inject", "-"], b"a\0p\0", "is UTF-16"),
        (&["uninject", "-"], b"a: [1", "document 1, line 1"),
    ] {
        let (status, out, error) = run(args, input);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{args:?}");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_crossfade"));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/inject/vllm.yaml");
    let output = child
        .args(["inject", file])
        .env_remove("CROSSFADE_IMAGE")
        .output()
        .unwrap();
    let expected = String::from_utf8(output.stderr).unwrap();
    // A release build has a default image.
    let known = option_env!("CROSSFADE_DEFAULT_IMAGE").is_some();
    assert!(
        known
            || output.status.code() == Some(2)
                && expected.contains("set --image or CROSSFADE_IMAGE"),
        "{expected}"
    );
}

#[test]
fn the_diff_of_many_objects_is_printed_in_time() {
    let text = deployment("        image: vllm/vllm-openai\n");
    let named = |number: u32| text.replace("name: server}", &format!("name: server-{number}}}"));
    let many = (0..300).map(named).collect::<Vec<_>>().join("---\n");
    let started = std::time::Instant::now();
    let (status, diff, err) = run(&["inject", "-", "--diff"], many.as_bytes());
    assert_eq!(status, Some(0), "{err}");
    assert_eq!(diff.matches("\n@@ ").count(), 300);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[test]
fn control_characters_of_a_manifest_do_not_reach_the_terminal() {
    let text = deployment("        image: vllm/vllm-openai\n")
        .replace("name: server}", "name: \"a\\e[31mb\"}");
    let (status, _, err) = run(&["inject", "-"], text.as_bytes());
    assert_eq!(status, Some(0), "{err}");
    assert!(!err.contains('\u{1b}'), "{err}");
}

#[test]
fn the_drain_sets_the_grace_period_of_the_pod() {
    let text = deployment("        image: vllm/vllm-openai\n");
    let (status, out, _) = run(&["inject", "-", "--drain", "100"], text.as_bytes());
    assert_eq!(status, Some(0));
    assert!(
        flat(&out).contains("name: CROSSFADE_DRAIN\nvalue: \"100\""),
        "{out}"
    );
    assert!(
        out.contains("terminationGracePeriodSeconds: 130\n"),
        "{out}"
    );
}

/// The code blocks of the page in a language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let start = format!("```{language}\n");
    let blocks = page.split(start.as_str()).skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

#[test]
fn the_page_about_installing_shows_the_output_of_inject() {
    let page = include_str!("../../../docs/install.md");
    let (yaml, session) = (blocks(page, "yaml"), blocks(page, "console"));
    assert_eq!((yaml.len(), session.len()), (1, 1));
    let (status, _, err) = run(&["inject", "-"], yaml[0].as_bytes());
    assert_eq!(status, Some(0), "{err}");
    let (typed, shown) = session[0].split_once('\n').unwrap();
    assert_eq!(
        typed,
        "$ cat frontend.yaml | crossfade inject - | kubectl apply -f -"
    );
    // The output of inject is followed by that of kubectl.
    assert!(shown.starts_with(&err), "the page must show:\n{err}");
}
