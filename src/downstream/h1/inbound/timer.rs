//! One timer for the life of a connection, moved rather than made anew.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

pub struct Timer(Pin<Box<Sleep>>);

impl Timer {
    /// Armed for `limit` from now.
    pub fn new(limit: Duration) -> Self {
        Self(Box::pin(tokio::time::sleep(limit)))
    }

    /// Ready when `deadline` is over. One that is armed for an earlier time stays so, and is moved when that comes.
    pub fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        loop {
            let armed = self.0.deadline();
            if armed > deadline.into() || (self.0.is_elapsed() && Instant::now() < deadline) {
                self.0.as_mut().reset(deadline.into());
            }
            ready!(self.0.as_mut().poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
        }
    }

    /// Ready `interval` from now at the latest.
    pub fn poll_within(&mut self, cx: &mut Context<'_>, interval: Duration) -> Poll<()> {
        let next = Instant::now() + interval;
        if self.0.is_elapsed() || self.0.deadline() > next.into() {
            self.0.as_mut().reset(next.into());
        }
        self.0.as_mut().poll(cx)
    }
}
