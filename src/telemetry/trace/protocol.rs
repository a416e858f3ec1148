//! The protocols of OTLP that are supported.

use std::fmt;

/// How spans are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Grpc,
    HttpProtobuf,
}

impl fmt::Display for Protocol {
    /// The value of `OTEL_EXPORTER_OTLP_PROTOCOL`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grpc => "grpc",
            Self::HttpProtobuf => "http/protobuf",
        })
    }
}
