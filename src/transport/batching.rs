//! Batches reads and writes within an iteration of a thread's runtime: one poll for ready sockets, then the tasks that are
//! ready.
//!
//! If a thread has several requests or responses to begin in an iteration, it reads all of them before it writes the first
//! head: the first write to a sleeping peer on the same machine wakes it, so peers are woken once per iteration instead of once
//! per write. If it has many slices of streams to forward, it also reads them first, except for large ones, and polls the
//! sockets in between: small slices of a stream that have arrived by then are written together. Their number is predicted from
//! the last iteration.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::task::{Context, Poll};

/// The numbers of slices in an iteration for which they are deferred. With fewer, it is not worthwhile. With more, the first
/// one would wait too long, and they would hold many read buffers.
const MANY: RangeInclusive<u32> = 8..=256;

/// The data that was read in this iteration and will be written in it.
#[derive(Clone, Copy)]
struct Reads {
    heads: u32,
    /// Slices since a deferred slice was resumed, if one was.
    slices: u32,
    /// The maximum number of slices before that.
    most: u32,
    /// Some slices were deferred.
    waiting: bool,
}

impl Reads {
    const NONE: Self = Self {
        heads: 0,
        slices: 0,
        most: 0,
        waiting: false,
    };
}

thread_local! {
    static LAST_ITERATION: Cell<Reads> = const { Cell::new(Reads::NONE) };
    static THIS_ITERATION: Cell<Reads> = const { Cell::new(Reads::NONE) };
}

/// Ends an iteration. Call it when the thread is about to wait for sockets.
pub fn end() {
    let mut last = THIS_ITERATION.replace(Reads::NONE);
    last.slices = last.slices.max(last.most);
    LAST_ITERATION.set(last);
}

/// Await this before writing a head. If the last iteration had several heads, all ready tasks run first. Otherwise, and in a
/// runtime that does not call [`end`], it does not wait.
pub async fn before_head_write() {
    let mut this = THIS_ITERATION.get();
    this.heads = this.heads.saturating_add(1);
    THIS_ITERATION.set(this);
    if LAST_ITERATION.get().heads > 1 {
        yield_to_ready().await;
    }
}

/// Call this once for each slice of a stream that was read. If the slice should be deferred (large ones never are), its task is
/// polled again after the thread has polled its sockets and after all tasks that are ready then, and calls [`slice_resumed`]
/// when it continues.
pub fn should_defer_slice(cx: &mut Context<'_>, large: bool) -> bool {
    let mut this = THIS_ITERATION.get();
    this.slices = this.slices.saturating_add(1);
    let last = LAST_ITERATION.get().slices;
    // An iteration with more slices than predicted uses its own number. Without a last iteration, nothing is deferred.
    let waits = !large && last > 0 && MANY.contains(&last.max(this.slices));
    this.waiting |= waits;
    THIS_ITERATION.set(this);
    if waits {
        wake_after_poll(cx);
    }
    waits
}

