//! The turns of a thread: it waits for sockets, then runs tasks until none is ready.
//!
//! A peer on the same machine that sleeps is woken by the first write to it. Where a thread has several requests or answers
//! to begin in a turn, it reads them all before it writes the first head: their peers are then woken once a turn instead of
//! once a write. Whether there will be several is guessed from the turn before.

use std::cell::Cell;
use std::task::Poll;

/// Heads that came to be written in a turn.
#[derive(Clone, Copy)]
struct Heads {
    last_turn: u32,
    this_turn: u32,
}

thread_local! {
    static HEADS: Cell<Heads> = const { Cell::new(Heads { last_turn: 0, this_turn: 0 }) };
}

/// Ends a turn: the thread is about to wait for sockets.
pub fn end() {
    HEADS.set(Heads {
        last_turn: HEADS.get().this_turn,
        this_turn: 0,
    });
}

/// To be awaited before a head is written. Where the last turn had several, all tasks that are ready come first; else there
/// is nothing to wait for, nor in a runtime that does not tell of its turns.
pub async fn others_first() {
    let Heads {
        last_turn,
        this_turn,
    } = HEADS.get();
    HEADS.set(Heads {
        last_turn,
        this_turn: this_turn.saturating_add(1),
    });
    let mut waits = last_turn > 1;
    std::future::poll_fn(move |cx| {
        if !std::mem::take(&mut waits) {
            return Poll::Ready(());
        }
        // Woken at once, so behind all that are ready now.
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
