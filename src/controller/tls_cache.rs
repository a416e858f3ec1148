//! TLS towards frontends: the files of each configuration that is in use, read once, and again when they change.
//!
//! Must not know who is asked.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::tls::{ClientFiles, Error, Reloading};

/// What is in use.
#[derive(Default)]
pub(super) struct TlsCache(Mutex<Vec<Weak<Reloading<ClientFiles>>>>);

impl TlsCache {
    /// The configuration of these files, shared with all that use it now.
    ///
    /// # Errors
    /// When they cannot be read, and nobody uses them.
    pub fn of(&self, files: ClientFiles) -> Result<Arc<Reloading<ClientFiles>>, Error> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|one| one.strong_count() > 0);
        let mut used = known.iter().filter_map(Weak::upgrade);
        if let Some(one) = used.find(|one| *one.files() == files) {
            return Ok(one);
        }
        let one = Arc::new(Reloading::new(files)?);
        known.push(Arc::downgrade(&one));
        Ok(one)
    }
}
