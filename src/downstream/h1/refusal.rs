//! Responses to invalid or failed requests.

use http::StatusCode;

use crate::http1::HeadError;
use crate::telemetry::Reject;

/// Why a request is refused: the status and message of the response.
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

pub const BAD_CHUNK: Refusal = Refusal {
    status: StatusCode::BAD_REQUEST,
    message: "the request body's chunks are malformed",
    cause: Some(Reject::MalformedHead),
};

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

/// The response to a request that is still unanswered when the drain period ends.
pub const SHUTTING_DOWN: Refusal = Refusal {
    status: StatusCode::SERVICE_UNAVAILABLE,
    message: "the proxy is shutting down",
    cause: None,
};
