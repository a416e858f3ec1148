//! Polls a proxy for its counts of both generations. Contains no policy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::limits::ProxyPermit;
use super::poller::PollSink;
use crate::error_chain::error_chain;
use crate::state_api::v1::Comparison;
use crate::state_api::{Client, Error};

/// Timeout per step: connecting, and each response.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The polling interval, and the interval while neither generation gets requests.
const PACES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];
/// Pause before reconnecting to a proxy that does not answer.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the first response is kept: it contains the past minutes, for a comparison that has to begin in the past.
const KEPT: Duration = Duration::from_secs(10);

/// The last response of a proxy.
#[derive(Clone, Debug)]
pub(super) struct ReportedCounts {
    /// Its counts, or why they are unknown.
    pub counts: Result<Arc<Comparison>, Arc<str>>,
    /// When it responded.
    pub at: Instant,
    /// Its counts some minutes ago, and when it reported them.
    pub past: Option<(Instant, Arc<Comparison>)>,
}

/// Follows the proxy with the admin port at `address`, and reconnects forever.
pub(super) async fn follow(
    address: String,
    mut sink: PollSink<ReportedCounts>,
    _share: ProxyPermit,
) {
    loop {
        let why = match query(&address, &mut sink).await {
            Ok(never) => match never {},
            Err(error) => error_chain(&error),
        };
        tracing::debug!(address, error = why, "a proxy cannot be compared");
        let unavailable = ReportedCounts {
            counts: Err(why.into()),
            at: Instant::now(),
            past: None,
        };
        sink.report(unavailable, false);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn query(
    address: &str,
    sink: &mut PollSink<ReportedCounts>,
) -> Result<std::convert::Infallible, Error> {
    let client = Client::connect(address, TIMEOUT).await?;
    let mut past = None;
    let mut failed = None;
    let mut answer = client.compare(true).await?;
    loop {
        let counts = match answer.take() {
            Some(counts) => Ok(Arc::new(counts)),
            None => Err("is too old to be compared".into()),
        };
        let now = Instant::now();
        if let Ok(counts) = &counts {
            past.get_or_insert_with(|| (now, Arc::clone(counts)));
        }
        let fails = counts.as_ref().ok().map(|counts| failures(counts));
        // Failing requests may require immediate action.
        let matters = failed.is_some_and(|failed| fails > Some(failed));
        failed = fails;
        let compared = ReportedCounts {
            counts,
            at: now,
            past: past
                .clone()
                .filter(|(at, _)| now.duration_since(*at) < KEPT),
        };
        sink.report(compared, matters);
        sink.pause(PACES[0], PACES[1]).await;
        answer = client.compare(false).await?;
    }
}

/// Requests that new has failed.
fn failures(counted: &Comparison) -> u64 {
    let strata = counted.counts.last().map(|counts| &counts.strata);
    let new = strata
        .into_iter()
        .flatten()
        .filter_map(|one| one.new.as_ref());
    new.fold(0, |sum, new| sum.saturating_add(new.failed))
}
