//! Notices that a file was replaced or changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Identifies one version of a file without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    modified: Option<SystemTime>,
    /// Device and inode. With `changed`, the inode's change time, they reveal a replacement of the same age and length, and a change
    /// of the permissions.
    inode: (u64, u64),
    changed: (i64, i64),
    length: u64,
    target: Option<PathBuf>,
}

impl Stamp {
    /// `None` if there is no such file.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        Some(Self {
            modified: meta.modified().ok(),
            inode: (meta.dev(), meta.ino()),
            changed: (meta.ctime(), meta.ctime_nsec()),
            length: meta.len(),
            target: std::fs::canonicalize(path).ok(),
        })
    }

    /// Whether the file has not been modified for this long.
    #[must_use]
    pub fn is_older_than(&self, least: Duration) -> bool {
        let age = self.modified.and_then(|time| time.elapsed().ok());
        age.is_none_or(|age| age >= least)
    }
}
