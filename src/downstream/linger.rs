//! Closes connections whose client may still be sending, or has received part of a response.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;

use crate::transport::tcp;
use crate::transport::write_timeout::WriteTimeout;

/// How long to read on after the last response, so that the response is not lost to a reset (RFC 9112 §9.6).
const LINGER: Duration = Duration::from_secs(1);
/// The total limit for a client that reads its response slowly while it is still sending.
const LONGEST_LINGER: Duration = Duration::from_secs(30);
const LINGER_BYTES: usize = 1024 * 1024;

/// How long a client has to acknowledge the rest of a truncated response.
const BEFORE_RESET: Duration = Duration::from_secs(1);

/// How long an HTTP/2 client may acknowledge nothing. When it reads again, it acknowledges data by a frame, which a closed
/// connection would answer with a reset.
pub const HTTP2_PATIENCE: Duration = Duration::from_secs(5);
/// The same for HTTP/1.1, whose clients have nothing to send.
pub const HTTP1_PATIENCE: Duration = LINGER;

/// Closes the write side and reads on, so that a client that is still sending can read its response: for a short time, and for as
/// long as it keeps acknowledging data, with pauses of up to `patience`. After that, closing means a reset, and unacknowledged data
/// is lost.
pub async fn linger(transport: &mut WriteTimeout, patience: Duration) {
    if !matches!(
        tokio::time::timeout(LINGER, transport.shutdown()).await,
        Ok(Ok(()))
    ) {
        return;
    }
    let latest = Instant::now() + LONGEST_LINGER;
    let mut left = LINGER_BYTES;
    let mut untaken = tcp::unacknowledged(transport.socket()).unwrap_or(0);
    let mut progress = Instant::now();
    let mut until = progress + LINGER;
    while left > 0 || untaken > 0 {
        let read = std::future::poll_fn(|cx| transport.poll_read_shared(cx));
        let read = tokio::time::timeout_at(until.into(), read).await;
        let now = tcp::unacknowledged(transport.socket()).unwrap_or(0);
        match read {
            Ok(Ok(bytes)) if !bytes.is_empty() => left = left.saturating_sub(bytes.len()),
            Err(_) if (1..untaken).contains(&now) => {}
            Err(_) if now > 0 && progress.elapsed() < patience => {
                until = latest.min(Instant::now() + LINGER);
            }
            _ => return,
        }
        if now < untaken {
            progress = Instant::now();
            until = latest.min(progress + LINGER);
        }
        untaken = now;
    }
}

/// Resets the connection once the client has acknowledged what was sent: a reset discards the rest.
pub async fn reset(transport: WriteTimeout) {
    tcp::reset_on_close(transport.socket(), true);
    tcp::taken(transport.socket(), BEFORE_RESET).await;
}
