//! Reading a body into one piece, up to a limit.

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;

use super::Buffer;

/// What reading came to.
pub enum Gathered<E> {
    /// All of it, and its trailers.
    Whole(Bytes, Option<HeaderMap>),
    /// It is longer than was asked for, or the budget has no room for more: what was gathered, and what was read behind it.
    Part(Bytes, Bytes),
    /// It broke behind this.
    Broken(Bytes, E),
}

/// Reads `body` into `buffer` while that holds at most `most` bytes. What is left can be read from `body` afterwards.
pub async fn gather<B>(body: &mut B, mut buffer: Buffer, most: usize) -> Gathered<B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut trailers = None;
    loop {
        let frame = match body.frame().await {
            None => return Gathered::Whole(buffer.freeze(), trailers),
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Gathered::Broken(buffer.freeze(), error),
        };
        match frame.into_data() {
            Ok(data) if buffer.len() + data.len() > most || !buffer.push(&data) => {
                return Gathered::Part(buffer.freeze(), data);
            }
            Ok(_) => {}
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
}
