//! Errors for which the proxy itself responds, and their status, log text, metric and response.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, DATE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::sse::{self, Api};
use crate::telemetry::Reject;

/// Why the proxy itself responds.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("too many open requests")]
    TooManyRequests,
    /// The memory budget has no room for the request's head or body.
    #[error("the memory budget is exhausted")]
    NoMemory,
    /// The model server has announced this limit (HTTP/2).
    #[error("the request head exceeds the model server's limit of {0} bytes")]
    HeadTooLarge(u32),
    /// The request can only be sent over HTTP/2.
    #[error("an upgrade needs HTTP/1.1, and the model server is reached over HTTP/2 only")]
    NoUpgrade,
    #[error("the request body exceeds the limit of {0} bytes")]
    BodyTooLarge(u64),
    #[error("the request body did not arrive in time")]
    BodyTimeout,
    #[error("updates forward the request to each other in a loop")]
    Loop,
    #[error("the request body could not be read")]
    RequestBody,
    /// The process cuts what is still open.
    #[error("the proxy is shutting down")]
    ShuttingDown,
    /// There is no client to send the response to.
    #[error("the client disconnected before the request body had arrived")]
    ClientGone,
    /// No target could serve the request. The client learns which generations failed and why, but not their addresses.
    #[error("{}", .failures.for_client)]
    Upstream {
        failures: Failures,
        status: StatusCode,
    },
}

/// Why each target that was tried failed.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    for_client: String,
    /// Includes addresses.
    for_log: String,
}

impl Failures {
    /// Adds the failure of `target`: `for_client` must not contain addresses, `for_log` may.
    pub fn add(&mut self, target: &str, for_client: &str, for_log: &str) {
        for (text, what) in [
            (&mut self.for_client, for_client),
            (&mut self.for_log, for_log),
        ] {
            if !text.is_empty() {
                text.push_str("; ");
            }
            text.push_str(target);
            text.push_str(": ");
            text.push_str(what);
        }
    }

    /// The text for the log, with the failure of `target` if it is not yet included.
    #[must_use]
    pub fn with(mut self, target: &str, what: &str) -> String {
        if !self.for_log.contains(&format!("{target}: {what}")) {
            self.add(target, what, what);
        }
        self.for_log
    }
}

impl Error {
    /// The status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::TooManyRequests | Self::NoMemory | Self::ShuttingDown => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::HeadTooLarge(_) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::NoUpgrade => StatusCode::NOT_IMPLEMENTED,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::RequestBody | Self::ClientGone => StatusCode::BAD_REQUEST,
            Self::Upstream { status, .. } => *status,
        }
    }

    /// The text for the log, with addresses. `Display` omits them.
    #[must_use]
    pub fn for_log(&self) -> String {
        match self {
            Self::Upstream { failures, .. } => failures.for_log.clone(),
            error => error.to_string(),
        }
    }

    /// The counter of rejected requests to increment. `None` for errors that only the exchange counts.
    #[must_use]
    pub fn reject(&self) -> Option<Reject> {
        match self {
            Self::TooManyRequests => Some(Reject::TooManyRequests),
            Self::NoMemory => Some(Reject::NoMemory),
            Self::HeadTooLarge(_) => Some(Reject::HeadTooLarge),
            Self::BodyTooLarge(_) => Some(Reject::BodyTooLarge),
            Self::BodyTimeout => Some(Reject::BodyTimeout),
            Self::Loop => Some(Reject::Loop),
            Self::NoUpgrade
            | Self::RequestBody
            | Self::ShuttingDown
            | Self::ClientGone
            | Self::Upstream { .. } => None,
        }
    }

    /// The response, in the format of the API family.
    #[must_use]
    pub fn answer(&self, api: Api) -> Response<Bytes> {
        let mut response = answer(api, self.status(), &self.to_string());
        if matches!(self, Self::TooManyRequests | Self::NoMemory) {
            let headers = response.headers_mut();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// An error response of the proxy: JSON in the OpenAI format, or in the API family's own.
#[must_use]
pub fn answer(api: Api, status: StatusCode, message: &str) -> Response<Bytes> {
    let body = sse::error_body(api, message, kind(status), status.as_u16());
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // RFC 9110 §6.6.1.
    let now = httpdate::fmt_http_date(SystemTime::now());
    headers.insert(DATE, HeaderValue::try_from(now).expect("visible ASCII"));
    response
}

/// The `type` of an OpenAI error object.
#[must_use]
pub fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        502 => "bad_gateway",
        503 => "service_unavailable",
        504 => "gateway_timeout",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_error_response_has_a_date() {
        let response = answer(Api::Chat, StatusCode::BAD_GATEWAY, "no server");
        let date = response.headers()[DATE].to_str().expect("visible ASCII");
        let date = httpdate::parse_http_date(date).expect("a date");
        let age = SystemTime::now()
            .duration_since(date)
            .expect("rounded down");
        assert!(age < Duration::from_secs(60), "{age:?}");
    }
}
