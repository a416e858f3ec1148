//! Waits for conditions, with a common deadline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// How long a condition may take to become true on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The longest interval between two polls. Polling faster takes the processor away from the component that is waited for.
pub const POLL: Duration = Duration::from_millis(100);
const FIRST_POLL: Duration = Duration::from_millis(3);
/// The interval between polls of a value that must stay the same for nine polls.
const STILL: Duration = Duration::from_millis(20);

/// Waits until `look` returns something.
///
/// # Panics
/// If it does not in time.
pub async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        let passed = start.elapsed();
        assert!(passed < PATIENCE, "never: {what}");
        sleep((passed / 4).clamp(FIRST_POLL, POLL)).await;
    }
}

/// Waits until `condition` returns true.
///
/// # Panics
/// If it does not in time.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    until(what, async || condition().await.then_some(())).await;
}

/// Waits until no more data is accepted. Returns how much was, in bytes.
pub async fn stands_still(sent: &AtomicU64) -> u64 {
    stands_still_by(async || sent.load(Ordering::Relaxed)).await
}

/// Waits until `figure` is above 0 and stops changing. Returns its value.
pub async fn stands_still_by(mut figure: impl AsyncFnMut() -> u64) -> u64 {
    let mut last = 0;
    let mut still = 0;
    eventually("it stops", async || {
        sleep(STILL).await;
        let now = figure().await;
        still = if now == last && now > 0 { still + 1 } else { 0 };
        last = now;
        still > 8
    })
    .await;
    last
}

/// The output of `future`.
///
/// # Panics
/// If it takes too long.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("takes too long: {what}"),
    }
}
