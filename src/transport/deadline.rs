//! Deadlines for peers that exclude time in which this process was suspended.
//!
//! A process that was stopped, or frozen with its machine, continues with expired timers and unread sockets: `SIGCONT` interrupts
//! its wait for them (signal(7)), and one wait reports at most a thousand. Data that then seems overdue may have arrived long
//! ago.

use std::pin::pin;
use std::time::{Duration, Instant};

/// A timer later than this means that the process was suspended or is extremely busy.
const LATE: Duration = Duration::from_millis(50);
/// After this time, all sockets have been polled.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The maximum number of times that a deadline is extended: a process that is always late must time out, too.
const TIMES: u8 = 4;

/// A deadline and how long to wait for it.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    until: Instant,
    left: u8,
}

impl Deadline {
    #[must_use]
    pub const fn new(at: Instant) -> Self {
        let (until, left) = (at, TIMES);
        Self { at, until, left }
    }

    /// The original deadline.
    #[must_use]
    pub const fn at(self) -> Instant {
        self.at
    }

    /// When it expires.
    #[must_use]
    pub const fn until(self) -> Instant {
        self.until
    }

    /// Extends a deadline that is noticed late, because the awaited event could not be noticed either. False if it is not
    /// extended because it has expired.
    pub fn extend(&mut self, now: Instant) -> bool {
        let is_late = now.saturating_duration_since(self.until) > LATE;
        if !is_late || self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.until = now + CHECK_INTERVAL;
        true
    }
}

/// The output of `future` by the deadline.
pub async fn timeout_at<T>(at: Instant, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut deadline) = (pin!(future), Deadline::new(at));
    loop {
        if let Ok(output) = tokio::time::timeout_at(deadline.until.into(), &mut future).await {
            return Some(output);
        }
        if !deadline.extend(Instant::now()) {
            return None;
        }
    }
}

/// Time that does not count for a deadline, because the peer is not the one that is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excluded {
    /// The time so far.
    pub total: Duration,
    /// Whether it still increases.
    pub continues: bool,
}

impl Excluded {
    /// When a deadline that would be at `at` without this time expires. It does not expire while this time increases.
    #[must_use]
    pub fn extend(self, at: Instant, now: Instant) -> Instant {
        let extended = at + self.total;
        match self.continues {
            true => extended.max(now + CHECK_INTERVAL),
            false => extended,
        }
    }
}

/// Like [`timeout_at`], but the time that `excluded` returns does not count.
pub async fn timeout_excluding<T>(
    at: Instant,
    excluded: impl Fn() -> Excluded,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    let mut until = excluded().extend(at, Instant::now());
    loop {
        if let Some(output) = timeout_at(until, &mut future).await {
            return Some(output);
        }
        let now = Instant::now();
        until = excluded().extend(at, now);
        if until <= now {
            return None;
        }
    }
}

/// The output of `future` within `limit`.
pub async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    timeout_at(Instant::now() + limit, future).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);

    /// Blocks the thread until the deadline is long past.
    fn stand_still() {
        std::thread::sleep(5 * LIMIT);
    }

    #[test]
    fn only_what_is_late_is_extended() {
        let at = Instant::now();
        let mut deadline = Deadline::new(at);
        assert!(!deadline.extend(at - LIMIT));
        assert!(!deadline.extend(at + LATE));
        assert_eq!(deadline.until(), at);
        let now = at + LATE + Duration::from_millis(1);
        assert!(deadline.extend(now));
        assert_eq!(
            (deadline.at(), deadline.until()),
            (at, now + CHECK_INTERVAL)
        );
    }

    #[test]
    fn a_deadline_is_extended_only_a_limited_number_of_times() {
        let mut deadline = Deadline::new(Instant::now());
        let moved = std::iter::repeat_with(|| deadline.extend(deadline.until() + 2 * LATE));
        assert_eq!(moved.take_while(|moved| *moved).count(), 4);
    }

    #[tokio::test]
    async fn a_result_after_a_suspension_is_in_time() {
        let seen_late = async {
            stand_still();
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            "came"
        };
        let came = timeout_at(Instant::now() + LIMIT, seen_late).await;
        assert_eq!(came, Some("came"));
    }

    #[tokio::test]
    async fn excluded_time_does_not_count() {
        let begin = Instant::now();
        // The peer is waited for only before and after this.
        let (from, to) = (begin + LIMIT / 2, begin + 10 * LIMIT);
        let excluded = || {
            let now = Instant::now();
            Excluded {
                total: now.min(to).saturating_duration_since(from),
                continues: from <= now && now < to,
            }
        };
        let at = begin + LIMIT;
        let comes = async |after: Duration| {
            tokio::time::sleep_until((begin + after).into()).await;
            "came"
        };
        let came = timeout_excluding(at, excluded, comes(8 * LIMIT)).await;
        assert_eq!(came, Some("came"));
        let never = std::future::pending::<()>();
        assert_eq!(timeout_excluding(at, excluded, never).await, None);
        assert!(begin.elapsed() >= 10 * LIMIT + LIMIT / 2);
    }

    #[tokio::test]
    async fn waiting_ends_at_the_deadline() {
        let deadline = Instant::now() + LIMIT;
        assert_eq!(
            timeout_at(deadline, std::future::pending::<()>()).await,
            None
        );
        stand_still();
        assert_eq!(
            timeout_at(deadline, std::future::pending::<()>()).await,
            None
        );
    }
}
