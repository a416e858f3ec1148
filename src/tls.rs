//! TLS towards clients and model servers: rustls configurations from files, reloaded when the files change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::error_chain::error_chain;
use crate::files::{self, Stamp};

/// ALPN names in order of preference (RFC 7301; RFC 9113 §3.2).
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// Maximum size of a file, in bytes. All certificate authorities of a system take a quarter of it.
const MAX_FILE: u64 = 1024 * 1024;

/// Why a TLS configuration cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not a regular file", path.display())]
    NoFile { path: PathBuf },
    #[error("{} is larger than {} MiB", path.display(), MAX_FILE >> 20)]
    TooLarge { path: PathBuf },
    #[error("{} is not a PEM file", path.display())]
    NoPem {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("{} contains no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("cannot use the certificate and its key")]
    Unusable(#[source] rustls::Error),
    #[error("cannot build the client certificate verifier")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
    #[error("the system has no root certificates; set a CA file")]
    NoRoots,
}

/// How model servers are verified, and the certificate shown to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// PEM file of the trusted authorities; by default the system's.
    pub ca: Option<PathBuf>,
    /// PEM files of a certificate chain and its key, for mutual TLS.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The certificate shown to clients, and whether they must show one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// PEM file of the authorities that must have signed client certificates (mutual TLS).
    pub client_ca: Option<PathBuf>,
}

/// The files of a configuration.
pub trait Files {
    type Config;

    /// # Errors
    /// When a file is missing or invalid.
    fn load(&self) -> Result<Self::Config, Error>;

    fn paths(&self) -> Vec<&Path>;
}

impl Files for ClientFiles {
    type Config = ClientConfig;

    fn load(&self) -> Result<ClientConfig, Error> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                roots.add_parsable_certificates(certificates(path)?);
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            return Err(Error::NoRoots);
        }
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(Error::Unusable)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
        Ok(config)
    }

    fn paths(&self) -> Vec<&Path> {
        let identity = self.identity.iter().flat_map(|(a, b)| [a, b]);
        self.ca
            .iter()
            .chain(identity)
            .map(PathBuf::as_path)
            .collect()
    }
}

impl Files for ServerFiles {
    type Config = ServerConfig;

    fn load(&self) -> Result<ServerConfig, Error> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions");
        let builder = match &self.client_ca {
            Some(path) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(certificates(path)?);
                let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
                    Arc::new(roots),
                    provider(),
                );
                builder.with_client_cert_verifier(verifier.build().map_err(Error::Verifier)?)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(certificates(&self.certificate)?, private_key(&self.key)?)
            .map_err(Error::Unusable)?;
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
        Ok(config)
    }

    fn paths(&self) -> Vec<&Path> {
        [&self.certificate, &self.key]
            .into_iter()
            .chain(&self.client_ca)
            .map(PathBuf::as_path)
            .collect()
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<_, _>>()
        .map_err(|source| Error::NoPem {
            path: path.into(),
            source,
        })?;
    if found.is_empty() {
        return Err(Error::NoCertificate { path: path.into() });
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|source| Error::NoPem {
        path: path.into(),
        source,
    })
}

/// Reads a file that may be named by someone without access to this process: the editor of an update chooses the path.
///
/// # Errors
/// When it is not a regular file, too large, or cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    files::read(path, MAX_FILE).map_err(|error| match error {
        files::Error::Read(source) => Error::Read {
            path: path.into(),
            source,
        },
        files::Error::TooLarge(_) => Error::TooLarge { path: path.into() },
        files::Error::NotRegular | files::Error::NotOwn => Error::NoFile { path: path.into() },
    })
}

/// The configuration in force, which new connections use, and its files.
pub struct Reloading<F: Files> {
    files: F,
    current: ArcSwap<F::Config>,
    last_attempt: std::sync::Mutex<LoadAttempt>,
}

