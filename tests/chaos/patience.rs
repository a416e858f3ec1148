//! How long the test waits before it calls something a fault. `CHAOS_PATIENCE=4` waits four times as long, for a machine that
//! has much else to do.

use std::sync::OnceLock;
use std::time::Duration;

/// `seconds`, or a multiple of them.
pub fn patience(seconds: u64) -> Duration {
    extended(Duration::from_secs(seconds))
}

/// `time`, or a multiple of it.
pub fn extended(time: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    let factor = FACTOR.get_or_init(|| {
        let given = std::env::var("CHAOS_PATIENCE").ok();
        given.map_or(1, |text| text.parse().expect("CHAOS_PATIENCE is a number"))
    });
    time * *factor
}
