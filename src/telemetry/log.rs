//! Logging, as text or JSON on standard output, at a level that can be changed at run time.

use std::fmt;
use std::io;
use std::panic::PanicHookInfo;
use std::str::FromStr;
use std::sync::OnceLock;

use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt as format};

pub use super::output::FlushAtEnd;
use super::output::{self, Kind};
use crate::printable::{printable, printable_with_styles};

static HANDLE: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// The level names.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Why logging cannot be started or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("logging has not been started")]
    NotStarted,
    #[error("cannot start logging")]
    Output(#[source] io::Error),
}

/// The log filter: a level, and levels for some targets, as in `info,crossfade::proxy=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level(String);

/// Why a [`Level`] is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{}' is not a log level: use off, error, warn, info, debug, trace, or TARGET=LEVEL, separated by commas",
    printable(.0)
)]
pub struct BadLevel(String);

impl FromStr for Level {
    type Err = BadLevel;

    /// This is stricter than the filter itself, which accepts any word as a target.
    fn from_str(text: &str) -> Result<Self, BadLevel> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        for part in &parts {
            let level = match part.split_once('=') {
                Some((target, level)) if is_target(target) => level,
                Some(_) => "",
                None => *part,
            };
            if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
                return Err(BadLevel((*part).to_owned()));
            }
        }
        // The filter ignores a part that begins with a space.
        Ok(Self(parts.join(",")))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether it is a module path, such as `crossfade::proxy`.
fn is_target(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    text.split("::")
        .all(|part| !part.is_empty() && part.chars().all(is_part))
}

impl Level {
    /// Libraries are off unless they are named: the API client's errors are logged by the caller, and h2 logs text of its peers.
    fn filter(&self) -> EnvFilter {
        let quiet = ["kube_client", "kube_runtime", "h2"].into_iter();
        let named = self.0.split([',', '=']);
        let is_named = |target: &str| {
            let mut rest = named.clone().filter_map(|name| name.strip_prefix(target));
            rest.any(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let quiet = quiet.filter(|target| !is_named(target));
        let quiet: String = quiet.map(|target| format!(",{target}=off")).collect();
        // Every part has been validated, so none is ignored.
        EnvFilter::builder().parse_lossy(format!("{}{quiet}", self.0))
    }
}

/// Starts logging, panics included. Dropping the result writes what is still queued. A second start in the same process is
/// ignored.
///
/// # Errors
/// When the writing thread cannot be started.
pub fn start(level: &Level, json: bool) -> Result<FlushAtEnd, Error> {
    output::start().map_err(Error::Output)?;
    let (filter, handle) = reload::Layer::new(level.filter());
    let registry = tracing_subscriber::registry().with(filter);
    let started = if json {
        let layer = format::layer()
            .json()
            .flatten_event(true)
            .with_current_span(false);
        let layer = layer
            .with_span_list(false)
            .with_writer(Lines { styled: false });
        registry.with(layer).try_init()
    } else {
        let ansi = io::IsTerminal::is_terminal(&io::stdout());
        let layer = format::layer().with_target(false).with_ansi(ansi);
        let lines = Lines { styled: ansi };
        registry.with(layer.with_writer(lines)).try_init()
    };
    if started.is_ok() {
        let _ = HANDLE.set(handle);
        std::panic::set_hook(Box::new(log_panic));
    }
    Ok(FlushAtEnd)
}

/// Logs panics as lines, because standard error may be a pipe without a reader, which would block the panicking thread.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let backtrace = std::backtrace::Backtrace::capture();
    tracing::error!(thread = thread.name(), %backtrace, "{panic}");
}

/// Changes what is logged.
///
/// # Errors
/// When logging has not been started.
pub fn set_level(level: &Level) -> Result<(), Error> {
    let handle = HANDLE.get().ok_or(Error::NotStarted)?;
    handle.reload(level.filter()).map_err(|_| Error::NotStarted)
}

/// Queues each event as one escaped line, so that no field can forge another one.
#[derive(Clone, Copy)]
struct Lines {
    /// Whether the level and the names of fields have colors. A field may have them, too, but no other escape sequence.
    styled: bool,
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

impl io::Write for Lines {
    /// Each event arrives complete, with its line end.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let line = match self.styled {
            true => format!("{}\n", printable_with_styles(text)),
            false => format!("{}\n", printable(text)),
        };
        output::write_lines(Kind::Log, line.as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_off_unless_they_are_named() {
        for (level, filter) in [
            ("debug", "kube_client=off,kube_runtime=off,h2=off,debug"),
            (
                "info,h2=trace",
                "kube_client=off,kube_runtime=off,h2=trace,info",
            ),
            (
                "debug,crossfade::upstream::h2=trace,h2c=info",
                "kube_client=off,kube_runtime=off,h2=off,crossfade::upstream::h2=trace,h2c=info,debug",
            ),
            (
                "info, h2::proto=debug",
                "kube_client=off,kube_runtime=off,h2::proto=debug,info",
            ),
            (
                "info,kube_client=warn",
                "kube_client=warn,kube_runtime=off,h2=off,info",
            ),
        ] {
            let sorted = |text: &str| {
                let mut parts: Vec<String> = text.split(',').map(str::to_owned).collect();
                parts.sort();
                parts
            };
            let found = level.parse::<Level>().unwrap().filter().to_string();
            assert_eq!(sorted(&found), sorted(filter), "{level}");
        }
    }

    #[test]
    fn a_level_is_a_known_name_or_a_list_of_them_by_target() {
        for good in [
            "info",
            " INFO ",
            "off",
            "warn,crossfade=debug",
            "crossfade::proxy=trace, h2=off",
        ] {
            assert!(good.parse::<Level>().is_ok(), "{good}");
        }
        for (bad, named) in [
            ("", "''"),
            ("inof", "'inof'"),
            ("nonsense", "'nonsense'"),
            ("info,", "''"),
            ("3", "'3'"),
            ("crossfade=loudly", "'crossfade=loudly'"),
            ("info,crossfade", "'crossfade'"),
            ("crossfade=", "'crossfade='"),
            ("=info", "'=info'"),
            ("a b=info", "'a b=info'"),
            ("crossfade[span]=info", "'crossfade[span]=info'"),
            ("info\u{9b}", "'info\\u009b'"),
        ] {
            let error = bad.parse::<Level>().unwrap_err().to_string();
            assert!(error.starts_with(named), "{bad}: {error}");
        }
    }
}
