//! The clients of the demo: many streams at once, in a closed loop with time to think.
//!
//! They are on a thread of their own, so that what they measure is not the drawing of the view. Must not know the
//! proxy but for its address: what is counted here is what a client saw.

mod client;
mod tally;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Error;
use super::worker::Worker;
use client::Client;
pub(super) use client::{Ending, Report};
pub(super) use tally::Tally;

/// From the end of one answer to the next question, in milliseconds.
const THINK: RangeInclusive<u64> = 100..=600;

/// Running clients. Dropping it hangs up on everything.
#[derive(Debug)]
pub(super) struct Load {
    shared: Arc<Shared>,
    _worker: Worker,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    /// The split in force, in percent: a request is counted under the one it began with.
    percent: AtomicU8,
    outage: AtomicBool,
    tally: Mutex<Tally>,
}

impl Shared {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        // A count is whole after each statement, so a panic elsewhere does not spoil it.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Load {
    /// Sets `streams` clients on `address`, each asking for at most `tokens` tokens a time.
    ///
    /// # Errors
    /// [`Error::Load`] when no thread is to be had.
    pub(super) fn start(address: SocketAddr, streams: usize, tokens: u64) -> Result<Self, Error> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let worker = Worker::spawn("clients", move || async move {
            for _ in 0..streams {
                tokio::spawn(ask_again_and_again(
                    Arc::clone(&theirs),
                    Client::new(address, tokens),
                ));
            }
            std::future::pending::<()>().await;
        })
        .map_err(Error::Load)?;
        Ok(Self {
            shared,
            _worker: worker,
        })
    }

    /// Counts the requests that begin from now on under `percent`.
    pub(super) fn set_percent(&self, percent: u8) {
        self.shared.percent.store(percent, Relaxed);
    }

    /// Whether streams that are lost now are lost to a killed upstream.
    pub(super) fn set_outage(&self, outage: bool) {
        self.shared.outage.store(outage, Relaxed);
    }

    /// No new requests; what is open goes on to its end.
    pub(super) fn stop(&self) {
        self.shared.stopping.store(true, Relaxed);
    }

    /// Reads the counts so far. Clients wait meanwhile.
    pub(super) fn tally<T>(&self, read: impl FnOnce(&Tally) -> T) -> T {
        read(&self.shared.tally())
    }
}

async fn ask_again_and_again(shared: Arc<Shared>, mut client: Client) {
    loop {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(THINK))).await;
        if shared.stopping.load(Relaxed) {
            return;
        }
        let percent = shared.percent.load(Relaxed);
        shared.tally().begin();
        let report = client.ask().await;
        shared
            .tally()
            .end(&report, percent, shared.outage.load(Relaxed));
    }
}

#[cfg(test)]
mod tests;
