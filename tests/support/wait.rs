//! Waiting for conditions, with one deadline for all.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// How long a condition may take to come true, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(3);

/// Waits until `look` finds something.
///
/// # Panics
/// If it does not in time.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(POLL).await;
    }
}

/// Waits until `is_so`.
///
/// # Panics
/// If it never is.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    until(what, async || is_so().await.then_some(())).await;
}

/// What `future` comes to.
///
/// # Panics
/// If that takes too long.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("takes too long: {what}"),
    }
}
