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
