//! Logs of the process, as text or JSON on standard output, with a level that can be changed while it runs.

use std::sync::OnceLock;

use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};

static HANDLE: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Why the level cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("'{0}' is no log level: use error, warn, info, debug, trace or target=level,…")]
    Level(String, #[source] ParseError),
    #[error("logging was not started")]
    NotStarted,
}

/// Starts logging. A second start in one process is ignored.
///
/// # Errors
/// When `level` is not one.
pub fn start(level: &str, json: bool) -> Result<(), Error> {
    let (filter, handle) = reload::Layer::new(parse(level)?);
    let registry = tracing_subscriber::registry().with(filter);
    let started = if json {
        let layer = fmt::layer()
            .json()
            .flatten_event(true)
            .with_current_span(false);
        registry.with(layer.with_span_list(false)).try_init()
    } else {
        let ansi = std::io::IsTerminal::is_terminal(&std::io::stdout());
        registry
            .with(fmt::layer().with_target(false).with_ansi(ansi))
            .try_init()
    };
    if started.is_ok() {
        let _ = HANDLE.set(handle);
    }
    Ok(())
}

/// Changes the level from now on.
///
/// # Errors
/// When `level` is not one, or nothing is logged at all.
pub fn set_level(level: &str) -> Result<(), Error> {
    let filter = parse(level)?;
    let handle = HANDLE.get().ok_or(Error::NotStarted)?;
    handle.reload(filter).map_err(|_| Error::NotStarted)
}

/// What the API client says of its requests is told by who made them, once; unless it is asked for.
fn parse(level: &str) -> Result<EnvFilter, Error> {
    let quiet = match level.contains("kube_client") {
        true => "",
        false => ",kube_client=off",
    };
    EnvFilter::builder()
        .parse(format!("{}{quiet}", level.trim()))
        .map_err(|source| Error::Level(level.trim().into(), source))
}
