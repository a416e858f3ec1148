//! Relays bytes in both directions after `101 Switching Protocols`, until both sides have ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Response;
use prometheus::IntCounter;
use tokio::io::copy_bidirectional_with_sizes;
use tokio_util::io::{InspectReader, InspectWriter};

use super::body::SplitBody;
use super::exchange::{Exchange, SHUTTING_DOWN};
use crate::sse::End;
use crate::transport::write_timeout::{UNREAD, WriteTimeout};
use crate::transport::{Prefixed, deadline, tcp};
use crate::upstream::Upgraded;

/// How much is read at once in each direction, in bytes. Each tunnel holds both buffers, also while it is idle, and there may
/// be as many tunnels as connections.
const BUFFER: usize = 2 * 1024;
/// How often to check for traffic within the idle limit.
const CHECKS: u32 = 4;

/// How long to wait for the last bytes to be acknowledged before a tunnel is reset.
const BEFORE_RESET: Duration = Duration::from_secs(1);

/// How long a tunnel may be idle, and the counter of timeouts.
pub struct TunnelIdle {
    pub limit: Duration,
    pub passed: IntCounter,
}

/// The upstream connection of a tunnel, with its exchange. Passed in the extensions of the response.
#[derive(Clone)]
pub struct Tunnel(Arc<Mutex<Option<(Upgraded, Exchange)>>>);

/// The response that switches protocols.
pub fn respond(mut parts: http::response::Parts, exchange: Exchange) -> Response<SplitBody> {
    if let Some(upgraded) = parts.extensions.remove::<Upgraded>() {
        let tunnel = Tunnel(Arc::new(Mutex::new(Some((upgraded, exchange)))));
        parts.extensions.insert(tunnel);
    }
    Response::from_parts(parts, SplitBody::own(bytes::Bytes::new()))
}

impl Tunnel {
    /// Relays between the client's and the upstream connection until both have ended, the tunnel has been idle for too
    /// long, or `ending` resolves.
    pub async fn join(
        self,
        client: Prefixed<WriteTimeout>,
        idle: TunnelIdle,
        ending: impl Future<Output = ()>,
    ) {
        let taken = self.0.lock().ok().and_then(|mut slot| slot.take());
        let Some((upgraded, mut exchange)) = taken else {
            return;
        };
        let Some((mut upstream, _in_flight)) = upgraded.take() else {
            return;
        };
        // Unless both sides end cleanly, close with a reset, even if the process dies: otherwise a truncated stream
        // would look complete.
        tcp::reset_on_close(client.get_ref().socket(), true);
        tcp::reset_on_close(upstream.get_ref().socket(), true);
        let passed = AtomicU64::new(0);
        let count = |bytes: &[u8]| {
            passed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        };
        let mut client = InspectReader::new(InspectWriter::new(client, count), count);
        tokio::select! {
            copied = copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER) => {
                match copied {
                    Ok((_, down)) => {
                        tcp::reset_on_close(transport(&client).socket(), false);
                        tcp::reset_on_close(upstream.get_ref().socket(), false);
                        exchange.timeline.add_bytes(down);
                        exchange.ended(End::Eof);
                    }
                    Err(_) if transport(&client).is_timed_out() => {
                        exchange.because(UNREAD);
                        exchange.ended(End::Gone);
                    }
                    Err(error) => {
                        exchange.because(error.to_string());
                        exchange.ended(End::Cut);
                    }
                }
            }
            () = until_idle(&passed, idle.limit) => {
                idle.passed.inc();
                exchange.excuse();
                exchange.because("the tunnel was idle for too long");
                exchange.ended(End::Deadline);
            }
            () = ending => {
                exchange.excuse();
                exchange.because(SHUTTING_DOWN);
                exchange.ended(End::Deadline);
            }
        }
        let last = tcp::taken(transport(&client).socket(), BEFORE_RESET);
        tokio::join!(last, tcp::taken(upstream.get_ref().socket(), BEFORE_RESET));
    }
}

/// Waits until nothing has passed for `limit`. Checks a byte counter at intervals, so relayed data needs no clock
/// reads.
async fn until_idle(passed: &AtomicU64, limit: Duration) {
    let mut seen = passed.load(Ordering::Relaxed);
    let mut unchanged = 0;
    while unchanged < CHECKS {
        // Time in which this process was suspended does not count: after a late check, wait for data that arrived in the
        // meantime.
        let every = limit / CHECKS;
        deadline::timeout(every, std::future::pending::<()>()).await;
        let now = passed.load(Ordering::Relaxed);
        unchanged = if now == seen { unchanged + 1 } else { 0 };
        seen = now;
    }
}

/// A client connection that counts bytes in both directions.
type CountedClient<F> = InspectReader<InspectWriter<Prefixed<WriteTimeout>, F>, F>;

fn transport<F>(client: &CountedClient<F>) -> &WriteTimeout {
    client.get_ref().get_ref().get_ref()
}
