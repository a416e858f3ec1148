//! The meaning of an event, by the API of its stream.

use super::chunk::Chunk;
use super::{choices, messages};
use crate::sse::Api;

/// Reads the data of an event. `None` if it is no chunk.
pub fn read(api: Api, data: &[u8]) -> Option<Chunk<'_>> {
    let chunk = Chunk::of(api, data)?;
    match api {
        Api::Messages => messages::read(chunk),
        _ => choices::read(chunk, api),
    }
}
