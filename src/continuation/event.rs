//! The meaning of an event, by the API of its stream.

use super::chunk::Chunk;
use super::{choices, json, messages};
use crate::sse::Api;

/// Whether the data of the event carries no information. Some servers send such events to keep a connection alive.
pub fn is_blank(data: &[u8]) -> bool {
    let data = data.trim_ascii();
    data.is_empty() || json::is_blank(data)
}

/// Reads the data of an event. `None` if it is not a chunk.
pub fn read(api: Api, data: &[u8]) -> Option<Chunk<'_>> {
    let chunk = Chunk::of(api, data)?;
    match api {
        Api::Messages => messages::read(chunk),
        _ => choices::read(chunk, api),
    }
}
