//! The TLS configuration for connections to the model servers of each generation, from the files of the process or of the plan.

use std::sync::Arc;

use crate::error_chain::error_chain;
use crate::resource::{Plan, Problems};
use crate::split::Generation;
use crate::tls::{ClientFiles, Reloading};

/// Why the TLS of a plan cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up TLS to the model servers")]
pub struct TlsFault(#[from] crate::tls::Error);

impl TlsFault {
    /// The error with its causes, for the author of the plan.
    pub(super) fn problems(&self) -> Problems {
        Problems::one("spec.tls", error_chain(&self.0))
    }
}

/// A client TLS configuration and the files it was built from.
type Tls = Option<(ClientFiles, Arc<Reloading<ClientFiles>>)>;

/// The configurations that have been needed so far.
pub(super) struct Certificates {
    /// The files of the process: for old, and for anything that the plan leaves out.
    own: ClientFiles,
    /// For old and its peers, and for new.
    made: [Tls; 2],
}

impl Certificates {
    pub fn new(own: &ClientFiles) -> Self {
        Self {
            own: own.clone(),
            made: [None, None],
        }
    }

    /// The configuration of a generation, if it was ever needed.
    pub fn of(&self, generation: Generation) -> Option<Arc<Reloading<ClientFiles>>> {
        let made = self.made[generation.index()].as_ref();
        made.map(|(_, tls)| Arc::clone(tls))
    }

    /// Builds the configurations that are needed; `speaks` says for old and new whether they use TLS.
    ///
    /// # Errors
    /// If the files cannot be used.
    pub fn prepare(&mut self, plan: &Plan, speaks: [bool; 2]) -> Result<(), TlsFault> {
        let own = &self.own;
        let of_plan = plan.tls.as_ref().map_or_else(
            || own.clone(),
            |tls| ClientFiles {
                ca: tls
                    .ca_file
                    .as_ref()
                    .map(Into::into)
                    .or_else(|| own.ca.clone()),
                identity: tls
                    .client
                    .as_ref()
                    .map(|(certificate, key)| (certificate.into(), key.into()))
                    .or_else(|| own.identity.clone()),
            },
        );
        let [old, new] = speaks;
        let wanted = [old.then(|| own.clone()), new.then_some(of_plan)];
        for (slot, files) in self.made.iter_mut().zip(wanted) {
            let known = slot.as_ref().map(|(files, _)| files);
            if let Some(files) = files
                && known != Some(&files)
            {
                *slot = Some((files.clone(), Arc::new(Reloading::new(files)?)));
            }
        }
        Ok(())
    }

    /// Reloads files that have changed.
    pub fn refresh(&self) {
        for (_, tls) in self.made.iter().flatten() {
            match tls.refresh() {
                Ok(false) => {}
                Ok(true) => tracing::info!("reloaded the certificates for model servers"),
                Err(error) => {
                    tracing::error!(
                        error = error_chain(&error),
                        "cannot use the certificates for model servers; the last good ones stay in use"
                    )
                }
            }
        }
    }
}
