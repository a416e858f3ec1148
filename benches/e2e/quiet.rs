//! Is the machine quiet? Others may be busy on it, or share its processor.
//!
//! A virtual machine was seen to take a fifth longer for the same system calls, for seconds at a time, with no process to show
//! for it, nor steal in `/proc/stat`: as if another machine were on the other hardware thread of its core. A fixed piece of
//! work shows it. It is done before and after a round: what comes and goes within is not seen.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use super::machine::{self, Census};
use super::workloads::{self, LOAD_CORE, PROXY_CORE};

/// How many times as long as at its fastest the piece of work may take.
pub const SLOWDOWN: f64 = 1.08;
/// Writes and reads in a piece of work: a millisecond.
const PASSES: usize = 500;
/// Pieces of work, of which the fastest counts: the others may have met an interrupt.
const PIECES: usize = 10;
/// Looks at the processor before anything is measured.
const FIRST_LOOKS: usize = 20;

/// Waits for a quiet machine.
pub struct Quiet {
    pair: (UnixStream, UnixStream),
    /// How long the piece of work took at its fastest, on each core.
    fastest: [Duration; 2],
    /// Time that may still be lost for want of a quiet machine.
    pub patience: Duration,
}

impl Quiet {
    /// Watches the processor for two seconds.
    ///
    /// # Errors
    /// Without sockets or cores.
    pub fn new() -> std::io::Result<Self> {
        machine::pin(&[PROXY_CORE])?;
        let mut quiet = Self {
            pair: UnixStream::pair()?,
            fastest: [Duration::MAX; 2],
            patience: Duration::ZERO,
        };
        for _ in 0..FIRST_LOOKS {
            quiet.slowdown();
            thread::sleep(Duration::from_millis(100));
        }
        Ok(quiet)
    }

    /// Waits until others leave the machine and its processor alone, while there is patience. Answers how slow the processor
    /// is then.
    pub fn wait(&mut self) -> f64 {
        let (begun, look) = (Instant::now(), Duration::from_millis(200));
        loop {
            let before = Census::take();
            thread::sleep(look);
            let others = before.since(&workloads::ourselves());
            let slowdown = self.slowdown();
            let idle = others.cpu < 0.05 * look.as_secs_f64() && others.forks < 5;
            if idle && slowdown < SLOWDOWN || begun.elapsed() >= self.patience {
                self.lose(begun.elapsed().saturating_sub(look));
                return slowdown;
            }
        }
    }

    /// So much time was lost.
    pub fn lose(&mut self, time: Duration) {
        self.patience = self.patience.saturating_sub(time);
    }

    /// Has too much been lost to try again?
    pub fn is_given_up(&self) -> bool {
        self.patience.is_zero()
    }

    /// How many times as long as at its fastest the piece of work takes now, on the slower of the cores. Leaves the thread on
    /// the load's.
    pub fn slowdown(&mut self) -> f64 {
        let mut most = 1.0;
        for (at, core) in [PROXY_CORE, LOAD_CORE].into_iter().enumerate() {
            machine::pin(&[core]).expect("both were there at the start");
            let pieces = (0..PIECES).map(|_| self.work());
            let now = pieces.min().expect("some");
            self.fastest[at] = self.fastest[at].min(now);
            most = f64::max(most, now.as_secs_f64() / self.fastest[at].as_secs_f64());
        }
        most
    }

    /// System calls and copies, as proxies spend their time.
    fn work(&self) -> Duration {
        let (mut writer, mut reader) = (&self.pair.0, &self.pair.1);
        let begun = Instant::now();
        let mut bytes = [0; 256];
        for _ in 0..PASSES {
            writer.write_all(&bytes).expect("both ends are ours");
            reader.read_exact(&mut bytes).expect("both ends are ours");
        }
        begun.elapsed()
    }
}