/// The task is polled again after the thread has polled its sockets and after all tasks that are ready then. Call it before
/// returning `Pending` from work that could continue forever.
pub fn wake_after_poll(cx: &mut Context<'_>) {
    // Polling it schedules the wake-up after the next poll of the sockets. Dropping it does not cancel the wake-up, but this is
    // an implementation detail of tokio, not a guarantee.
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

/// A deferred slice continues. The first one to do so updates the prediction: a thread that always has work never waits for
/// sockets, so its iteration does not end.
pub fn slice_resumed() {
    let mut this = THIS_ITERATION.get();
    if !this.waiting {
        return;
    }
    let mut last = LAST_ITERATION.get();
    last.slices = this.slices;
    LAST_ITERATION.set(last);
    this.most = this.most.max(this.slices);
    this.slices = 0;
    this.waiting = false;
    THIS_ITERATION.set(this);
}

/// Lets the ready tasks of this thread run first. [`tokio::task::yield_now`] would also poll the sockets.
pub async fn yield_to_ready() {
    let mut waits = true;
    std::future::poll_fn(move |cx| {
        if !std::mem::take(&mut waits) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
pub mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::task::Waker;

    use futures_util::FutureExt;
    use tokio::task::LocalSet;

    use super::*;

    /// The operations of this many tasks that are ready at the same time and each read and write.
    pub async fn ready_at_once(tasks: usize) -> String {
        let done = Rc::new(RefCell::new(String::new()));
        let local = LocalSet::new();
        for _ in 0..tasks {
            let done = Rc::clone(&done);
            local.spawn_local(async move {
                done.borrow_mut().push('r');
                before_head_write().await;
                done.borrow_mut().push('w');
            });
        }
        local.await;
        done.take()
    }

    /// Makes the last iteration one of many slices.
    pub fn many_slices() {
        waiting(9);
    }

    /// The slices, of this many in an iteration, that wait.
    fn waiting(slices: u32) -> Vec<u32> {
        let mut cx = Context::from_waker(Waker::noop());
        let waiting = (0..slices)
            .filter(|_| should_defer_slice(&mut cx, false))
            .collect();
        end();
        waiting
    }

    async fn iteration(tasks: usize) -> String {
        let done = ready_at_once(tasks).await;
        end();
        done
    }

    #[tokio::test]
    async fn where_several_are_ready_all_are_read_before_one_is_written() {
        assert_eq!(
            iteration(3).await,
            "rwrwrw",
            "nothing is known of the first iteration"
        );
        assert_eq!(iteration(3).await, "rrrwww");
    }

    #[test]
    fn where_many_slices_came_last_they_wait() {
        assert_eq!(
            waiting(8).len(),
            0,
            "nothing is known of the first iteration"
        );
        assert_eq!(waiting(7).len(), 7);
        assert_eq!(waiting(1).len(), 0, "seven are few");
        assert_eq!(waiting(10), [7, 8, 9], "more than was guessed");
    }

    #[test]
    fn a_large_slice_does_not_wait_but_counts() {
        let mut cx = Context::from_waker(Waker::noop());
        waiting(1);
        assert!((0..7).all(|_| !should_defer_slice(&mut cx, true)));
        assert!(should_defer_slice(&mut cx, false), "the eighth");
        assert!(!should_defer_slice(&mut cx, true));
        end();
    }

    #[test]
    fn no_more_slices_wait_than_a_bound() {
        waiting(100);
        assert_eq!(waiting(300).len(), 256);
        assert_eq!(waiting(300).len(), 0, "too many");
    }

    #[test]
    fn the_first_resumed_slice_predicts_how_many_to_expect() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut waits = |slices| {
            (0..slices)
                .filter(|_| should_defer_slice(&mut cx, false))
                .count()
        };
        waiting(8);
        assert_eq!(waits(9), 9);
        slice_resumed();
        assert_eq!(waits(7), 7, "nine came last");
        slice_resumed();
        slice_resumed();
        assert_eq!(waits(8), 1, "seven came last");
        slice_resumed();
        assert_eq!(waits(1), 1, "eight came last");
    }

    #[test]
    fn slices_forwarded_before_an_iteration_ended_are_remembered() {
        let mut cx = Context::from_waker(Waker::noop());
        waiting(9);
        for _ in 0..3 {
            assert!((0..9).all(|_| should_defer_slice(&mut cx, false)));
            slice_resumed();
            assert!(should_defer_slice(&mut cx, false), "a late one");
            end();
        }
    }

    #[tokio::test]
    async fn heads_are_counted_past_slices_that_continue() {
        let mut cx = Context::from_waker(Waker::noop());
        waiting(9);
        before_head_write().await;
        before_head_write().await;
        should_defer_slice(&mut cx, false);
        slice_resumed();
        end();
        assert_eq!(before_head_write().now_or_never(), None);
    }

    #[test]
    fn without_iterations_no_slice_waits() {
        let mut cx = Context::from_waker(Waker::noop());
        assert!((0..300).all(|_| !should_defer_slice(&mut cx, false)));
    }

    #[tokio::test]
    async fn a_single_slice_does_not_wait() {
        before_head_write().await;
        end();
        assert_eq!(before_head_write().now_or_never(), Some(()));
    }

    #[tokio::test]
    async fn a_busy_iteration_is_forgotten_after_the_next_one() {
        iteration(3).await;
        assert_eq!(before_head_write().now_or_never(), None);
        end();
        assert_eq!(before_head_write().now_or_never(), Some(()));
    }

    #[tokio::test]
    async fn a_runtime_that_does_not_report_iterations_never_waits() {
        for _ in 0..9 {
            before_head_write().await;
        }
        assert_eq!(before_head_write().now_or_never(), Some(()));
    }
}
