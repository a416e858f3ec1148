//! Handles a client that does not read: its stream still moves off old, because old must not wait for it.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::{Relay, State};
use crate::memory::{Charge, holding_cost};

impl Relay {
    /// Call this instead of [`Relay::poll_frame`] while the client does not read.
    pub fn poll_unread(&mut self, cx: &mut Context<'_>) {
        loop {
            match &mut self.state {
                State::Flowing => {
                    self.source.poll_unread(cx);
                    self.watch_moves(cx);
                    if self.timers.poll_move(cx).is_pending() {
                        return;
                    }
                    self.turn_to_move();
                }
                State::Continuing(continuing) => match continuing.as_mut().poll(cx) {
                    Poll::Ready(continued) => {
                        let out = self.continue_after_search(continued);
                        self.keep_unsent(out);
                    }
                    Poll::Pending if self.ends_meanwhile(cx) => {}
                    Poll::Pending => return,
                },
                _ => return,
            }
        }
    }

    /// Keeps the beginning of another server's part until the client reads.
    fn keep_unsent(&mut self, out: Bytes) {
        if out.is_empty() {
            return;
        }
        let unsent = std::mem::take(&mut self.rest.get_or_insert_default().unsent);
        let unsent = match unsent.is_empty() {
            true => out,
            false => [unsent, out].concat().into(),
        };
        let mut charge = Charge::default();
        charge.force(self.exchange().memory(), holding_cost(unsent.len()));
        self.rest.get_or_insert_default().unsent = charge.tie(unsent);
    }
}
