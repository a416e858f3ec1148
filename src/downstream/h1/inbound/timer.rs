//! A single timer for the life of a connection, reset instead of being recreated.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

pub struct Timer(Pin<Box<Sleep>>);

impl Timer {
    /// Expires `limit` from now.
    pub fn new(limit: Duration) -> Self {
        Self(Box::pin(tokio::time::sleep(limit)))
    }

    /// Ready once `deadline` has passed. A timer that is set for an earlier time is reset only when it fires.
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

    /// Ready at the latest `interval` from now.
    pub fn poll_within(&mut self, cx: &mut Context<'_>, interval: Duration) -> Poll<()> {
        let next = Instant::now() + interval;
        if self.0.is_elapsed() || self.0.deadline() > next.into() {
            self.0.as_mut().reset(next.into());
        }
        self.0.as_mut().poll(cx)
    }
}
