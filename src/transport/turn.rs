//! The turns of a thread: it looks at which sockets are ready, and waits for one if it has nothing to do, then runs tasks.
//!
//! Where a thread has several requests or answers to begin in a turn, it reads them all before it writes the first head: a
//! peer on the same machine that sleeps is woken by the first write to it, so peers are then woken once a turn instead of
//! once a write. Where it has many slices of streams to forward it reads them, too, all but the large ones, before it writes
//! the first one, and looks at the sockets in between: small slices of one stream that have come by then go out in one write.
//! How many there will be is guessed from what was there last.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::task::{Context, Poll};

/// How many slices a turn must have for them to be read before they are written: for fewer it is not worth while, of more
/// the first would wait too long, and what they hold of read buffers would be much.
const MANY: RangeInclusive<u32> = 8..=256;

/// What was read in a turn, to be written in it.
#[derive(Clone, Copy)]
struct Reads {
    heads: u32,
    /// Since a slice that waited for a look went on, if one did.
    slices: u32,
    /// The most slices before that.
    most: u32,
    /// Some of the slices were told to wait.
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
    static LAST_TURN: Cell<Reads> = const { Cell::new(Reads::NONE) };
    static THIS_TURN: Cell<Reads> = const { Cell::new(Reads::NONE) };
}

/// Ends a turn. To be called when the thread is about to wait for sockets.
pub fn end() {
    let mut last = THIS_TURN.replace(Reads::NONE);
    last.slices = last.slices.max(last.most);
    LAST_TURN.set(last);
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

/// To be asked once for each slice of a stream that was read. If it is to wait, which no large one is, its task is polled
/// again when the thread has looked at its sockets, behind all that are ready then, and says with [`slice_waited`] that it
/// goes on.
pub fn slice_waits(cx: &mut Context<'_>, large: bool) -> bool {
    let mut this = THIS_TURN.get();
    this.slices = this.slices.saturating_add(1);
    let last = LAST_TURN.get().slices;
    // A turn that has more than was guessed says so itself. Without a last turn there are none, as far as is known.
    let waits = !large && last > 0 && MANY.contains(&last.max(this.slices));
    this.waiting |= waits;
    THIS_TURN.set(this);
    if waits {
        behind_others_and_a_look(cx);
    }
    waits
}

/// The task is polled again when the thread has looked at its sockets, behind all that are ready then. To be called before
/// `Pending` is returned by what could go on for ever without waiting.
pub fn behind_others_and_a_look(cx: &mut Context<'_>) {
    // Polled once it asks to be woken after the next look. That dropping it does not take this back is how tokio does it, no
    // promise.
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

/// A slice that waited goes on. The first one that does tells how many to expect: a thread that always finds something to do
/// never waits for sockets, so its turn does not end.
pub fn slice_waited() {
    let mut this = THIS_TURN.get();
    if !this.waiting {
        return;
    }
    let mut last = LAST_TURN.get();
    last.slices = this.slices;
    LAST_TURN.set(last);
    this.most = this.most.max(this.slices);
    this.slices = 0;
    this.waiting = false;
    THIS_TURN.set(this);
}

/// The tasks of this thread that are ready now come first. [`tokio::task::yield_now`] would look at the sockets, too.
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
    use std::task::Waker;

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

    /// Makes the last turn one of many slices.
    pub fn many_slices() {
        waiting(9);
    }

    /// The slices, of this many in a turn, that wait.
    fn waiting(slices: u32) -> Vec<u32> {
        let mut cx = Context::from_waker(Waker::noop());
        let waiting = (0..slices)
            .filter(|_| slice_waits(&mut cx, false))
            .collect();
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
    fn a_large_slice_does_not_wait_but_counts() {
        let mut cx = Context::from_waker(Waker::noop());
        waiting(1);
        assert!((0..7).all(|_| !slice_waits(&mut cx, true)));
        assert!(slice_waits(&mut cx, false), "the eighth");
        assert!(!slice_waits(&mut cx, true));
        end();
    }

    #[test]
    fn no_more_slices_wait_than_a_bound() {
        waiting(100);
        assert_eq!(waiting(300).len(), 256);
        assert_eq!(waiting(300).len(), 0, "too many");
    }

    #[test]
    fn the_first_slice_that_goes_on_tells_how_many_to_expect() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut waits = |slices| (0..slices).filter(|_| slice_waits(&mut cx, false)).count();
        waiting(8);
        assert_eq!(waits(9), 9);
        slice_waited();
        assert_eq!(waits(7), 7, "nine came last");
        slice_waited();
        slice_waited();
        assert_eq!(waits(8), 1, "seven came last");
        slice_waited();
        assert_eq!(waits(1), 1, "eight came last");
    }

    #[test]
    fn that_slices_went_on_before_a_turn_ended_is_not_forgotten() {
        let mut cx = Context::from_waker(Waker::noop());
        waiting(9);
        for _ in 0..3 {
            assert!((0..9).all(|_| slice_waits(&mut cx, false)));
            slice_waited();
            assert!(slice_waits(&mut cx, false), "a late one");
            end();
        }
    }

    #[tokio::test]
    async fn heads_are_counted_past_slices_that_go_on() {
        let mut cx = Context::from_waker(Waker::noop());
        waiting(9);
        others_first().await;
        others_first().await;
        slice_waits(&mut cx, false);
        slice_waited();
        end();
        assert_eq!(others_first().now_or_never(), None);
    }

    #[test]
    fn without_turns_no_slice_waits() {
        let mut cx = Context::from_waker(Waker::noop());
        assert!((0..300).all(|_| !slice_waits(&mut cx, false)));
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
