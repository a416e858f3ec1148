//! Accepting connections: options of a listening socket, and handling errors of `accept`.

use std::io;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::log_throttle::LogThrottle;
use crate::backoff::Backoff;

/// Pause after an error that persists while descriptors or memory are exhausted.
const EXHAUSTED: Duration = Duration::from_millis(50);
/// First and longest pause after an error that repeats immediately.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(1),
    longest: Duration::from_secs(1),
};

/// Makes connections accepted on `listener` probe silent peers (inherited, tcp(7)): a peer whose machine is gone sends
/// nothing. `unread` is how long sent bytes may stay unacknowledged, or a closed window be probed, before the kernel closes
/// the connection (`TCP_USER_TIMEOUT`).
///
/// # Errors
/// When socket options cannot be set.
pub fn keep_alive(listener: &SockRef<'_>, unread: Duration) -> io::Result<()> {
    super::keep_alive(listener)?;
    #[cfg(target_os = "linux")]
    listener.set_tcp_user_timeout(Some(unread))?;
    #[cfg(not(target_os = "linux"))]
    let _ = unread;
    Ok(())
}

/// The errors of one listener. They may repeat immediately and would use a whole core without a pause.
#[derive(Debug, Default)]
pub struct AcceptErrors {
    in_a_row: u32,
    log: LogThrottle,
}

impl AcceptErrors {
    /// A connection was accepted.
    pub const fn cleared(&mut self) {
        self.in_a_row = 0;
    }

    /// The pause after `error` before the next accept. A first error usually concerns a single connection whose peer has
    /// disconnected (accept(2)) and needs no pause. Logged at intervals.
    pub fn pause(&mut self, error: &io::Error, now: Instant) -> Duration {
        if let Some(times) = self.log.record(now) {
            tracing::warn!(%error, times, "cannot accept connections");
        }
        let before = self.in_a_row;
        self.in_a_row = before.saturating_add(1);
        if is_exhaustion(error) {
            return EXHAUSTED;
        }
        match before {
            0 => Duration::ZERO,
            more => BACKOFF.delay(more - 1),
        }
    }
}

/// Whether descriptors or memory are exhausted. That may end soon.
#[must_use]
pub fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(error: i32, times: usize) -> Vec<u128> {
        let mut errors = AcceptErrors::default();
        let error = io::Error::from_raw_os_error(error);
        (0..times)
            .map(|_| errors.pause(&error, Instant::now()).as_millis())
            .collect()
    }

    #[test]
    fn an_error_that_comes_again_is_waited_for_longer_and_longer() {
        assert_eq!(pauses(libc::EINVAL, 6), [0, 1, 2, 4, 8, 16]);
        assert_eq!(pauses(libc::EINVAL, 100)[99], 1000);
    }

    #[test]
    fn while_descriptors_are_short_the_pause_is_always_the_same() {
        assert_eq!(pauses(libc::EMFILE, 3), [50, 50, 50]);
    }

    #[test]
    fn an_accepted_connection_ends_the_series_of_errors() {
        let mut errors = AcceptErrors::default();
        let error = io::Error::from_raw_os_error(libc::ECONNABORTED);
        for _ in 0..3 {
            assert_eq!(errors.pause(&error, Instant::now()), Duration::ZERO);
            errors.cleared();
        }
    }
}
