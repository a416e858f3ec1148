//! The deadlines of an event stream, on a single timer. The timer is not reset for every event; if it fires early, it is set
//! again.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::transport::deadline::Deadline;

/// Which deadline is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Events without content were held long enough.
    Hold,
    /// No content before the first-event deadline.
    FirstEvent,
    /// Silence after the first content.
    Gap,
    /// The stream may be due to move to new.
    Move,
    /// Nothing was forwarded for a while: send a keep-alive comment.
    Comment,
}

/// Limits and the times from which they count. By default all are `None`, and there is no timer.
#[derive(Default)]
pub struct Timers {
    /// When to release events without content.
    pub held_until: Option<Instant>,
    pub first_event: Option<Instant>,
    pub gap: Option<Duration>,
    /// When the last bytes arrived, once the stream is committed.
    pub last_data: Option<Instant>,
    /// When to check whether the stream has to move to new.
    pub move_at: Option<Instant>,
    pub comments: Option<Duration>,
    /// When something was last forwarded.
    pub forwarded: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// The deadline that was extended because its timer fired late. Boxed, because that is rare, but each open stream reserves
    /// room for it.
    extended: Option<Box<Deadline>>,
}

impl Timers {
    /// The earliest deadline and its kind. During a retry only comments are due.
    fn next(&self, flowing: bool) -> Option<(Instant, Due)> {
        let only_flowing = [
            self.held_until.map(|at| (at, Due::Hold)),
            self.first_event.map(|at| (at, Due::FirstEvent)),
            self.gap
                .zip(self.last_data)
                .map(|(gap, last)| (last + gap, Due::Gap)),
            self.move_at.map(|at| (at, Due::Move)),
        ];
        let comment = self
            .comments
            .zip(self.forwarded)
            .map(|(every, last)| (last + every, Due::Comment));
        only_flowing
            .into_iter()
            .filter(|_| flowing)
            .chain([comment])
            .flatten()
            .min_by_key(|(at, _)| *at)
    }

    /// Whether no limit is set, as by default.
    const fn are_absent(&self) -> bool {
        self.held_until.is_none()
            && self.first_event.is_none()
            && self.gap.is_none()
            && self.move_at.is_none()
            && self.comments.is_none()
    }

    /// Waits until the stream may be due to move, for a client that does not read. No other deadline applies to its server.
    pub fn poll_move(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.move_at else {
            return Poll::Pending;
        };
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at.into())));
        if sleep.deadline() != at.into() {
            sleep.as_mut().reset(at.into());
        }
        ready!(sleep.as_mut().poll(cx));
        // An elapsed timer must not be polled again.
        self.sleep = None;
        self.move_at = None;
        Poll::Ready(())
    }

    /// Waits for the next deadline.
    pub fn poll(&mut self, cx: &mut Context<'_>, flowing: bool) -> Poll<Due> {
        if self.are_absent() {
            return Poll::Pending;
        }
        loop {
            let Some((at, due)) = self.next(flowing) else {
                return Poll::Pending;
            };
            let extended = self.extended.as_deref().copied();
            let extended = extended.filter(|deadline| deadline.at() == at);
            let mut deadline = extended.unwrap_or(Deadline::new(at));
            let at = deadline.until();
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at.into())));
            if sleep.deadline() > at.into() {
                sleep.as_mut().reset(at.into());
            }
            ready!(sleep.as_mut().poll(cx));
            let now = Instant::now();
            if now < at {
                // The timer was set for a deadline that has since moved.
                sleep.as_mut().reset(at.into());
                continue;
            }
            if matches!(due, Due::FirstEvent | Due::Gap) && deadline.extend(now) {
                sleep.as_mut().reset(deadline.until().into());
                self.extended = Some(Box::new(deadline));
                continue;
            }
            // An elapsed timer must not be polled again.
            self.sleep = None;
            match due {
                Due::Hold => self.held_until = None,
                Due::FirstEvent => self.first_event = None,
                Due::Gap => self.last_data = None,
                Due::Move => self.move_at = None,
                Due::Comment => self.forwarded = Some(now),
            }
            return Poll::Ready(due);
        }
    }
}
