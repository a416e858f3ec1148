//! Limits the work of a connection before the thread polls its sockets again, so that a peer that sends continuously does not
//! delay others.
//!
//! Yielding is not enough: a task that another task wakes before the sockets are polled would continue immediately. Tokio polls
//! the sockets only every 61 tasks while tasks are ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// The work in bytes: the bytes that were read, and more for data that takes longer per byte.
#[derive(Debug, Default)]
pub struct Allowance {
    used: usize,
    /// It is used up, and the sockets have not been polled since.
    waits: bool,
    /// Kept once the allowance was used up.
    poll: Option<Arc<SocketPoll>>,
}

/// The next poll of the sockets.
#[derive(Debug, Default)]
struct SocketPoll {
    is_over: AtomicBool,
    task: AtomicWaker,
}

impl Wake for SocketPoll {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_over.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Allowance {
    /// Counts work that was done.
    pub const fn spend(&mut self, work: usize) {
        self.used = self.used.saturating_add(work);
    }

    /// Starts over. Call it when the socket has nothing to read: no more can be read from it before the sockets are polled.
    pub const fn renew(&mut self) {
        self.used = 0;
    }

    /// Ready while less than `most` is used. Otherwise, the task is polled again after the thread has polled its sockets and
    /// after all tasks that are ready then, and the allowance starts over.
    pub fn poll(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<()> {
        if self.used < most {
            return Poll::Ready(());
        }
        let poll = self.poll.get_or_insert_default();
        poll.task.register(cx.waker());
        if !self.waits {
            self.waits = true;
            poll.is_over.store(false, Ordering::Relaxed);
            super::batching::wake_after_poll(&mut Context::from_waker(&Waker::from(Arc::clone(
                poll,
            ))));
        }
        if !poll.is_over.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.waits = false;
        self.used = 0;
        Poll::Ready(())
    }
}

#[cfg(test)]
pub mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Mutex;

    use super::*;
    use crate::transport::Transport;

    /// A connection whose peer sends as fast as it can.
    pub(crate) struct Sends(TcpStream);

    impl Sends {
        /// The connection, for the current runtime.
        pub(crate) fn transport(self) -> Transport {
            self.0.set_nonblocking(true).expect("set");
            Transport::Tcp(tokio::net::TcpStream::from_std(self.0).expect("a runtime"))
        }
    }

    /// A connection whose peer sends `bytes` as fast as it can.
    pub(crate) fn sends_at_once(bytes: Vec<u8>) -> Sends {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let near = TcpStream::connect(address).expect("a connection");
        let (mut far, _) = listener.accept().expect("a connection");
        std::thread::spawn(move || far.write_all(&bytes));
        Sends(near)
    }

    /// Polls `step` in a task that is woken all the time, so that tokio polls the sockets only every 61 tasks, until it is ready.
    /// Returns how many times the sockets were polled before that.
    pub(crate) fn polls_of_the_sockets(
        mut step: impl FnMut(&mut Context<'_>) -> Poll<()> + Send + 'static,
    ) -> u32 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let polls = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&polls);
        let _ = runtime.block_on(async move {
            tokio::spawn(async move {
                loop {
                    tokio::task::yield_now().await;
                    *counted.lock().expect("no panic") += 1;
                }
            });
            tokio::spawn(std::future::poll_fn(move |cx| {
                cx.waker().wake_by_ref();
                step(cx)
            }))
            .await
        });
        *polls.lock().expect("no panic")
    }

    #[test]
    fn work_continues_only_after_the_sockets_were_polled() {
        let (mut allowance, mut steps) = (Allowance::default(), 0);
        let polls = polls_of_the_sockets(move |cx| {
            while allowance.poll(cx, 100).is_ready() {
                allowance.spend(25);
                steps += 1;
                if steps == 400 {
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        });
        assert!((99..=100).contains(&polls), "{polls}");
    }

    #[test]
    fn a_socket_without_data_renews_the_allowance() {
        let mut allowance = Allowance::default();
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..10 {
            assert!(allowance.poll(&mut cx, 100).is_ready());
            allowance.spend(100);
            allowance.renew();
        }
        assert!(allowance.poll.is_none(), "nothing was allocated");
    }
}
