//! Standard output behind a bounded queue: a single thread writes, so that nothing else ever waits for the reader. Lines that do
//! not fit are dropped and counted.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock, mpsc};
use std::time::Duration;

use prometheus::IntCounter;

use super::dropped_lines;

/// Maximum number of bytes in the queue, including overhead.
const ROOM: usize = 8 * 1024 * 1024;
/// Maximum number of these for access lines, so that there is room for lines that report problems.
const ROOM_FOR_ACCESS: usize = 6 * 1024 * 1024;
/// Overhead of a batch: its entry in the queue and the rounding of the allocator.
const PER_BATCH: usize = 128;
/// Pause between two attempts at a non-blocking output without room.
const FULL: Duration = Duration::from_millis(10);
/// How long queued lines may take to be written when the process ends.
const LAST_LINES: Duration = Duration::from_secs(2);

/// The kinds of lines. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Access,
    Log,
}

impl Kind {
    const fn room(self) -> usize {
        match self {
            Self::Access => ROOM_FOR_ACCESS,
            Self::Log => ROOM,
        }
    }
}

/// Dropped lines, by kind.
static DROPPED: LazyLock<[IntCounter; 2]> =
    LazyLock::new(|| ["access", "log"].map(|kind| dropped_lines().with_label_values(&[kind])));

static QUEUE: OnceLock<Queue> = OnceLock::new();
/// Queued bytes.
static WAITING: AtomicUsize = AtomicUsize::new(0);

struct Queue(mpsc::Sender<Job>);

enum Job {
    Write(Kind, Box<[u8]>),
    /// Signals that everything queued before has been written.
    Flush(mpsc::SyncSender<()>),
}

/// Starts the writing thread. A second start in the same process is ignored.
///
/// # Errors
/// When no thread or descriptor is available.
pub(super) fn start() -> io::Result<()> {
    if QUEUE.get().is_some() {
        return Ok(());
    }
    // Both series must exist before anything is dropped.
    LazyLock::force(&DROPPED);
    // Do not use `Stdout`, whose lock and buffer are shared.
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (sender, jobs) = mpsc::channel();
    let run = move || {
        for job in jobs {
            match job {
                Job::Write(kind, lines) => {
                    if write(&mut out, &lines).is_err() {
                        count(kind, &lines);
                    }
                    WAITING.fetch_sub(cost(&lines), Ordering::Relaxed);
                }
                Job::Flush(written) => drop(written.send(())),
            }
        }
    };
    std::thread::Builder::new()
        .name("output".to_owned())
        .spawn(run)?;
    let _ = QUEUE.set(Queue(sender));
    Ok(())
}

/// Queues complete lines. Never waits.
pub(super) fn write_lines(kind: Kind, lines: &[u8]) {
    if lines.is_empty() {
        return;
    }
    let cost = cost(lines);
    let before = WAITING.fetch_add(cost, Ordering::Relaxed);
    let queue = QUEUE.get().filter(|_| before + cost <= kind.room());
    if let Some(Queue(sender)) = queue
        && sender.send(Job::Write(kind, lines.into())).is_ok()
    {
        return;
    }
    WAITING.fetch_sub(cost, Ordering::Relaxed);
    count(kind, lines);
}

/// On drop, waits at most two seconds for the queued lines to be written: for the end of `main`.
#[derive(Debug)]
pub struct FlushAtEnd;

impl Drop for FlushAtEnd {
    fn drop(&mut self) {
        let Some(Queue(sender)) = QUEUE.get() else {
            return;
        };
        let (written, receiver) = mpsc::sync_channel(1);
        if sender.send(Job::Flush(written)).is_ok() {
            let _ = receiver.recv_timeout(LAST_LINES);
        }
    }
}

fn cost(lines: &[u8]) -> usize {
    lines.len() + PER_BATCH
}

fn count(kind: Kind, lines: &[u8]) {
    let lines = memchr::memchr_iter(b'\n', lines).count();
    DROPPED[kind as usize].inc_by(lines as u64);
}

/// Like `write_all`, even if another process has made the output non-blocking.
fn write(out: &mut impl Write, mut lines: &[u8]) -> io::Result<()> {
    while !lines.is_empty() {
        match out.write(lines) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => lines = &lines[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(FULL),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_does_not_block_and_is_full_is_tried_again() {
        struct Sometimes(Vec<u8>, usize);
        impl Write for Sometimes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1 += 1;
                match self.1 % 3 {
                    0 => Err(ErrorKind::WouldBlock.into()),
                    1 => Err(ErrorKind::Interrupted.into()),
                    _ => self.0.write(&bytes[..1]),
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = Sometimes(Vec::new(), 0);
        write(&mut out, b"lines\n").unwrap();
        assert_eq!(out.0, b"lines\n");
    }
}
