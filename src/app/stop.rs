//! The end of a process, as it is told: not ready, settle, drain, end. A signal tells it, or the admin port: then it ends only
//! at the signal, for whoever waits for its streams asks this process when they are over.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Ended;
use crate::config::Config;
use crate::lifecycle::{Lifecycle, Phase};
use crate::proxy::ProxyContext;

/// What those who wait for the drain get to be told of its end.
const LAST_ANSWERS: Duration = Duration::from_millis(100);
/// What spans that wait get to be sent.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// What ended streams get to be written out.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Stops as it is told: not ready, settle, drain, end.
pub(super) async fn live(
    config: &Config,
    lifecycle: &Lifecycle,
    context: &ProxyContext,
    threads: Vec<std::thread::JoinHandle<()>>,
    mut signals: Signals,
) -> Ended {
    tokio::select! {
        () = signals.first() => lifecycle.advance(Phase::Settling),
        () = lifecycle.reached(Phase::Settling) => {}
    }
    let told_to_settle = lifecycle.phase() == Phase::Settling;
    if told_to_settle {
        tracing::info!(
            seconds = config.settle.as_secs_f64(),
            "not ready any more; settling"
        );
        tokio::select! {
            () = tokio::time::sleep(config.settle) => {}
            () = lifecycle.reached(Phase::Draining) => {}
            () = signals.second() => return cut_at_once(context),
        }
    }
    lifecycle.advance(Phase::Draining);
    tracing::info!(open = context.open(), "draining");
    let mut joined = std::pin::pin!(tokio::task::spawn_blocking(move || {
        for thread in threads {
            let _ = thread.join();
        }
    }));
    let ended = tokio::select! {
        _ = joined.as_mut() => Ended::Clean,
        () = tokio::time::sleep(config.drain) => {
            let open = context.open();
            tracing::warn!(open, "the time to drain is over: ending what is open");
            lifecycle.advance(Phase::Ending);
            let _ = tokio::time::timeout(LAST_WORDS, joined).await;
            if open == 0 { Ended::Clean } else { Ended::Cut }
        }
        () = signals.second() => return cut_at_once(context),
    };
    lifecycle.drained();
    if let Some(tracer) = context.tracer.clone() {
        tokio::select! {
            () = tracer.shut_down(LAST_SPANS) => {}
            () = signals.second() => return ended,
        }
    }
    if told_to_settle {
        tracing::info!("drained");
        signals.first().await;
        tokio::time::sleep(LAST_ANSWERS).await;
    }
    ended
}

fn cut_at_once(context: &ProxyContext) -> Ended {
    let open = context.open();
    tracing::warn!(open, "second signal received, exiting now");
    if open == 0 { Ended::Clean } else { Ended::Cut }
}

/// The signals that mean: stop.
pub(super) struct Signals {
    sources: Option<[Signal; 2]>,
    heard: u32,
}

impl Signals {
    /// Listens to SIGTERM and SIGINT from now on.
    pub(super) fn listen() -> Self {
        let listen = |kind| signal(kind).expect("the handler of an ordinary signal can be set");
        Self {
            sources: Some([SignalKind::terminate(), SignalKind::interrupt()].map(listen)),
            heard: 0,
        }
    }

    /// None ever comes.
    pub(super) fn none() -> Self {
        Self {
            sources: None,
            heard: 0,
        }
    }

    /// Waits until there was one.
    pub(super) async fn first(&mut self) {
        self.heard(1).await;
    }

    /// Waits until there were two: whoever asks twice wants an end at once.
    async fn second(&mut self) {
        self.heard(2).await;
    }

    async fn heard(&mut self, count: u32) {
        while self.heard < count {
            match &mut self.sources {
                Some([terminate, interrupt]) => {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                }
                None => std::future::pending().await,
            }
            self.heard += 1;
        }
    }
}
