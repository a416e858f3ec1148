//! Commands whose output cannot be written.

use std::fs::OpenOptions;
use std::process::{Command, Stdio};

const MANIFEST: &str = "tests/corpus/inject/dynamo.yaml";

fn crossfade(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crossfade"));
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

#[test]
fn an_explanation_that_cannot_be_written_does_not_change_the_exit_status() {
    for (args, status) in [
        (&["inject", MANIFEST, "--image=a"][..], 0),
        (&["inject", "deploy/examples/update.yaml", "--image=a"], 2),
        (&["inject", "missing.yaml"], 2),
        (&["uninject", MANIFEST], 0),
        (&["plan", "--from", "missing.yaml", "--to", MANIFEST], 2),
        (
            &[
                "simulate",
                "-f",
                MANIFEST,
                "--startup=1m",
                "--stream-p99=1m",
                "--rate=1",
            ],
            2,
        ),
        (&["check", "missing.yaml"], 1),
        (&["judge", "--proxy", "127.0.0.1:1"], 3),
        (&["status", "--proxy", "127.0.0.1:1"], 1),
        (&["drain", "--admin", "127.0.0.1:1"], 1),
        (&["set", "a\u{1b}", "--split", "x"], 2),
        (&["proxy", "--listen", "x"], 2),
        (&["no-such-command"], 2),
    ] {
        let run = |full: bool| {
            let mut command = crossfade(args);
            if full {
                let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
                command.stderr(full);
            }
            command.output().unwrap()
        };
        let (plain, full) = (run(false), run(true));
        let errors = String::from_utf8_lossy(&plain.stderr);
        assert_eq!(plain.status.code(), Some(status), "{args:?}: {errors}");
        assert!(!errors.is_empty() || !plain.stdout.is_empty(), "{args:?}");
        assert_eq!(full.status.code(), Some(status), "{args:?}: {errors}");
        assert_eq!(full.stdout, plain.stdout, "{args:?}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    for args in [
        &["crd"][..],
        &["version"],
        &["version", "-o", "json"],
        &["rbac"],
        &["completions", "bash"],
        &["completions", "kubectl"],
        &["man"],
        &["check", "deploy/examples/update.yaml"],
        &["inject", MANIFEST, "--image=a"],
        &["uninject", MANIFEST],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = crossfade(args).stdout(full).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {errors}");
        assert!(errors.contains("cannot write: "), "{args:?}: {errors}");
        // A closed pipe is not an error: the reader has read enough.
        let mut child = crossfade(args);
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        child = child.stdout(writer);
        assert_eq!(child.status().unwrap().code(), Some(0), "{args:?}");
    }
}
