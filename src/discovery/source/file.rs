//! Watches a plan file that may be replaced by an editor, swapped as a symlink (ConfigMap volumes) or written in place.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;

use super::{BoxFuture, Context, Error, First, Source};
use crate::discovery::{RequestedPlan, SourceEvent, State};
use crate::files::{self, Stamp};
use crate::resource::{self, MAX_BYTES, Problems};

/// How often the file is checked without a notification. Network file systems send none.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How long a file must have been unmodified before it is read, unless an event says that it is complete.
const STILL: Duration = Duration::from_secs(1);

/// How long an invalid file must stay unchanged before it is rejected.
const INVALID_FILE_GRACE: Duration = Duration::from_millis(100);

/// Reads and validates a plan file.
fn read(path: &Path) -> Result<RequestedPlan, Problems> {
    parse(&read_text(path)?)
}

fn parse(text: &str) -> Result<RequestedPlan, Problems> {
    Ok(resource::load(text)?.into())
}

/// Reads the text of a manifest file without validating it.
fn read_text(path: &Path) -> Result<String, Problems> {
    let bytes = files::read(path, MAX_BYTES as u64).map_err(|error| match error {
        files::Error::Read(error) => Problems::one("", format!("cannot be read: {error}")),
        error => Problems::one("", error.to_string()),
    })?;
    String::from_utf8(bytes).map_err(|_| Problems::one("", "is not UTF-8 text"))
}

/// A plan file and the version of it that was read last.
#[derive(Debug)]
pub(super) struct PlanFile {
    path: PathBuf,
    seen: Option<Stamp>,
    /// Why its text could not be read. The next check tries again, because such a problem may end without a change of the file.
    unreadable: Option<Problems>,
    /// Since when there is no such file.
    missing: Option<MissingFile>,
}

#[derive(Debug)]
struct MissingFile {
    since: Instant,
    is_reported: bool,
}

impl Source for PlanFile {
    fn first<'a>(&'a mut self, saved: Option<&'a State>) -> BoxFuture<'a, Result<First, Error>> {
        Box::pin(std::future::ready(self.read_or(saved)))
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn follow(self: Box<Self>, context: Context) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if let Err(error) = self.watch(context.events).await {
                tracing::error!(%error, "cannot watch the plan file");
            }
        })
    }
}

impl PlanFile {
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            seen: None,
            unreadable: None,
            missing: None,
        }
    }

    /// Reads the file, or the plan that was saved before a restart if the file is invalid.
    fn read_or(&mut self, saved: Option<&State>) -> Result<First, Error> {
        let problems = match self.read() {
            Ok(wanted) => return Ok(First::new(wanted, self.name())),
            Err(problems) => problems,
        };
        let saved = saved.and_then(|state| {
            let wanted = read(state.file()).ok()?;
            Some(First::new(wanted, state.file().display().to_string()))
        });
        match saved {
            Some(saved) => Ok(First {
                rejected: Some((problems, self.name())),
                ..saved
            }),
            None => Err(Error::File {
                path: self.path.clone(),
                problems,
            }),
        }
    }

    /// The file as the source of a plan, for users.
    fn name(&self) -> Arc<str> {
        self.path.display().to_string().into()
    }

    /// Reads the file. [`PlanFile::watch`] reports changes from now on.
    fn read(&mut self) -> Result<RequestedPlan, Problems> {
        // Stat before reading, so that a change in between is noticed.
        self.seen = Stamp::of(&self.path);
        let text = read_text(&self.path);
        self.unreadable = text.as_ref().err().cloned();
        parse(&text?)
    }

    /// Watches the file for the life of the process and reports every change. Fails if its directory cannot be watched.
    async fn watch(mut self, events: mpsc::Sender<SourceEvent>) -> notify::Result<()> {
        let (sender, mut changes) = mpsc::channel(16);
        let watched = self.path.clone();
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // A full channel already holds a reason to look.
                let whole = event
                    .is_ok_and(|event| is_whole(event.kind) && is_about(&watched, &event.paths));
                let _ = sender.try_send(whole);
            })?;
        watcher.watch(directory(&self.path), RecursiveMode::NonRecursive)?;
        // A link into another directory, where the target may be written in place.
        let mut linked = None;
        let mut whole = false;
        loop {
            let target = std::fs::canonicalize(&self.path).ok();
            let target = target
                .as_deref()
                .map(|target| directory(target).to_path_buf());
            if target != linked {
                // The file's own directory may also be watched under another path, and both paths share one watch (inotify(7)).
                let own = std::fs::canonicalize(directory(&self.path)).ok();
                if let Some(left) = linked
                    .as_deref()
                    .filter(|left| own.as_deref() != Some(left))
                {
                    let _ = watcher.unwatch(left);
                }
                if let Some(target) = &target {
                    let _ = watcher.watch(target, RecursiveMode::NonRecursive);
                }
                linked = target;
            }
            if let Some(event) = self.check(whole).await
                && events.send(event).await.is_err()
            {
                return Ok(());
            }
            whole = match tokio::time::timeout(POLL_INTERVAL, changes.recv()).await {
                Ok(Some(whole)) => whole,
                Ok(None) => return Ok(()),
                Err(_) => false,
            };
        }
    }

    /// Reports, once, that the file is missing and not just about to be replaced.
    fn lost(&mut self) -> Option<SourceEvent> {
        let missing = self.missing.get_or_insert_with(|| MissingFile {
            since: Instant::now(),
            is_reported: false,
        });
        if missing.is_reported || missing.since.elapsed() < STILL {
            return None;
        }
        let problems = read_text(&self.path).err()?;
        missing.is_reported = true;
        Some(SourceEvent::Lost {
            problems,
            source: self.name(),
        })
    }

    /// Checks for a change. The file is only read if it is `whole` or has been unmodified for long enough.
    async fn check(&mut self, whole: bool) -> Option<SourceEvent> {
        let received = Instant::now();
        let Some(mut stamp) = Stamp::of(&self.path) else {
            self.seen = None;
            return self.lost();
        };
        self.missing = None;
        let before = self.unreadable.clone();
        let is_read = before.is_none() && self.seen.as_ref() == Some(&stamp);
        if is_read || !(whole || stamp.is_older_than(STILL)) {
            return None;
        }
        let source = self.name();
        loop {
            let problems = match self.read() {
                Ok(wanted) => {
                    return Some(SourceEvent::Plan {
                        wanted,
                        source,
                        received,
                        done: None,
                    });
                }
                Err(problems) => problems,
            };
            // An invalid file may be half written, so it is rejected only once it has stayed unchanged for a moment.
            tokio::time::sleep(INVALID_FILE_GRACE).await;
            let now = Stamp::of(&self.path)?;
            if now == stamp && self.seen.as_ref() == Some(&stamp) {
                let is_new = before.as_ref() != Some(&problems);
                return is_new.then_some(SourceEvent::Rejected { problems, source });
            }
            stamp = now;
        }
    }
}

/// Whether the event means that a file is complete: closed after writing, or put in place by a rename or link.
fn is_whole(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(_))
    )
}

/// Whether the event is about the plan file, its link target, or the link that swaps a ConfigMap volume, and not about another
/// file in the directory.
fn is_about(path: &Path, changed: &[PathBuf]) -> bool {
    let target = std::fs::canonicalize(path).ok();
    let names = [
        path.file_name(),
        target.as_ref().and_then(|target| target.file_name()),
    ];
    changed.iter().any(|changed| {
        let name = changed.file_name();
        name.is_some() && (names.contains(&name) || name == Some("..data".as_ref()))
    })
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
