//! The turns of a thread: it waits for sockets, then runs tasks until none is ready.
//!
//! Where a thread has several requests or answers to begin in a turn, it reads them all before it writes the first head: a
//! peer on the same machine that sleeps is woken by the first write to it, so peers are then woken once a turn instead of
//! once a write. Where it has many slices of streams to forward it reads them, too, before it writes the first one. How
//! many there will be is guessed from the turn before.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::task::Poll;

/// How many slices a turn must have for them to be read before they are written: for fewer it is not worth while, of more
/// the first would wait too long, and what they hold of read buffers would be much.
const MANY: RangeInclusive<u32> = 8..=256;

/// What was read in a turn, to be written in it.
#[derive(Clone, Copy)]
struct Reads {
    heads: u32,
    slices: u32,
}

impl Reads {
    const NONE: Self = Self {
        heads: 0,
        slices: 0,
    };
}

thread_local! {
    static LAST_TURN: Cell<Reads> = const { Cell::new(Reads::NONE) };
    static THIS_TURN: Cell<Reads> = const { Cell::new(Reads::NONE) };
}

/// Ends a turn: the thread is about to wait for sockets.
pub fn end() {
    LAST_TURN.set(THIS_TURN.replace(Reads::NONE));
}

/// To be awaited before a head is written. Where the last turn had several, all tasks that are ready come first; else there
/// is nothing to wait for, nor in a runtime that does not tell of its turns.
pub async fn others_first() {
    let mut this = THIS_TURN.get();
    this.heads = this.heads.saturating_add(1);
    THIS_TURN.set(this);
    if LAST_TURN.get().heads > 1 {
        behind_others().await;
    }
}

/// To be asked once for each slice of a stream that was read. If it is to wait, its task must wake itself, and go on with the
/// slice when it is polled again: behind all that are ready now.
pub fn slice_waits() -> bool {
    let mut this = THIS_TURN.get();
    this.slices = this.slices.saturating_add(1);
    THIS_TURN.set(this);
    let last = LAST_TURN.get().slices;
    // A turn that has more than was guessed says so itself. Without a last turn there are none, as far as is known.
    last > 0 && MANY.contains(&last.max(this.slices))
}

/// The tasks of this thread that are ready now come first. [`tokio::task::yield_now`] would have a look at the sockets, too.
pub async fn behind_others() {
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

    use futures_util::FutureExt;
    use tokio::task::LocalSet;

    use super::*;

    /// What this many tasks do, ready at once, that each read and write.
    pub async fn ready_at_once(tasks: usize) -> String {
        let done = Rc::new(RefCell::new(String::new()));
        let local = LocalSet::new();
        for _ in 0..tasks {
            let done = Rc::clone(&done);
            local.spawn_local(async move {
                done.borrow_mut().push('r');
                others_first().await;
                done.borrow_mut().push('w');
            });
        }
        local.await;
        done.take()
    }

    /// The slices, of this many in a turn, that wait.
    fn waiting(slices: u32) -> Vec<u32> {
        let waiting = (0..slices).filter(|_| slice_waits()).collect();
        end();
        waiting
    }

    async fn turn(tasks: usize) -> String {
        let done = ready_at_once(tasks).await;
        end();
        done
    }

    #[tokio::test]
    async fn where_several_are_ready_all_are_read_before_one_is_written() {
        assert_eq!(
            turn(3).await,
            "rwrwrw",
            "nothing is known of the first turn"
        );
        assert_eq!(turn(3).await, "rrrwww");
    }

    #[test]
    fn where_many_slices_came_last_they_wait() {
        assert_eq!(waiting(8).len(), 0, "nothing is known of the first turn");
        assert_eq!(waiting(7).len(), 7);
        assert_eq!(waiting(1).len(), 0, "seven are few");
        assert_eq!(waiting(10), [7, 8, 9], "more than was guessed");
    }

    #[test]
    fn no_more_slices_wait_than_a_bound() {
        waiting(100);
        assert_eq!(waiting(300).len(), 256);
        assert_eq!(waiting(300).len(), 0, "too many");
    }

    #[test]
    fn without_turns_no_slice_waits() {
        assert!((0..300).all(|_| !slice_waits()));
    }

    #[tokio::test]
    async fn one_alone_does_not_wait() {
        others_first().await;
        end();
        assert_eq!(others_first().now_or_never(), Some(()));
    }

    #[tokio::test]
    async fn a_busy_turn_is_forgotten_after_the_next() {
        turn(3).await;
        assert_eq!(others_first().now_or_never(), None);
        end();
        assert_eq!(others_first().now_or_never(), Some(()));
    }

    #[tokio::test]
    async fn a_runtime_that_does_not_tell_of_its_turns_waits_for_nothing() {
        for _ in 0..9 {
            others_first().await;
        }
        assert_eq!(others_first().now_or_never(), Some(()));
    }
}
