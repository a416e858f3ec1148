//! Reads manifests from files or standard input.

use std::io::{self, IsTerminal, Read};
use std::path::Path;

use crate::files;
use crate::inject::MAX_BYTES;

/// The name that stands for standard input.
pub(super) const STDIN: &str = "-";

/// The exit status if the input makes the operation impossible.
pub(super) const INVALID_INPUT: u8 = 2;

/// The text of a file; `-` is standard input.
pub(super) fn read(path: &Path) -> Result<String, String> {
    decode(read_bytes(path, MAX_BYTES)?)
}

/// The bytes of a file of at most `most`, or one more of standard input, so that the caller reports its size.
pub(super) fn read_bytes(path: &Path, most: usize) -> Result<Vec<u8>, String> {
    if path != Path::new(STDIN) {
        return files::read(path, most as u64).map_err(|error| {
            let hint = match error {
                files::Error::NotRegular => "; use `-` to read standard input, which may be a pipe",
                _ => "",
            };
            match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => format!("{error}{hint}"),
            }
        });
    }
    if io::stdin().is_terminal() {
        files::explain("reading manifests from standard input");
    }
    let mut bytes = Vec::new();
    let limited = io::stdin().lock().take(most as u64 + 1);
    let read = { limited }.read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    Ok(bytes)
}

/// The text in the bytes of a file.
pub(super) fn decode(bytes: Vec<u8>) -> Result<String, String> {
    let is_utf_16 = bytes.starts_with(b"\xff\xfe")
        || bytes.starts_with(b"\xfe\xff")
        // ASCII without a mark.
        || matches!(bytes.as_slice(), [0, 1..=255, ..] | [1..=255, 0, ..]);
    if is_utf_16 {
        return Err("is UTF-16, as PowerShell writes it: save it as UTF-8".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        let bytes = error.as_bytes();
        let before = &bytes[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        format!("line {line} is not UTF-8: save the file as UTF-8")
    })
}
