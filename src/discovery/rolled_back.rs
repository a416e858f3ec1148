//! The new generation that has failed the analysis of this process, kept across restarts: the next process must not send it
//! requests again.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error_chain::error_chain;
use crate::files;
use crate::resource::Plan;

/// The largest file that is read, in bytes.
const MOST: u64 = 1 << 20;

/// A new generation that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failed {
    /// Its targets.
    new: Vec<String>,
    pub why: String,
}

impl Failed {
    pub fn of(plan: &Plan, why: String) -> Self {
        let new = plan.new.iter().map(ToString::to_string).collect();
        Self { new, why }
    }

    /// Is any of it in the new generation of this plan?
    pub fn is_new_of(&self, plan: &Plan) -> bool {
        let mut targets = plan.new.iter().map(ToString::to_string);
        targets.any(|target| self.new.contains(&target))
    }
}

/// The file that keeps it.
#[derive(Clone, Debug)]
pub(super) struct RolledBack {
    file: PathBuf,
}

impl RolledBack {
    pub const fn at(file: PathBuf) -> Self {
        Self { file }
    }

    /// What an earlier process kept. If that cannot be read, some new generation has failed: that of `plan` is taken for it, since old
    /// can take all requests and a new that has failed must not.
    pub fn read(&self, plan: &Plan) -> Option<Failed> {
        let text = match files::read_own(&self.file, MOST) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
            Err(files::Error::Read(error)) if error.kind() == io::ErrorKind::NotFound => {
                return None;
            }
            Err(error) => Err(error_chain(&error)),
        };
        let failed = text.unwrap_or_else(|error| {
            let file = self.file.display();
            tracing::error!(
                %file,
                error,
                "the saved rollback cannot be read; new gets no requests until the plan names a different one, or the file \
                 is removed and the proxy restarted"
            );
            let why = "The proxy had rolled new back before it restarted; the reason cannot be read.";
            Failed::of(plan, why.to_owned())
        });
        Some(failed)
    }

    /// Keeps `failed`, or forgets what was kept.
    ///
    /// # Errors
    /// If the file cannot be written or removed.
    pub fn write(&self, failed: Option<&Failed>) -> io::Result<()> {
        if let Some(failed) = failed {
            let text = serde_json::to_vec_pretty(failed)?;
            return files::replace(&self.file, &self.file.with_extension("new"), &text);
        }
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
