//! Shutdown: not ready, settle, drain, end. It begins with a signal or with a request to the admin port. In the second case the
//! process stays until a signal arrives, because the process that started the drain asks this one whether its streams have ended.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::ProxyExit;
use crate::config::Config;
use crate::lifecycle::{Lifecycle, ProcessPhase};
use crate::proxy::ProxyContext;

/// How long clients that wait for the end of the drain may take to receive it.
const FINAL_RESPONSES: Duration = Duration::from_millis(100);
/// How long queued spans may take to be sent.
const FINAL_SPANS: Duration = Duration::from_secs(2);
/// How long the last bytes of cut streams may take to be written.
const FINAL_BYTES: Duration = Duration::from_secs(2);
/// The same after a second signal.
const FINAL_BYTES_NOW: Duration = Duration::from_millis(250);
/// How long the access lines of streams that were abandoned may take.
const FINAL_LINES: Duration = Duration::from_millis(250);

/// Runs until shutdown begins, then goes through its phases.
pub(super) async fn run(
    config: &Config,
    lifecycle: &Lifecycle,
    context: &ProxyContext,
    mut threads: Threads,
    mut signals: Signals,
) -> ProxyExit {
    tokio::select! {
        () = signals.first() => lifecycle.advance(ProcessPhase::Settling),
        () = lifecycle.reached(ProcessPhase::Settling) => {}
    }
    let settles = lifecycle.phase() == ProcessPhase::Settling;
    if settles {
        tracing::info!(seconds = config.settle.as_secs_f64(), "not ready, settling");
        tokio::select! {
            () = tokio::time::sleep(config.settle) => {}
            () = lifecycle.reached(ProcessPhase::Draining) => {}
            () = signals.second() => return exit_now(lifecycle, context, threads).await,
        }
    }
    lifecycle.advance(ProcessPhase::Draining);
    tracing::info!(open = context.open(), "draining");
    let ended = tokio::select! {
        () = threads.ended() => ProxyExit::Clean,
        () = tokio::time::sleep(config.drain) => {
            let open = context.open();
            tracing::warn!(open, "the drain timeout has passed, ending all open streams");
            lifecycle.advance(ProcessPhase::Ending);
            threads.end(FINAL_BYTES).await;
            if open == 0 { ProxyExit::Clean } else { ProxyExit::StreamsCut }
        }
        () = signals.second() => return exit_now(lifecycle, context, threads).await,
    };
    lifecycle.drained();
    if let Some(tracer) = context.tracer.clone() {
        tokio::select! {
            () = tracer.shut_down(FINAL_SPANS) => {}
            () = signals.second() => return ended,
        }
    }
    if settles {
        tracing::info!("drained");
        signals.first().await;
        tokio::time::sleep(FINAL_RESPONSES).await;
    }
    ended
}

/// Ends all open streams, and waits for `threads` only until their access lines are written.
async fn exit_now(
    lifecycle: &Lifecycle,
    context: &ProxyContext,
    mut threads: Threads,
) -> ProxyExit {
    let open = context.open();
    tracing::warn!(open, "second signal received, exiting now");
    lifecycle.advance(ProcessPhase::Ending);
    threads.end(FINAL_BYTES_NOW).await;
    if open == 0 {
        ProxyExit::Clean
    } else {
        ProxyExit::StreamsCut
    }
}

/// The threads that serve clients.
pub(super) struct Threads {
    joined: JoinHandle<()>,
    abandon: watch::Sender<bool>,
}

impl Threads {
    /// They drop all their streams when `abandon` becomes true.
    pub(super) fn new(
        threads: Vec<std::thread::JoinHandle<()>>,
        abandon: watch::Sender<bool>,
    ) -> Self {
        let joined = tokio::task::spawn_blocking(move || {
            for thread in threads {
                let _ = thread.join();
            }
        });
        Self { joined, abandon }
    }

    /// Waits until all of them have ended.
    async fn ended(&mut self) {
        if !self.joined.is_finished() {
            let _ = (&mut self.joined).await;
        }
    }

    /// Waits for the streams for at most `patience`, and abandons those that have not ended by then: their clients do not read.
    async fn end(&mut self, patience: Duration) {
        if tokio::time::timeout(patience, self.ended()).await.is_err() {
            self.abandon.send_replace(true);
            let _ = tokio::time::timeout(FINAL_LINES, self.ended()).await;
        }
    }
}

/// SIGTERM and SIGINT, and SIGHUP if the process was started at a terminal, which has then been closed. Otherwise SIGHUP is
/// ignored: its sender wants to reload files, which happens without it, and does not want to cut every stream.
pub(super) struct Signals {
    sources: Option<[Signal; 3]>,
    at_terminal: bool,
    received: u32,
}

impl Signals {
    /// Listens for signals from now on.
    pub(super) fn listen() -> Self {
        let listen = |kind| signal(kind).expect("a handler for an ordinary signal can be set");
        Self {
            sources: Some(
                [
                    SignalKind::terminate(),
                    SignalKind::interrupt(),
                    SignalKind::hangup(),
                ]
                .map(listen),
            ),
            at_terminal: std::io::stdin().is_terminal(),
            received: 0,
        }
    }

    /// Ignores them.
    pub(super) fn none() -> Self {
        Self {
            sources: None,
            at_terminal: false,
            received: 0,
        }
    }

    /// Whether one has arrived.
    pub(super) async fn have_arrived(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.first() => true,
            () = std::future::ready(()) => false,
        }
    }

    /// Waits until one has arrived.
    pub(super) async fn first(&mut self) {
        self.reached(1).await;
    }

    /// Waits until two have arrived: the second one requests an immediate end.
    async fn second(&mut self) {
        self.reached(2).await;
    }

    async fn reached(&mut self, count: u32) {
        while self.received < count {
            match &mut self.sources {
                Some([terminate, interrupt, hangup]) => {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                        _ = hangup.recv() => {
                            if !self.at_terminal {
                                tracing::info!("ignored SIGHUP: changed files are reloaded automatically");
                                continue;
                            }
                        }
                    }
                }
                None => std::future::pending().await,
            }
            self.received += 1;
        }
    }
}
