//! Reads a body into one buffer, up to a limit.

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;

use super::Buffer;

/// The result of [`gather`].
pub enum Gathered<E> {
    /// The complete body, and its trailers.
    Whole(Bytes, Option<HeaderMap>),
    /// The body is longer than the limit, or the budget is exhausted: the bytes so far, and the bytes that did not fit.
    Part(Bytes, Bytes),
    /// The body was truncated after these bytes.
    Broken(Bytes, E),
}

/// Reads `body` into `buffer`, up to `most` bytes. The rest can still be read from `body` afterwards.
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
