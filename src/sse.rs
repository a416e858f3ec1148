//! Reads a stream of server-sent events as it passes: where events end, what they mean for each family of LLM API, and
//! how the stream went. Pure: bytes and instants come in as arguments, judgements come out.
//!
//! Must not know: sockets, clocks, the request, metrics. It never alters a byte; it only looks at slices.

mod api;
mod closing;
mod continuation;
mod decoder;
mod glance;
mod meaning;
mod timeline;
mod usage;

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod reference;

pub use api::Api;
pub use closing::{error_body, error_event};
pub use continuation::{Continuation, Opening};
pub use decoder::{Decoder, Event, Events};
pub use glance::{Glance, Glances};
pub use meaning::{Late, Meaning, is_terminal, late_meaning, meaning};
pub use timeline::{End, Outcome, Timeline};
pub use usage::{Usage, usage, usage_of_json_body};
