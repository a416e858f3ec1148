//! Polls a frontend for the models that it actually serves.
//!
//! `/v1/models` lists the models that it knows, and `/v1/models/{m}/ready` tells whether it can serve one. A frontend without
//! that endpoint is probed with a short request to the model.

mod pages;
mod probes;
mod reading;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use self::pages::{Page, ids, in_all, in_path};
use self::probes::ModelProbes;
use self::reading::Reading;
pub use self::reading::{FailedQuery, FrontendReport, QueryFailure};
use super::http::{FrontendAddress, FrontendClient, FrontendQuery, FrontendResponse, MAX_LIST};
use super::limits::{ModelIdReservation, TargetPermit};
use super::poller::PollSink;

/// Poll interval, and the interval once all updates that need the result are complete.
const INTERVAL: Duration = Duration::from_secs(1);
const SLOW_INTERVAL: Duration = Duration::from_secs(15);
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of models checked per frontend, in the order of their names.
const MAX_MODELS: usize = 512;
/// Maximum number of Dynamo namespaces kept per frontend, in the order of their names.
const MAX_NAMESPACES: usize = 32;

/// Polls `frontend` forever and reports what it serves.
pub(super) async fn follow(
    frontend: FrontendAddress,
    share: TargetPermit,
    mut sink: PollSink<FrontendReport>,
) {
    let share = Arc::new(share);
    let mut client = FrontendClient::new(frontend);
    let mut reading = Reading::default();
    let mut trials = ModelProbes::default();
    // Holds the reservation for the model IDs across polls.
    let mut kept = None;
    loop {
        let result = poll(&mut client, &share, &mut trials, &mut kept).await;
        if let Err(failed) = &result {
            tracing::debug!(error = failed.why, "a frontend does not respond");
        }
        if let Some((report, is_changed)) = reading.take(result) {
            sink.report(report, is_changed);
        }
        // After a failure, poll soon to find out whether it persists.
        let calm = if reading.missed > 0 {
            INTERVAL
        } else {
            SLOW_INTERVAL
        };
        tokio::select! {
            () = sink.pause(INTERVAL, calm) => {}
            () = trials.next() => {}
        }
    }
}

/// Sends one query to a frontend.
async fn query(
    client: &mut FrontendClient,
    share: &Arc<TargetPermit>,
    path: &str,
) -> Result<FrontendResponse, FailedQuery> {
    let _turn = share.query_permit().await;
    let query = FrontendQuery {
        path,
        body: None,
        most: MAX_LIST,
    };
    let answer = client.send(&query, TIMEOUT, share).await;
    let target = &client.frontend.target;
    answer.map_err(|error| FailedQuery {
        why: match std::error::Error::source(&error) {
            Some(cause) => format!("{target} {error}: {cause}"),
            None => format!("{target} {error}"),
        },
        how: match &error {
            error if error.was_not_sent() => QueryFailure::NotSent,
            error if error.is_answer() => QueryFailure::Bad,
            _ => QueryFailure::NoResponse,
        },
    })
}

/// The models that a frontend lists, and whether a proxy responded for it.
async fn list(
    client: &mut FrontendClient,
    share: &Arc<TargetPermit>,
) -> Result<(Vec<String>, bool), FailedQuery> {
    let response = query(client, share, "/v1/models").await?;
    if response.status != StatusCode::OK {
        let (target, code) = (&client.frontend.target, response.status.as_u16());
        return Err(FailedQuery {
            why: format!("{target} responds to /v1/models with status {code}"),
            how: QueryFailure::Bad,
        });
    }
    Ok((ids(&response.body), response.is_proxied))
}

/// Adds the namespaces in which the model of `page` has workers, up to a maximum.
fn add_namespaces(report: &mut FrontendReport, page: Page) {
    report.namespaces.extend(page.with_workers());
    while report.namespaces.len() > MAX_NAMESPACES {
        report.namespaces.pop_last();
        report.has_more_namespaces = true;
    }
}

/// Polls a frontend once for the models that it serves.
async fn poll(
    client: &mut FrontendClient,
    share: &Arc<TargetPermit>,
    trials: &mut ModelProbes,
    kept: &mut Option<ModelIdReservation>,
) -> Result<FrontendReport, FailedQuery> {
    let frontend = client.frontend.clone();
    let (mut listed, is_proxied) = list(client, share).await?;
    let count = listed.len();
    // Release the previous reservation first, so that its room is available.
    *kept = None;
    let room = kept.insert(share.keep(count.min(MAX_MODELS))).count();
    listed.truncate(room);
    listed.shrink_to_fit();
    trials.keep(&listed);
    let mut report = FrontendReport {
        left_out: count - listed.len(),
        is_proxied,
        ..FrontendReport::default()
    };
    let mut without_page = Vec::new();
    let mut pages = Vec::new();
    for model in listed {
        let path = format!("/v1/models/{}/ready", in_path(&model));
        let answer = query(client, share, &path).await?;
        let status = answer.status;
        let page = Page::read(status, &answer.body);
        pages.push(page.registered());
        add_namespaces(&mut report, page);
        match status {
            StatusCode::OK => _ = report.models.insert(model),
            // A frontend of an older version, without this page.
            StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED => without_page.push(model),
            _ => {}
        }
    }
    if report.left_out == 0 {
        report.registered = in_all(&pages);
    }
    trials.begin(&frontend, share, &without_page);
    for model in without_page {
        match trials.known(&model) {
            Some(true) => _ = report.models.insert(model),
            Some(false) => {}
            None => report.is_trying = true,
        }
    }
    Ok(report)
}
