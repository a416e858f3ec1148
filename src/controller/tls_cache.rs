//! TLS configurations for frontends: loads the files of each configuration once, and again when they change.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::tls::{ClientFiles, Error, Reloading};

/// The configurations in use.
#[derive(Default)]
pub(super) struct TlsCache(Mutex<Vec<Weak<Reloading<ClientFiles>>>>);

impl TlsCache {
    /// The configuration for these files, shared by all its users.
    ///
    /// # Errors
    /// When the files cannot be read and no configuration for them is in use.
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
