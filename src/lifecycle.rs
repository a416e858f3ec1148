//! The phases of a process: ready, settling, draining, ending, and whether its last stream has ended. Each step has one writer;
//! everyone else watches.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, watch};

/// The phase of a process. It only advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ProcessPhase {
    /// Some sockets or addresses are not available yet.
    Starting,
    /// Serving.
    Ready,
    /// Shutdown has begun: reports not ready but still serves, until clients have noticed.
    Settling,
    /// Accepts no new connections, closes idle ones, lets open streams run.
    Draining,
    /// Cuts what is still open.
    Ending,
}

impl ProcessPhase {
    const ALL: [Self; 5] = [
        Self::Starting,
        Self::Ready,
        Self::Settling,
        Self::Draining,
        Self::Ending,
    ];

    /// The name in logs and on the admin port.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Settling => "settling",
            Self::Draining => "draining",
            Self::Ending => "ending",
        }
    }
}

/// The phase of this process, shared.
#[derive(Clone, Debug)]
pub struct Lifecycle(Arc<State>);

#[derive(Debug)]
struct State {
    // Kept next to the channel, so that reading it costs one load.
    now: AtomicU8,
    draining: Arc<Notify>,
    ending: Arc<Notify>,
    phase: watch::Sender<ProcessPhase>,
    drained: watch::Sender<bool>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self(Arc::new(State {
            now: AtomicU8::default(),
            draining: Arc::default(),
            ending: Arc::default(),
            phase: watch::Sender::new(ProcessPhase::Starting),
            drained: watch::Sender::new(false),
        }))
    }
}

impl Lifecycle {
    #[must_use]
    pub fn phase(&self) -> ProcessPhase {
        ProcessPhase::ALL[usize::from(self.0.now.load(Ordering::Relaxed))]
    }

    /// Advances to `phase`. Going back is ignored.
    pub fn advance(&self, phase: ProcessPhase) {
        self.0.phase.send_if_modified(|current| {
            let later = phase > *current;
            if later {
                *current = phase;
                self.0.now.store(phase as u8, Ordering::Relaxed);
            }
            later
        });
        // After the store, so that a woken task sees the phase.
        for (begun, notify) in [
            (ProcessPhase::Draining, &self.0.draining),
            (ProcessPhase::Ending, &self.0.ending),
        ] {
            if phase >= begun {
                notify.notify_waiters();
            }
        }
    }

    /// Waits until `phase` is reached.
    pub fn reached(&self, phase: ProcessPhase) -> impl Future<Output = ()> + Send + use<> {
        let mut receiver = self.0.phase.subscribe();
        async move {
            let _ = receiver.wait_for(|now| *now >= phase).await;
        }
    }

    /// The output of `future`; `None` if [`ProcessPhase::Ending`] begins before. Needs a [`Watch`] that wakes the task then.
    pub async fn unless_ending<T>(
        &self,
        mut future: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.phase() == ProcessPhase::Ending => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Signals every phase that begins from now on.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<ProcessPhase> {
        self.0.phase.subscribe()
    }

    /// Marks that no stream is open and that none will be opened.
    pub fn drained(&self) {
        self.0.drained.send_replace(true);
    }

    /// Waits until [`Self::drained`] has been called.
    pub fn until_drained(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut receiver = self.0.drained.subscribe();
        async move {
            let _ = receiver.wait_for(|drained| *drained).await;
        }
    }

    /// For a task that reads the phase often: see [`Watch`].
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch {
            lifecycle: self.clone(),
            awaited: ProcessPhase::Starting,
            notify: None,
        }
    }
}

/// Reads the phase at each poll with one load, and wakes its task when draining and when ending begins. Only one task may
/// poll it.
pub struct Watch {
    lifecycle: Lifecycle,
    /// The phase whose beginning wakes the task; earlier ones do not.
    awaited: ProcessPhase,
    notify: Option<Pin<Box<OwnedNotified>>>,
}

impl Watch {
    /// The current phase. The task is woken when draining begins and when ending begins.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> ProcessPhase {
        loop {
            let now = self.lifecycle.phase();
            if now < self.awaited || now == ProcessPhase::Ending {
                return now;
            }
            let (next, notify) = match now {
                ProcessPhase::Draining => (ProcessPhase::Ending, &self.lifecycle.0.ending),
                _ => (ProcessPhase::Draining, &self.lifecycle.0.draining),
            };
            let mut notify = Box::pin(Arc::clone(notify).notified_owned());
            // A change before this is seen by the next read, a change after it wakes the task.
            if notify.as_mut().poll(cx).is_pending() {
                self.notify = Some(notify);
                self.awaited = next;
            }
        }
    }

    #[must_use]
    pub fn phase(&self) -> ProcessPhase {
        self.lifecycle.phase()
    }

    /// Same as [`Lifecycle::reached`].
    pub fn reached(&self, phase: ProcessPhase) -> impl Future<Output = ()> + Send + use<> {
        self.lifecycle.reached(phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::task::{Wake, Waker};

    #[tokio::test]
    async fn a_watch_wakes_its_task_at_draining_and_at_ending() {
        let lifecycle = Lifecycle::default();
        let mut watch = lifecycle.watch();
        let seen = tokio::spawn(async move {
            let mut seen = Vec::new();
            std::future::poll_fn(|cx| {
                let phase = watch.poll(cx);
                seen.push(phase);
                if phase == ProcessPhase::Ending {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            seen
        });
        tokio::task::yield_now().await;
        lifecycle.advance(ProcessPhase::Ready);
        tokio::task::yield_now().await;
        lifecycle.advance(ProcessPhase::Settling);
        tokio::task::yield_now().await;
        lifecycle.advance(ProcessPhase::Draining);
        tokio::task::yield_now().await;
        lifecycle.advance(ProcessPhase::Ready);
        lifecycle.advance(ProcessPhase::Ending);
        let seen = seen.await.expect("does not panic");
        assert_eq!(
            seen,
            [
                ProcessPhase::Starting,
                ProcessPhase::Draining,
                ProcessPhase::Ending
            ]
        );
    }

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn reading_during_a_change_does_not_miss_the_next_one() {
        for _ in 0..1000 {
            let lifecycle = Lifecycle::default();
            let mut watch = lifecycle.watch();
            let woken = Arc::new(Woken(AtomicBool::new(false)));
            let waker = Waker::from(Arc::clone(&woken));
            let mut cx = Context::from_waker(&waker);
            std::thread::scope(|scope| {
                scope.spawn(|| lifecycle.advance(ProcessPhase::Draining));
                while watch.poll(&mut cx) < ProcessPhase::Draining {}
            });
            woken.0.store(false, Ordering::SeqCst);
            lifecycle.advance(ProcessPhase::Ending);
            assert!(woken.0.load(Ordering::SeqCst));
        }
    }
}
