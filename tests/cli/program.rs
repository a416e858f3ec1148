//! Runs the program as a user does.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::manifests::IMAGE;

/// Returns its exit status, standard output and standard error.
pub fn run(args: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_crossfade"))
        .args(args)
        .env("CROSSFADE_IMAGE", IMAGE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The program may exit before it has read everything.
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}
