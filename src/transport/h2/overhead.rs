//! What small frames with data cost a connection.
//!
//! h2 closes a connection whose peer has sent too many small frames that nobody has read yet. It also charges those that arrive for
//! a stream that this side has reset, and never forgets them, although the peer could not know. So a connection on which many
//! streams were cancelled would be closed in the end, with all others. A connection that has used up a part of its budget in this
//! way is worn: it gets no more streams, and closes after its last one.

/// h2 charges a frame with data as if it had at least this many bytes.
pub const LEAST: usize = 256;
/// The unread DATA frames of a connection may be this many bytes short of [`LEAST`] each, in total, before h2 closes the
/// connection (its `data_frame_budget`). One turn of single-byte frames is a fifth of it.
pub const SMALL_FRAMES: usize = 8 * 1024 * 1024;
/// From here on a connection is worn. The rest of the budget is for the streams that it still has.
pub const WORN: u64 = SMALL_FRAMES as u64 / 4;
/// h2 also closes a connection at the 101st frame without data that does not end its stream, ever.
const WORN_BY_EMPTY: u64 = 50;

/// What a frame with this many bytes of data costs until the data is read, in bytes.
pub const fn overhead(data: usize) -> u64 {
    match data {
        0 => WORN / WORN_BY_EMPTY,
        1..LEAST => (LEAST - data) as u64,
        _ => 0,
    }
}
