//! The last good plan, kept over a restart.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;
use tokio::sync::watch;

use crate::files;
use crate::resource::{API_VERSION, Identity, KIND, MAX_BYTES, Manifest, ReportedStatus, Update};

/// Largest file that is read, in bytes: four times what a manifest may have, for it is written with indentation.
const MOST: u64 = 4 * MAX_BYTES as u64;

/// The directory where it is kept.
#[derive(Clone, Debug)]
pub struct State {
    file: PathBuf,
}

impl State {
    /// # Errors
    /// When the directory cannot be made.
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
        files::replace(&self.file, &new, &serde_json::to_vec_pretty(&text)?)
    }

    /// The update that is kept, not judged again; none if there is none that can be read.
    #[must_use]
    pub fn update(&self) -> Option<Update> {
        let text = match files::read_own(&self.file, MOST) {
            Ok(text) => text,
            Err(files::Error::Read(error)) if error.kind() == io::ErrorKind::NotFound => {
                return None;
            }
            Err(error) => {
                let file = self.file.display();
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%file, error, "the plan that was kept cannot be used");
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

    /// Keeps what it is sent, a plan or that there is none, beside everything else: a disk that is slow must keep no plan from
    /// coming in force. Of several that wait only the last counts.
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
                    tracing::error!(%error, %file, "what is kept over a restart could not be written");
                }
            }
        });
        sender
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
