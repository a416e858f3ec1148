//! Limits how often one watch sends requests, as client-go does.
//!
//! `kube::runtime::watcher` watches again at once when a watch ends without an error, and relists at once after a 410. With an API
//! server, or a load balancer before it, that ends each watch, every proxy would send thousands of requests per second.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use tokio::time::Instant;

/// Requests that may be sent without a delay.
const BURST: u32 = 10;
/// The time between further requests.
const INTERVAL: Duration = Duration::from_secs(2);

/// A client for one watch, whose requests are limited to a burst and a rate. The pages of a list count as one request.
pub fn throttled(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let rate = Mutex::new(Rate::default());
    let service = tower::service_fn(move |request: Request<Body>| {
        let at = match is_next_page(&request) {
            true => Instant::now(),
            false => {
                let mut rate = rate.lock().unwrap_or_else(PoisonError::into_inner);
                rate.reserve(Instant::now())
            }
        };
        let client = client.clone();
        async move {
            tokio::time::sleep_until(at).await;
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

fn is_next_page(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|field| field.starts_with("continue="))
}

/// When requests were sent, as a token bucket.
#[derive(Default)]
struct Rate {
    /// When all requests so far are paid for, at one per [`INTERVAL`].
    paid: Option<Instant>,
}

impl Rate {
    /// When the next request may be sent.
    fn reserve(&mut self, now: Instant) -> Instant {
        let paid = self.paid.map_or(now, |paid| paid.max(now)) + INTERVAL;
        self.paid = Some(paid);
        now.max(paid - INTERVAL * BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_requests_are_sent_at_the_rate() {
        let (start, mut rate) = (Instant::now(), Rate::default());
        let mut waits = |count: u32, after: Duration| -> Vec<u64> {
            let now = start + after;
            let wait = |_| (rate.reserve(now) - now).as_secs();
            (0..count).map(wait).collect()
        };
        assert_eq!(waits(BURST, Duration::ZERO), vec![0; 10]);
        assert_eq!(waits(3, Duration::ZERO), [2, 4, 6]);
        assert_eq!(waits(1, Duration::from_secs(7)), [1]);
        // After a long pause, only the burst is free.
        assert_eq!(waits(11, Duration::from_secs(1000))[9..], [0, 2]);
    }

    #[test]
    fn only_the_later_pages_of_a_list_are_free() {
        for (query, is_free) in [
            ("limit=500", false),
            ("limit=500&continue=abc", true),
            ("watch=true&labelSelector=continue=1", false),
        ] {
            let request = Request::get(format!("/api?{query}")).body(Body::empty());
            assert_eq!(is_next_page(&request.unwrap()), is_free, "{query}");
        }
    }
}
