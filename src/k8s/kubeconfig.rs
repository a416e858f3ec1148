//! Loads the configuration of the connection to the API server: a kubeconfig, or the service account of a pod.

use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::files;
use crate::printable::printable;

/// How large a kubeconfig may be. One with many clusters contains their certificates.
const MAX_FILE: u64 = 16 << 20;

/// Why there is no configuration. These are our own messages, because some of the library's do not name the file, or name it
/// twice.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} {reason}", path.display())]
    Refused { path: PathBuf, reason: files::Error },
    #[error("the kubeconfig has no context '{}'", printable(.0))]
    NoContext(String),
    #[error("the kubeconfig has no current-context: set it, or name a context with --context")]
    NoCurrentContext,
    #[error("cannot parse the kubeconfig: {0}")]
    Malformed(String),
    #[error(transparent)]
    Other(KubeconfigError),
}

impl ConfigError {
    fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable { source, .. } if source.kind() == ErrorKind::NotFound)
    }
}

impl From<KubeconfigError> for ConfigError {
    fn from(error: KubeconfigError) -> Self {
        match error {
            KubeconfigError::ReadConfig(source, path) => Self::Unreadable { path, source },
            KubeconfigError::LoadContext(name) => Self::NoContext(name),
            KubeconfigError::CurrentContextNotSet => Self::NoCurrentContext,
            // The lines after the first show the neighborhood of the error, which may contain a token.
            KubeconfigError::Parse(error) => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                Self::Malformed(first.trim_start_matches("error: ").to_owned())
            }
            error => Self::Other(error),
        }
    }
}

/// Loads the file at `path`, by default `$KUBECONFIG` or `~/.kube/config`. Without a file, and if none was chosen, uses the
/// service account of this pod.
///
/// # Errors
/// If there is none, or it cannot be used.
pub async fn load_config(
    path: Option<&PathBuf>,
    context: Option<&str>,
) -> Result<Config, ConfigError> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    let config = match path.map_or_else(read_default, |path| read(path)) {
        Ok(file) => { Config::from_custom_kubeconfig(file, &options).await }.map_err(Into::into),
        Err(error) => Err(error),
    };
    match config {
        Ok(config) => Ok(config),
        Err(error) if path.is_some() || context.is_some() => Err(error),
        // Outside of a pod, the missing service account is not the problem.
        Err(error) => Config::incluster().map_err(|_| error),
    }
}

/// The files in `$KUBECONFIG` that exist, merged, or `~/.kube/config`.
fn read_default() -> Result<Kubeconfig, ConfigError> {
    let listed = env::var_os("KUBECONFIG").unwrap_or_default();
    let mut paths: Vec<_> = env::split_paths(&listed).collect();
    paths.retain(|path| !path.as_os_str().is_empty());
    if paths.is_empty() {
        let home = env::home_dir().ok_or(KubeconfigError::FindPath)?;
        return read(&home.join(".kube/config"));
    }
    let mut merged = None;
    let mut missing = None;
    for path in &paths {
        match read(path) {
            Ok(file) => merged = Some(merged.unwrap_or(Kubeconfig::default()).merge(file)?),
            // As kubectl does: a list often names files that only some machines have.
            Err(error) if error.is_missing() => missing = missing.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    match (merged, missing) {
        (None, Some(error)) => Err(error),
        (merged, _) => Ok(merged.unwrap_or_default()),
    }
}

/// Reads one file. The library would read an endless one, such as `/dev/zero`, until the memory is full.
fn read(path: &Path) -> Result<Kubeconfig, ConfigError> {
    let refused = |reason| match reason {
        files::Error::Read(source) => ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        },
        reason => ConfigError::Refused {
            path: path.to_owned(),
            reason,
        },
    };
    match files::read(path, MAX_FILE) {
        // The library resolves paths in the file relative to its directory.
        Ok(_) => Ok(Kubeconfig::read_from(path)?),
        // A pipe, such as that of `<(...)` in a shell, or `/dev/null`. Its content can be read only once.
        Err(files::Error::NotRegular) => {
            let bytes = files::read_stream(path, MAX_FILE).map_err(refused)?;
            Ok(Kubeconfig::from_yaml(&String::from_utf8_lossy(&bytes))?)
        }
        Err(reason) => Err(refused(reason)),
    }
}
