//! An error of HTTP/2 as it may be logged.

/// An error of HTTP/2 without the debug data of a GOAWAY frame (RFC 9113 §6.8), which is the peer's text: it may quote requests of
/// other clients.
#[derive(Debug, thiserror::Error)]
#[error("{}", describe(.0))]
pub struct Http2Error(h2::Error);

impl From<h2::Error> for Http2Error {
    fn from(error: h2::Error) -> Self {
        Self(error)
    }
}

fn describe(error: &h2::Error) -> String {
    let Some(reason) = error.reason().filter(|_| error.is_go_away()) else {
        return error.to_string();
    };
    let by = match error.is_remote() {
        true => "received",
        false => "detected",
    };
    format!("connection error {by}: {reason}")
}
