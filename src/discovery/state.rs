//! The directory for state that survives restarts: the last good plan, and whether new was rolled back.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;
use tokio::sync::watch;

use super::rolled_back::RolledBack;
use crate::files;
use crate::resource::{API_VERSION, Identity, KIND, MAX_BYTES, Manifest, ReportedStatus, Update};

/// The largest file that is read, in bytes: four times the limit for a manifest, because the file is indented.
const MAX_FILE: u64 = 4 * MAX_BYTES as u64;

/// That directory.
#[derive(Clone, Debug)]
pub struct State {
    file: PathBuf,
}

impl State {
    /// Creates the directory.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn open(directory: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        Ok(Self {
            file: directory.join("last-good-plan.json"),
        })
    }

    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The record of a rollback, stored next to the plan.
    pub(super) fn rolled_back(&self) -> RolledBack {
        RolledBack::at(self.file.with_file_name("rolled-back.json"))
    }

    /// Saves a plan atomically: a crash leaves the old or the new file.
    ///
    /// # Errors
    /// If the file cannot be written or renamed.
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
        files::replace(&self.file, &new, &serde_json::to_vec_pretty(&text)?)
    }

    /// The saved update, not validated; `None` if there is none or it cannot be read.
    #[must_use]
    pub fn update(&self) -> Option<Update> {
        let text = match files::read_own(&self.file, MAX_FILE) {
            Ok(text) => text,
            Err(files::Error::Read(error)) if error.kind() == io::ErrorKind::NotFound => {
                return None;
            }
            Err(error) => {
                let file = self.file.display();
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%file, error, "cannot use the saved plan");
                return None;
            }
        };
        let kept: Json = serde_json::from_slice(&text).ok()?;
        let metadata = &kept["metadata"];
        let text = |field: &str| metadata[field].as_str().map(str::to_owned);
        Some(Update {
            identity: Identity {
                namespace: text("namespace"),
                name: text("name"),
                uid: text("uid"),
                generation: metadata["generation"].as_i64(),
            },
            created: 0,
            spec: kept["spec"].clone(),
            status: ReportedStatus::default(),
        })
    }

    /// Spawns a task that saves each plan it is sent, or removes the saved plan for `None`. A slow disk must not delay putting
    /// plans in force. If several are queued, only the last one counts.
    #[must_use]
    pub fn keeper(self) -> watch::Sender<Option<Arc<Manifest>>> {
        let (sender, mut plans) = watch::channel(None::<Arc<Manifest>>);
        tokio::spawn(async move {
            while plans.changed().await.is_ok() {
                let plan = plans.borrow_and_update().clone();
                let state = self.clone();
                let kept = tokio::task::spawn_blocking(move || match plan {
                    Some(manifest) => state.save(&manifest),
                    None => state.forget(),
                });
                if let Err(error) = kept.await.unwrap_or_else(|error| Err(error.into())) {
                    let file = self.file.display();
                    tracing::error!(%error, %file, "cannot write to the state directory");
                }
            }
        });
        sender
    }

    /// Removes the saved plan.
    ///
    /// # Errors
    /// If an existing file cannot be removed.
    pub fn forget(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
