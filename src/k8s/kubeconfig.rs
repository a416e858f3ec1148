//! Loads the configuration of the connection to the API server: a kubeconfig, or the service account of a pod.

use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use kube::Config;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::files;
use crate::printable::printable;

/// How large a kubeconfig may be, and a file that it names. A kubeconfig with many clusters contains their certificates.
const MAX_FILE: u64 = 16 << 20;

const NOT_IN_HEADER: &str =
    "contains a line break or another character that is not allowed in an HTTP header";

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
    #[error("the token of the kubeconfig {NOT_IN_HEADER}")]
    Token,
    #[error("the token in {} {NOT_IN_HEADER}", path.display())]
    TokenFile { path: PathBuf },
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
/// service account of this pod. Also returns the name of the context.
///
/// # Errors
/// If there is none, or it cannot be used.
pub async fn load_config(
    path: Option<&PathBuf>,
    context: Option<&str>,
) -> Result<(Config, Option<String>), ConfigError> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    let config = match path.map_or_else(read_default, |path| read(path)) {
        Ok(file) => from_file(file, &options).await,
        Err(error) => Err(error),
    };
    match config {
        Ok(config) => Ok(config),
        Err(error) if path.is_some() || context.is_some() => Err(error),
        // Outside of a pod, the missing service account is not the problem.
        Err(error) => match Config::incluster() {
            Ok(config) => Ok((config, None)),
            Err(_) => Err(error),
        },
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

/// The configuration for the chosen context. The library would read an endless file that a kubeconfig names until the memory is
/// full, and panic for a token that is not allowed in a header.
async fn from_file(
    file: Kubeconfig,
    options: &KubeConfigOptions,
) -> Result<(Config, Option<String>), ConfigError> {
    let context = { options.context.as_ref() }.or(file.current_context.as_ref());
    let context = context.cloned();
    if let Some(path) = authority(&file, options) {
        read_named(path)?;
    }
    let mut config = Config::from_custom_kubeconfig(file, options).await?;
    let user = &mut config.auth_info;
    let certificate =
        { user.client_certificate.as_ref() }.filter(|_| user.client_certificate_data.is_none());
    let key = { user.client_key.as_ref() }.filter(|_| user.client_key_data.is_none());
    for path in certificate.into_iter().chain(key) {
        read_named(path)?;
    }
    check_token(user)?;
    Ok((config, context))
}

/// The file with the certificate authority of the chosen context, if there is one.
fn authority<'a>(file: &'a Kubeconfig, options: &'a KubeConfigOptions) -> Option<&'a str> {
    let name = options.context.as_ref().or(file.current_context.as_ref())?;
    let context = file.contexts.iter().find(|one| one.name == *name)?;
    let context = context.context.as_ref()?;
    let cluster = file
        .clusters
        .iter()
        .find(|one| one.name == context.cluster)?;
    let cluster = cluster.cluster.as_ref()?;
    match cluster.certificate_authority_data {
        Some(_) => None,
        None => cluster.certificate_authority.as_deref(),
    }
}

/// Checks the user's token. Like `kubectl`, ignores whitespace around a token in a file.
fn check_token(user: &mut AuthInfo) -> Result<(), ConfigError> {
    let is_valid = |token: &str| HeaderValue::try_from(format!("Bearer {token}")).is_ok();
    if user.token.is_some() {
        // The library hides it from everything else.
        let fields = serde_json::to_value(&*user).unwrap_or_default();
        let token = fields["token"].as_str().unwrap_or_default();
        return is_valid(token).then_some(()).ok_or(ConfigError::Token);
    }
    let Some(path) = user.token_file.clone() else {
        return Ok(());
    };
    let bytes = read_named(&path)?;
    let text = String::from_utf8_lossy(&bytes);
    let token = text.trim();
    if !is_valid(token) {
        return Err(ConfigError::TokenFile { path: path.into() });
    }
    if token.len() != bytes.len() {
        // The library would send the whitespace, too. The price is that it does not read this file again.
        (user.token, user.token_file) = (Some(token.to_owned().into()), None);
    }
    Ok(())
}

/// Reads a file that a kubeconfig names.
fn read_named(path: &str) -> Result<Vec<u8>, ConfigError> {
    let path = Path::new(path);
    files::read(path, MAX_FILE).map_err(|reason| refused(path, reason))
}

fn refused(path: &Path, reason: files::Error) -> ConfigError {
    let path = path.to_owned();
    match reason {
        files::Error::Read(source) => ConfigError::Unreadable { path, source },
        reason => ConfigError::Refused { path, reason },
    }
}

/// Reads one file. The library would read an endless one, such as `/dev/zero`, until the memory is full.
fn read(path: &Path) -> Result<Kubeconfig, ConfigError> {
    match files::read(path, MAX_FILE) {
        // The library resolves paths in the file relative to its directory.
        Ok(_) => Ok(Kubeconfig::read_from(path)?),
        // A pipe, such as that of `<(...)` in a shell, or `/dev/null`. Its content can be read only once.
        Err(files::Error::NotRegular) => {
            let stream = files::read_stream(path, MAX_FILE);
            let bytes = stream.map_err(|reason| refused(path, reason))?;
            Ok(Kubeconfig::from_yaml(&String::from_utf8_lossy(&bytes))?)
        }
        Err(reason) => Err(refused(path, reason)),
    }
}
