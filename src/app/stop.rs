//! The end of a process, as it is told: not ready, settle, drain, end.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::Ended;
use crate::config::Config;
use crate::lifecycle::{Lifecycle, Phase};
use crate::proxy::Shared;

/// What ended streams get to be written out.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Stops as it is told: not ready, settle, drain, end.
pub(super) async fn live(
    config: &Config,
    lifecycle: &Lifecycle,
    shared: &Shared,
    threads: Vec<std::thread::JoinHandle<()>>,
    mut signals: Option<Signals>,
) -> Ended {
    tokio::select! {
        () = Signals::next(&mut signals) => {
            lifecycle.advance(Phase::Settling);
            tracing::info!(seconds = config.settle.as_secs_f64(), "not ready any more; settling");
            tokio::select! {
                () = tokio::time::sleep(config.settle) => {}
                () = Signals::next(&mut signals) => return cut_at_once(shared),
            }
        }
        // Told from within the process.
        () = lifecycle.reached(Phase::Draining) => {}
    }
    lifecycle.advance(Phase::Draining);
    tracing::info!(open = shared.open(), "draining");
    let mut joined = std::pin::pin!(tokio::task::spawn_blocking(move || {
        for thread in threads {
            let _ = thread.join();
        }
    }));
    tokio::select! {
        _ = joined.as_mut() => return Ended::Clean,
        () = tokio::time::sleep(config.drain) => {}
        () = Signals::next(&mut signals) => return cut_at_once(shared),
    }
    let open = shared.open();
    tracing::warn!(open, "the time to drain is over: ending what is open");
    lifecycle.advance(Phase::Ending);
    let _ = tokio::time::timeout(LAST_WORDS, joined).await;
    if open == 0 { Ended::Clean } else { Ended::Cut }
}

fn cut_at_once(shared: &Shared) -> Ended {
    let open = shared.open();
    tracing::warn!(open, "told to stop once more: ending at once");
    if open == 0 { Ended::Clean } else { Ended::Cut }
}

/// The signals that mean: stop.
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    pub(super) fn new() -> Self {
        let listen = |kind| signal(kind).expect("the handler of an ordinary signal can be set");
        Self {
            terminate: listen(SignalKind::terminate()),
            interrupt: listen(SignalKind::interrupt()),
        }
    }

    async fn next(signals: &mut Option<Self>) {
        match signals {
            Some(signals) => {
                tokio::select! {
                    _ = signals.terminate.recv() => {}
                    _ = signals.interrupt.recv() => {}
                }
            }
            None => std::future::pending().await,
        }
    }
}
