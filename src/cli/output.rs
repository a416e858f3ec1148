//! Writes the result of a command to standard output.

use std::process::ExitCode;

use crate::files;

/// Prints `text` and returns `done`, or `failed` with an explanation if it cannot be written, as on a full disk.
pub(super) fn print(text: &[u8], done: ExitCode, failed: u8) -> ExitCode {
    match files::print(text) {
        Ok(_) => done,
        Err(error) => {
            files::explain(format_args!("crossfade: cannot write: {error}"));
            ExitCode::from(failed)
        }
    }
}

/// Prints the only result of a command, and returns its exit status.
#[must_use]
pub fn print_all(text: &[u8]) -> ExitCode {
    print(text, ExitCode::SUCCESS, 1)
}
