//! The life of a process: ready, settling, draining, ending, and when its last stream has ended. One writer of each step;
//! everyone else watches.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Wake, Waker};

use tokio::sync::watch;

/// Where a process is in its life. It only ever goes on to a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Not all sockets or addresses are there yet.
    Starting,
    /// Serves.
    Ready,
    /// Asked to stop: says that it is not ready and goes on serving, until the word is out.
    Settling,
    /// Takes no new connections, ends idle ones, lets open streams run.
    Draining,
    /// Ends what is still open.
    Ending,
}

impl Phase {
    const ALL: [Self; 5] = [
        Self::Starting,
        Self::Ready,
        Self::Settling,
        Self::Draining,
        Self::Ending,
    ];

    /// Its name in logs and on the admin port.
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
pub struct Lifecycle {
    // Beside the channel: a look at it must cost one load.
    now: Arc<AtomicU8>,
    sender: Arc<watch::Sender<Phase>>,
    drained: Arc<watch::Sender<bool>>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            now: Arc::default(),
            sender: Arc::new(watch::Sender::new(Phase::Starting)),
            drained: Arc::new(watch::Sender::new(false)),
        }
    }
}

impl Lifecycle {
    #[must_use]
    pub fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.now.load(Ordering::Relaxed))]
    }

    /// Goes on to `phase`; going back is ignored.
    pub fn advance(&self, phase: Phase) {
        self.sender.send_if_modified(|current| {
            let later = phase > *current;
            if later {
                *current = phase;
                self.now.store(phase as u8, Ordering::Relaxed);
            }
            later
        });
    }

    /// Waits until `phase` is reached.
    pub fn reached(&self, phase: Phase) -> impl Future<Output = ()> + Send + use<> {
        let mut receiver = self.sender.subscribe();
        async move {
            let _ = receiver.wait_for(|now| *now >= phase).await;
        }
    }

    /// Tells of every phase that begins from now on.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Phase> {
        self.sender.subscribe()
    }

    /// Says that no stream is open any more, and that none will be opened.
    pub fn drained(&self) {
        self.drained.send_replace(true);
    }

    /// Waits until [`Self::drained`] is said.
    pub fn until_drained(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut receiver = self.drained.subscribe();
        async move {
            let _ = receiver.wait_for(|drained| *drained).await;
        }
    }

    /// For a task that looks often: see [`Watch`].
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch {
            lifecycle: self.clone(),
            waiting: None,
        }
    }
}

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Remembers that the task was woken by the wait, so that a task that is polled for other reasons need not ask it. That the
/// phase is still the same would not do: the wake for a change may come after the look that has seen it, and is used up.
struct Bell {
    rung: AtomicBool,
    task: Waker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

/// Looks at the phase at each poll for one load, and wakes the task when draining or ending begins.
pub struct Watch {
    lifecycle: Lifecycle,
    /// The wait for the next phase, polled again only after its bell has rung.
    waiting: Option<(Phase, Wait, Arc<Bell>)>,
}

impl Watch {
    /// The phase now. The task of `cx` is woken when it changes.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Phase {
        if let Some((_, _, bell)) = &self.waiting
            && !bell.rung.load(Ordering::Acquire)
        {
            return self.lifecycle.phase();
        }
        let now = self.lifecycle.phase();
        let next = match now {
            Phase::Ending => return now,
            Phase::Draining => Phase::Ending,
            _ => Phase::Draining,
        };
        let mut waiting = match self.waiting.take() {
            Some((phase, waiting, _)) if phase == next => waiting,
            _ => Box::pin(self.lifecycle.reached(next)) as Wait,
        };
        let bell = Arc::new(Bell {
            rung: AtomicBool::new(false),
            task: cx.waker().clone(),
        });
        let waker = Waker::from(Arc::clone(&bell));
        if waiting
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
        {
            return self.poll(cx);
        }
        self.waiting = Some((next, waiting, bell));
        now
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.lifecycle.phase()
    }

    /// As [`Lifecycle::reached`].
    pub fn reached(&self, phase: Phase) -> impl Future<Output = ()> + Send + use<> {
        self.lifecycle.reached(phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    #[tokio::test]
    async fn a_watch_wakes_its_task_at_draining_and_at_ending() {
        let lifecycle = Lifecycle::default();
        let mut watch = lifecycle.watch();
        let seen = tokio::spawn(async move {
            let mut seen = Vec::new();
            std::future::poll_fn(|cx| {
                let phase = watch.poll(cx);
                seen.push(phase);
                if phase == Phase::Ending {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            seen
        });
        tokio::task::yield_now().await;
        lifecycle.advance(Phase::Ready);
        tokio::task::yield_now().await;
        lifecycle.advance(Phase::Settling);
        tokio::task::yield_now().await;
        lifecycle.advance(Phase::Draining);
        tokio::task::yield_now().await;
        lifecycle.advance(Phase::Ready);
        lifecycle.advance(Phase::Ending);
        let seen = seen.await.expect("does not panic");
        assert_eq!(seen, Phase::ALL);
    }

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_look_in_the_midst_of_a_change_loses_no_wake() {
        for _ in 0..3000 {
            let lifecycle = Lifecycle::default();
            let mut watch = lifecycle.watch();
            let woken = Arc::new(Woken(AtomicBool::new(false)));
            let waker = Waker::from(Arc::clone(&woken));
            let mut cx = Context::from_waker(&waker);
            let mut seen = watch.poll(&mut cx);
            let writer = {
                let lifecycle = lifecycle.clone();
                std::thread::spawn(move || {
                    lifecycle.advance(Phase::Ready);
                    lifecycle.advance(Phase::Settling);
                })
            };
            // Looks for other reasons, too, until it has seen the change.
            while seen < Phase::Settling {
                seen = watch.poll(&mut cx);
            }
            writer.join().expect("does not panic");
            while woken.0.swap(false, Ordering::SeqCst) {
                watch.poll(&mut cx);
            }
            lifecycle.advance(Phase::Draining);
            assert!(woken.0.load(Ordering::SeqCst));
        }
    }
}
