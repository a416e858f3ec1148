//! Refusals and failures of the proxy itself, and the answers they become: all causes on one screen.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::sse::{self, Api};
use crate::telemetry::Reject;

/// Why the proxy answers by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("too many requests are open here")]
    TooManyRequests,
    #[error("the request body exceeds the limit of {0} bytes")]
    BodyTooLarge(u64),
    #[error("the request goes in circles between updates")]
    Loop,
    #[error("the request body could not be read")]
    RequestBody,
    /// No place could serve it; what each of them said.
    #[error("{story}")]
    Upstream { story: String, status: StatusCode },
}

impl Error {
    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::TooManyRequests => StatusCode::SERVICE_UNAVAILABLE,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::RequestBody => StatusCode::BAD_REQUEST,
            Self::Upstream { status, .. } => *status,
        }
    }

    /// Where it is counted; `None` for what became an exchange with an upstream.
    #[must_use]
    pub fn reject(&self) -> Option<Reject> {
        match self {
            Self::TooManyRequests => Some(Reject::TooManyRequests),
            Self::BodyTooLarge(_) => Some(Reject::BodyTooLarge),
            Self::Loop => Some(Reject::Loop),
            Self::RequestBody | Self::Upstream { .. } => None,
        }
    }

    /// The answer, in the form of the API family.
    #[must_use]
    pub fn answer(&self, api: Api) -> Response<Bytes> {
        let mut response = answer(api, self.status(), &self.to_string());
        if matches!(self, Self::TooManyRequests) {
            let headers = response.headers_mut();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// An error answer of this proxy: OpenAI-shaped JSON, or the family's own form.
#[must_use]
pub fn answer(api: Api, status: StatusCode, message: &str) -> Response<Bytes> {
    let body = sse::error_body(api, message, kind(status), status.as_u16());
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
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
