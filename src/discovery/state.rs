//! The last good plan, kept over a restart.

use std::io;
use std::path::{Path, PathBuf};

use crate::resource::{API_VERSION, KIND, Manifest};

/// The directory where it is kept.
#[derive(Clone, Debug)]
pub struct State {
    file: PathBuf,
}

impl State {
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        Ok(Self {
            file: directory.join("last-good-plan.json"),
        })
    }

    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Keeps a plan: the whole file is there or the one before it.
    ///
    /// # Errors
    /// As writing and renaming.
    pub fn save(&self, manifest: &Manifest) -> io::Result<()> {
        let identity = &manifest.identity;
        let text = serde_json::json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "namespace": identity.namespace,
                "name": identity.name,
                "uid": identity.uid,
                "generation": identity.generation,
            },
            "spec": manifest.spec,
        });
        let new = self.file.with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(&text)?)?;
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, &self.file)
    }

    /// Keeps none.
    ///
    /// # Errors
    /// As removing a file, but for one that is not there.
    pub fn forget(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
