//! Responses to invalid or failed requests.

use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::http1::HeadError;
use crate::proxy::error_answer;
use crate::sse::Api;
use crate::telemetry::Reject;

/// Why a request is rejected: the status and message of the response.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: &'static str,
    /// Where it is counted.
    pub cause: Option<Reject>,
}

impl From<HeadError> for Refusal {
    fn from(error: HeadError) -> Self {
        Self {
            status: error.status(),
            message: error.message(),
            cause: Some(match error {
                HeadError::TooMany => Reject::HeadTooLarge,
                _ => Reject::MalformedHead,
            }),
        }
    }
}

impl Refusal {
    /// A request that is not well-formed.
    pub const fn malformed(message: &'static str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message,
            cause: Some(Reject::MalformedHead),
        }
    }

    /// The response.
    pub fn answer(&self) -> Response<Bytes> {
        let mut answer = error_answer(Api::Other, self.status, self.message);
        if self.cause == Some(Reject::NoMemory) {
            let headers = answer.headers_mut();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

pub const BAD_CHUNK: Refusal = Refusal::malformed("the request body's chunks are malformed");

pub const SLOW_BODY: Refusal = Refusal {
    status: StatusCode::REQUEST_TIMEOUT,
    message: "the request body did not arrive in time",
    cause: Some(Reject::BodyTimeout),
};

pub const NO_MEMORY: Refusal = Refusal {
    status: StatusCode::SERVICE_UNAVAILABLE,
    message: "the memory budget is exhausted",
    cause: Some(Reject::NoMemory),
};

/// The response to a request whose body is still incomplete when the drain period ends.
pub const SHUTTING_DOWN: Refusal = Refusal {
    status: StatusCode::SERVICE_UNAVAILABLE,
    message: "the proxy is shutting down",
    cause: Some(Reject::ShuttingDown),
};
