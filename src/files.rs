//! Small files named by users, read with a limit: an endless file must not fill the memory, and a blocking one must not block the
//! thread.

mod stamp;

pub use stamp::Stamp;

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot be read")]
    Read(#[from] io::Error),
    /// A device, a pipe, a socket or a directory.
    #[error("is not a regular file")]
    NotRegular,
    #[error("is larger than {} MiB", .0 >> 20)]
    TooLarge(u64),
    #[error("belongs to another user")]
    NotOwn,
}

/// The content of a regular file of at most `most` bytes.
///
/// # Errors
/// Why it was not read.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    read_opened(open(path, 0)?, most)
}

/// The same, also for a pipe or a device. Waits for its content.
///
/// # Errors
/// Why it was not read.
pub fn read_stream(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NOCTTY).open(path)?;
    read_at_most(file, most)
}

/// The same as [`read`], for a file that must belong to this user or root and must not be a link.
///
/// # Errors
/// Why it was not read.
pub fn read_own(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    let file = open(path, libc::O_NOFOLLOW)?;
    let user = rustix::process::geteuid().as_raw();
    if ![user, 0].contains(&file.metadata()?.uid()) {
        return Err(Error::NotOwn);
    }
    read_opened(file, most)
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    // Opening a pipe would block, and a terminal must not become this process's controlling terminal.
    let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn read_opened(file: File, most: u64) -> Result<Vec<u8>, Error> {
    match file.metadata()?.is_file() {
        true => read_at_most(file, most),
        false => Err(Error::NotRegular),
    }
}

fn read_at_most(file: File, most: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    // One byte more, since the length of a file may change while it is read.
    file.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(Error::TooLarge(most)),
        false => Ok(bytes),
    }
}

/// Atomically replaces `path` with a file that only this user may read. `beside` is the temporary file, in the same
/// directory. A link at `path` is replaced, not followed.
///
/// # Errors
/// When creating, writing, or renaming fails.
pub fn replace(path: &Path, beside: &Path, bytes: &[u8]) -> io::Result<()> {
    let create = || {
        OpenOptions::new()
            .write(true)
            // This also rejects a link (open(2), `O_EXCL`).
            .create_new(true)
            .mode(0o600)
            .open(beside)
    };
    let mut file = match create() {
        // Left over from a process that died, or created by someone else: replace it with our own file.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(beside)?;
            create()?
        }
        created => created?,
    };
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(beside, path)
}

/// Writes `bytes` to standard output. Returns whether it still has a reader: it is not an error if the reader has exited, as
/// `head` does.
///
/// # Errors
/// When writing fails.
pub fn print(bytes: &[u8]) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Writes a line to standard error. There is nowhere to report that this fails, and it must not change the exit status.
pub fn explain(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// Paths of non-regular files: a pipe in `directory`, a device, and `directory`.
    pub(crate) fn not_regular(directory: &Path) -> [PathBuf; 3] {
        let pipe = directory.join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        [pipe, "/dev/zero".into(), directory.to_owned()]
    }

    #[test]
    fn special_files_are_rejected_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        for path in &not_regular(directory.path()) {
            assert!(
                matches!(read(path, 100), Err(Error::NotRegular)),
                "{path:?}"
            );
        }
        let file = directory.path().join("file");
        std::fs::write(&file, "12345").unwrap();
        assert_eq!(read(&file, 5).unwrap(), b"12345");
        assert!(matches!(read(&file, 4), Err(Error::TooLarge(4))));
    }

    #[test]
    fn a_stream_is_read_up_to_the_limit() {
        let read = |path: &str| read_stream(Path::new(path), 100);
        assert_eq!(read("/dev/null").unwrap(), b"");
        assert!(matches!(read("/dev/zero"), Err(Error::TooLarge(100))));
        assert!(matches!(read("/"), Err(Error::Read(_))));
        assert!(matches!(read("/no/such/file"), Err(Error::Read(_))));
    }

    #[test]
    fn replacing_a_file_does_not_follow_links() {
        let directory = tempfile::tempdir().unwrap();
        let [path, beside, victim] =
            ["a", "a.new", "victim"].map(|name| directory.path().join(name));
        std::fs::write(&victim, "precious").unwrap();
        for link in [&path, &beside] {
            symlink(&victim, link).unwrap();
        }
        assert!(read_own(&path, 100).is_err(), "a link");
        replace(&path, &beside, b"mine").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(read_own(&path, 100).unwrap(), b"mine");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(!beside.exists());
    }
}
