//! The clients of the demo: many concurrent streams in a closed loop with think time.
//!
//! They run on a separate thread, so that drawing does not distort their measurements, and only know the proxy's address.

mod client;
mod counts;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Error;
use super::worker::Worker;
use client::Client;
pub(super) use client::{Ending, RequestReport};
pub(super) use counts::Counts;

/// Think time between two requests, in milliseconds.
const THINK: RangeInclusive<u64> = 100..=600;

/// Running clients. Dropping it cuts all of their streams.
#[derive(Debug)]
pub(super) struct Load {
    shared: Arc<LoadState>,
    _worker: Worker,
}

#[derive(Debug, Default)]
struct LoadState {
    stopping: AtomicBool,
    /// The split in force, in percent. A request counts under the split at its start.
    percent: AtomicU8,
    outage: AtomicBool,
    counts: Mutex<Counts>,
}

impl LoadState {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Each statement leaves the counts consistent, so a panic elsewhere does not spoil them.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Load {
    /// Starts `streams` clients on `address`, each requesting at most `tokens` tokens at a time.
    ///
    /// # Errors
    /// [`Error::Load`] without a thread.
    pub(super) fn start(address: SocketAddr, streams: usize, tokens: u64) -> Result<Self, Error> {
        let shared = Arc::new(LoadState::default());
        let theirs = Arc::clone(&shared);
        let worker = Worker::spawn("clients", move || async move {
            for _ in 0..streams {
                tokio::spawn(send_requests(
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

    /// Counts the requests that start from now on under `percent`.
    pub(super) fn set_percent(&self, percent: u8) {
        self.shared.percent.store(percent, Relaxed);
    }

    /// Whether streams that break from now on are lost to an outage.
    pub(super) fn set_outage(&self, outage: bool) {
        self.shared.outage.store(outage, Relaxed);
    }

    /// Starts no new requests. Open ones continue.
    pub(super) fn stop(&self) {
        self.shared.stopping.store(true, Relaxed);
    }

    /// Reads the counts so far. Clients wait for it.
    pub(super) fn counts<T>(&self, read: impl FnOnce(&Counts) -> T) -> T {
        read(&self.shared.counts())
    }
}

async fn send_requests(shared: Arc<LoadState>, mut client: Client) {
    loop {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(THINK))).await;
        if shared.stopping.load(Relaxed) {
            return;
        }
        let percent = shared.percent.load(Relaxed);
        shared.counts().begin();
        let report = client.send_request().await;
        shared
            .counts()
            .end(&report, percent, shared.outage.load(Relaxed));
    }
}

#[cfg(test)]
mod tests;
