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
        let message = match error {
            HeadError::Malformed => "the request head is malformed",
            HeadError::LineEnd => "the request head has a line that does not end in CRLF",
            HeadError::Target => "the request target is malformed",
            HeadError::Host => "the request needs exactly one valid Host",
            HeadError::Length => {
                "the request has more than one Content-Length, or one that is not a number"
            }
            HeadError::LengthAndEncoding => {
                "the request has both Content-Length and Transfer-Encoding"
            }
            HeadError::Encoding => {
                "the request has a Transfer-Encoding other than one `chunked` over HTTP/1.1"
            }
            HeadError::Expect => "the request has an Expect other than `100-continue`",
            HeadError::TooMany => "the request has too many header lines",
            HeadError::Version => "this HTTP version is not supported",
            HeadError::Connect => "CONNECT is not supported",
        };
        Self {
            status: error.status(),
            message,
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
    message: "too much memory is in use here",
    cause: Some(Reject::NoMemory),
};
