//! The cost of small DATA frames.
//!
//! h2 closes a connection when too many small DATA frames are unread. Frames that arrive for a stream that this side has already
//! reset count forever, although the peer could not know about the reset. A connection on which many streams are cancelled would
//! therefore be closed at some point, with all its open streams. To prevent that, a connection that has used a part of this budget
//! is retired: it gets no more streams, and closes after its last one.

/// h2 charges a DATA frame as if it had at least this many bytes.
pub const MIN_FRAME_COST: usize = 256;
/// The unread DATA frames of a connection may be this many bytes short of [`MIN_FRAME_COST`] each, in total, before h2 closes the
/// connection (its `data_frame_budget`). One turn of single-byte frames is a fifth of it.
pub const SMALL_FRAMES: usize = 8 * 1024 * 1024;
/// A connection with more overhead than this is retired. The rest of the budget is for its open streams.
pub const RETIRE_AT: u64 = SMALL_FRAMES as u64 / 4;
/// h2 also closes a connection at the 101st empty DATA frame that does not end its stream. These never stop counting.
const MAX_EMPTY_FRAMES: u64 = 50;

/// The overhead of a frame with this many bytes of data until the data is read, in bytes.
pub const fn overhead(data: usize) -> u64 {
    match data {
        0 => RETIRE_AT / MAX_EMPTY_FRAMES,
        1..MIN_FRAME_COST => (MIN_FRAME_COST - data) as u64,
        _ => 0,
    }
}