/// The latest attempt to load the files.
struct LoadAttempt {
    stamps: Vec<Option<Stamp>>,
    /// Why it failed. The next check tries again: a process that was short of file descriptors may read the same files later.
    failure: Option<String>,
}

impl<F: Files> Reloading<F> {
    /// # Errors
    /// Same as [`Files::load`].
    pub fn new(files: F) -> Result<Self, Error> {
        let last_attempt = LoadAttempt {
            stamps: stamps(&files),
            failure: None,
        };
        let current = ArcSwap::from_pointee(files.load()?);
        Ok(Self {
            files,
            current,
            last_attempt: std::sync::Mutex::new(last_attempt),
        })
    }

    /// The files.
    pub fn files(&self) -> &F {
        &self.files
    }

    pub fn current(&self) -> Arc<F::Config> {
        self.current.load_full()
    }

    /// Checks the files and reloads them if one has changed, or if they could not be loaded before. `Ok(true)`: a new configuration
    /// is in force.
    ///
    /// # Errors
    /// Same as [`Files::load`], once for each cause; the last good configuration stays in force.
    pub fn refresh(&self) -> Result<bool, Error> {
        let stamps = stamps(&self.files);
        let mut last_attempt = self
            .last_attempt
            .lock()
            .expect("no holder of this lock can panic");
        let is_changed = last_attempt.stamps != stamps;
        if !is_changed && last_attempt.failure.is_none() {
            return Ok(false);
        }
        last_attempt.stamps = stamps;
        match self.files.load() {
            Ok(config) => {
                last_attempt.failure = None;
                self.current.store(Arc::new(config));
                Ok(true)
            }
            Err(error) => {
                let failure = Some(error_chain(&error));
                let is_known = !is_changed && last_attempt.failure == failure;
                last_attempt.failure = failure;
                if is_known { Ok(false) } else { Err(error) }
            }
        }
    }
}

fn stamps(files: &impl Files) -> Vec<Option<Stamp>> {
    files.paths().into_iter().map(Stamp::of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        let files = ClientFiles {
            ca: Some(path.into()),
            identity: None,
        };
        files.load().unwrap_err().to_string()
    }

    #[test]
    fn special_files_are_rejected_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        for path in &crate::files::tests::not_regular(directory.path()) {
            let said = refusal(path);
            assert!(said.ends_with("is not a regular file"), "{said}");
        }
    }

    #[test]
    fn a_replacement_of_the_same_age_is_loaded_and_a_failure_is_reported_once_and_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let [ca, new] = ["ca.pem", "new.pem"].map(|name| directory.path().join(name));
        let certificate = || {
            let key = rcgen::generate_simple_self_signed(["a".to_owned()]);
            key.unwrap().cert.pem()
        };
        let put = |path: &Path, text: &str| {
            std::fs::write(path, text).unwrap();
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH)
                .unwrap();
        };
        put(&ca, &certificate());
        let tls = Reloading::new(ClientFiles {
            ca: Some(ca.clone()),
            identity: None,
        });
        let tls = tls.unwrap();
        assert!(!tls.refresh().unwrap());
        put(&new, &certificate());
        std::fs::rename(&new, &ca).unwrap();
        assert!(tls.refresh().unwrap());
        std::fs::remove_file(&ca).unwrap();
        assert!(tls.refresh().is_err());
        assert!(!tls.refresh().unwrap(), "it is reported once");
        // As if the file had not changed since it could not be read.
        put(&ca, &certificate());
        tls.last_attempt.lock().unwrap().stamps = stamps(tls.files());
        assert!(tls.refresh().unwrap());
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("large.pem");
        std::fs::write(&file, vec![b'\n'; MAX_FILE as usize]).unwrap();
        assert!(refusal(&file).ends_with("contains no certificate"));
        std::fs::write(&file, vec![b'\n'; MAX_FILE as usize + 1]).unwrap();
        assert!(refusal(&file).ends_with("is larger than 1 MiB"));
    }
}
