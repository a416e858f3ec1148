//! Loads the configuration of the connection to the API server: a kubeconfig, or the service account of a pod.

use std::path::PathBuf;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Why there is no configuration. These are our own messages, because some of the library's do not name the file, or name it
/// twice.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the kubeconfig has no context '{0}'")]
    NoContext(String),
    #[error("the kubeconfig has no current-context: set it, or name a context with --context")]
    NoCurrentContext,
    #[error(transparent)]
    Other(KubeconfigError),
}

impl From<KubeconfigError> for ConfigError {
    fn from(error: KubeconfigError) -> Self {
        match error {
            KubeconfigError::ReadConfig(source, path) => Self::Unreadable { path, source },
            KubeconfigError::LoadContext(name) => Self::NoContext(name),
            KubeconfigError::CurrentContextNotSet => Self::NoCurrentContext,
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
    let config = match path {
        Some(path) => {
            let file = Kubeconfig::read_from(path)?;
            Config::from_custom_kubeconfig(file, &options).await
        }
        None => Config::from_kubeconfig(&options).await,
    };
    match config {
        Ok(config) => Ok(config),
        Err(error) if path.is_some() || context.is_some() => Err(error.into()),
        // Outside of a pod, the missing service account is not the problem.
        Err(error) => Config::incluster().map_err(|_| error.into()),
    }
}
