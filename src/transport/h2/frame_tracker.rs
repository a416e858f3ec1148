//! Tracks the frames that a connection receives: the unfinished bytes, floods of control frames, and announced settings.

use std::time::{Duration, Instant};

use super::overhead::overhead;

/// Length of a frame header, in bytes (RFC 9113 §4.1), and the connection preface of a client (§3.4).
pub const HEAD: usize = 9;
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Frame types (RFC 9113 §6). The last three carry a header block: HEADERS, PUSH_PROMISE and CONTINUATION.
pub const DATA: u8 = 0;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const HEADER_BLOCK_TYPES: [u8; 3] = [1, 5, 9];
/// Frame flags.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
/// Length of a setting, in bytes, and the identifier of `SETTINGS_MAX_HEADER_LIST_SIZE` (RFC 9113 §6.5).
const SETTING: usize = 6;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// Tracks the received frames.
#[derive(Debug, Default)]
pub struct FrameTracker {
    head: [u8; HEAD],
    /// Bytes of the current frame's header and payload that have arrived.
    head_received: usize,
    payload_received: usize,
    /// Bytes of padding in the current frame, including the Pad Length field.
    padding: usize,
    /// The current setting. `payload_received` tells how much of it has arrived.
    setting: [u8; SETTING],
    /// Bytes of the complete frames of an unfinished header block, and the number of its first frame.
    block: usize,
    block_begun: u64,
    /// The first frame, or the preface, has arrived.
    begun: bool,
    /// Frames so far.
    frames: u64,
    /// Bytes of header blocks so far.
    header_block_bytes: u64,
    control: Control,
    overhead: u64,
    max_header_list: Option<u32>,
    /// What the current WINDOW_UPDATE says, as far as received.
    increment: u32,
    /// What those of the connection have added to its window, in bytes.
    opened: u64,
}

/// Counts of frames that carry neither fields nor data and do not end a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// WINDOW_UPDATE frames, which acknowledge data and need no reply.
    updates: u64,
    /// All other frames.
    others: u64,
}

impl FrameTracker {
    /// Bytes of the current frame that have arrived.
    pub const fn unfinished_frame(&self) -> usize {
        self.head_received + self.payload_received
    }

    /// Bytes of an unfinished header block that have arrived, without the current frame.
    pub const fn unfinished_block(&self) -> usize {
        self.block
    }

    /// The number of the frame with which an unfinished header block began, counted from 1.
    pub fn unfinished_head(&self) -> Option<u64> {
        let carries_fields = HEADER_BLOCK_TYPES.contains(&self.head[3]);
        match (
            self.block,
            self.begun && self.head_received > 0 && carries_fields,
        ) {
            (0, false) => None,
            (0, true) => Some(self.frames + 1),
            _ => Some(self.block_begun),
        }
    }

    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Bytes of header blocks so far.
    pub const fn header_block_bytes(&self) -> u64 {
        self.header_block_bytes
    }

    pub const fn control(&self) -> Control {
        self.control
    }

    /// The total [`overhead`] of all DATA frames.
    pub const fn overhead(&self) -> u64 {
        self.overhead
    }

    /// The longest list of fields that the peer accepts, in bytes as RFC 9113 §6.5.2 counts them, if it has announced that.
    pub const fn max_header_list(&self) -> Option<u32> {
        self.max_header_list
    }

    /// What the peer has added to the window of the connection, in bytes.
    pub const fn opened(&self) -> u64 {
        self.opened
    }

    /// Length of the current frame's payload, in bytes.
    fn length(&self) -> usize {
        if !self.begun && self.head == PREFACE[..HEAD] {
            return PREFACE.len() - HEAD;
        }
        u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]]) as usize
    }

    /// Tracks these bytes, and removes frames that have no effect ([`FrameTracker::is_empty_data`]). Returns how many bytes are left at
    /// the front of `bytes`, and how many at its end are an incomplete frame header: these are not tracked, and the caller must
    /// pass them again with the rest of the header.
    pub fn track(&mut self, bytes: &mut [u8]) -> (usize, usize) {
        let (mut at, mut left) = (0, 0);
        while at < bytes.len() {
            let start = at;
            if self.head_received == 0 {
                let Some(head) = bytes[at..].first_chunk() else {
                    return (left, bytes.len() - at);
                };
                self.head = *head;
                self.head_received = HEAD;
                at += HEAD;
            }
            let here = (bytes.len() - at).min(self.length() - self.payload_received);
            self.payload(&bytes[at..at + here]);
            at += here;
            let is_empty_data = self.is_empty_data();
            if self.payload_received == self.length() {
                self.end_of_frame();
            }
            if !is_empty_data {
                // Bytes move only after a frame was removed, which is rare.
                if left != start {
                    bytes.copy_within(start..at, left);
                }
                left += at - start;
            }
        }
        (left, 0)
    }

    /// Whether the current frame is an empty DATA frame that does not end its stream: it has no effect.
    fn is_empty_data(&self) -> bool {
        let [.., kind, flags, _, _, _, _] = self.head;
        self.begun
            && self.block == 0
            && self.length() == 0
            && kind == DATA
            && flags & (END_STREAM | PADDED) == 0
    }

    /// Tracks a part of the payload of the current frame.
    fn payload(&mut self, part: &[u8]) {
        let (kind, flags) = (self.head[3], self.head[4]);
        if kind == DATA && flags & PADDED != 0 && self.payload_received == 0 {
            self.padding = part.first().map_or(0, |padding| 1 + usize::from(*padding));
        }
        if kind == SETTINGS && flags & ACK == 0 {
            for (index, byte) in (self.payload_received..).zip(part) {
                self.setting[index % SETTING] = *byte;
                if index % SETTING == SETTING - 1 {
                    self.set();
                }
            }
        }
        if kind == WINDOW_UPDATE {
            for byte in part {
                self.increment = self.increment << 8 | u32::from(*byte);
            }
        }
        if self.begun && HEADER_BLOCK_TYPES.contains(&kind) {
            self.header_block_bytes += part.len() as u64;
        }
        self.payload_received += part.len();
    }

    fn set(&mut self) {
        let [id @ .., a, b, c, d] = self.setting;
        if u16::from_be_bytes(id) == MAX_HEADER_LIST_SIZE {
            self.max_header_list = Some(u32::from_be_bytes([a, b, c, d]));
        }
    }

    fn end_of_frame(&mut self) {
        let (kind, flags) = (self.head[3], self.head[4]);
        let has_header_block = self.begun && HEADER_BLOCK_TYPES.contains(&kind);
        if self.block == 0 {
            self.block_begun = self.frames + 1;
        }
        self.block = match has_header_block && flags & END_HEADERS == 0 {
            true => self.block + self.unfinished_frame(),
            false => 0,
        };
        let is_useful = match kind {
            DATA => self.payload_received > 0 || flags & END_STREAM != 0,
            _ => has_header_block,
        };
        let data = self.payload_received.saturating_sub(self.padding);
        if kind == DATA && (data > 0 || flags & END_STREAM == 0) && !self.is_empty_data() {
            self.overhead += overhead(data);
        }
        if kind == WINDOW_UPDATE && self.head[5..] == [0; 4] {
            self.opened += u64::from(self.increment & (u32::MAX >> 1));
        }
        self.increment = 0;
        self.padding = 0;
        self.frames += 1;
        if self.begun && !is_useful {
            match kind {
                WINDOW_UPDATE => self.control.updates += 1,
                _ => self.control.others += 1,
            }
        }
        self.begun = true;
        self.head_received = 0;
        self.payload_received = 0;
    }
}

/// Maximum number of frames of each kind of [`Control`] within [`PERIOD`], in addition to those that received bytes allow.
const MAX_CONTROL: u64 = 1000;
const PERIOD: Duration = Duration::from_secs(1);
/// A peer may send one WINDOW_UPDATE for this many bytes that it receives. It can then acknowledge every DATA frame twice, for the
/// stream and for the connection: the smallest such frame has 10 bytes.
const BYTES_PER_UPDATE: u64 = 5;
/// The same for other control frames. Their replies are shorter than this, so a reply does not allow another frame.
const BYTES_PER_CONTROL: u64 = 32;

/// Detects floods of control frames, each of which wastes work.
#[derive(Debug)]
pub struct ControlLimit {
    /// When the current period began, and the frames received and bytes sent by then.
    since: Instant,
    control: Control,
    sent: u64,
}

impl ControlLimit {
    pub const fn since(now: Instant) -> Self {
        Self {
            since: now,
            control: Control {
                updates: 0,
                others: 0,
            },
            sent: 0,
        }
    }

    /// Whether too many control frames were received in the current period. The arguments are the control frames received, and the
    /// number of bytes sent, so far. The clock is read only if there were many.
    pub fn is_exceeded(
        &mut self,
        control: Control,
        sent: u64,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let allowed = |bytes: u64| MAX_CONTROL + (sent - self.sent) / bytes;
        if control.updates - self.control.updates <= allowed(BYTES_PER_UPDATE)
            && control.others - self.control.others <= allowed(BYTES_PER_CONTROL)
        {
            return false;
        }
        let now = now();
        if now < self.since + PERIOD {
            return true;
        }
        *self = Self {
            since: now,
            control,
            sent,
        };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD + usize::from(length), 0);
        frame
    }

    /// Tracks these bytes at once, and byte by byte.
    fn tracked(bytes: &[u8]) -> (FrameTracker, FrameTracker) {
        let mut at_once = FrameTracker::default();
        let (all, _) = at_once.track(&mut bytes.to_vec());
        let mut one_by_one = FrameTracker::default();
        let (mut pending, mut passed) = (Vec::new(), 0);
        for byte in bytes {
            pending.push(*byte);
            let (left, split) = one_by_one.track(&mut pending);
            passed += left;
            pending.drain(..pending.len() - split);
        }
        assert_eq!(all, passed);
        (at_once, one_by_one)
    }

    /// The unfinished bytes of a frame and of a header block, and the number of control frames, after these.
    fn after(pieces: &[&[u8]]) -> (usize, usize, u64) {
        let (at_once, one_by_one) = tracked(&pieces.concat());
        let [a, b] = [at_once, one_by_one].map(|one| {
            let Control { updates, others } = one.control();
            (
                one.unfinished_frame(),
                one.unfinished_block(),
                updates + others,
            )
        });
        assert_eq!(a, b);
        a
    }

    #[test]
    fn incomplete_frames_are_recognized_in_any_slices() {
        let settings = frame(4, 0, 0);
        assert_eq!(after(&[PREFACE]), (0, 0, 0));
        assert_eq!(after(&[PREFACE, &settings]), (0, 0, 1));
        assert_eq!(after(&[&settings, &frame(0, 0, 100)]), (0, 0, 0));
        assert_eq!(after(&[&settings, &frame(0, 0, 100)[..60]]), (60, 0, 0));
        assert_eq!(after(&[&settings, &frame(1, 0, 50)]), (0, 59, 0));
        let more = frame(9, 0, 50);
        let part = &more[..20];
        assert_eq!(after(&[&settings, &frame(1, 0, 50), part]), (20, 59, 0));
        assert_eq!(after(&[&settings, &frame(1, 0, 50), &more]), (0, 118, 0));
        let last = frame(9, END_HEADERS, 50);
        assert_eq!(after(&[&settings, &frame(1, 0, 50), &last]), (0, 0, 0));
    }

    #[test]
    fn an_unfinished_head_is_known_by_its_first_frame() {
        let settings = frame(4, 0, 0);
        let (begin, more) = (frame(1, 0, 50), frame(9, 0, 50));
        let end = frame(9, END_HEADERS, 50);
        for (frames, expected) in [
            (vec![PREFACE, &settings], None),
            (vec![PREFACE, &settings, &begin[..20]], Some(3)),
            (vec![PREFACE, &settings, &begin], Some(3)),
            (
                vec![PREFACE, &settings, &begin, &more, &more[..30]],
                Some(3),
            ),
            (vec![PREFACE, &settings, &begin, &end], None),
            (vec![PREFACE, &settings, &begin, &end, &begin], Some(5)),
            (vec![PREFACE, &settings, &frame(0, 0, 50)[..20]], None),
        ] {
            let (at_once, one_by_one) = tracked(&frames.concat());
            let heads = [at_once.unfinished_head(), one_by_one.unfinished_head()];
            assert_eq!(heads, [expected; 2], "{frames:?}");
        }
    }

    #[test]
    fn frames_with_fields_or_data_and_the_end_of_a_stream_are_no_control_frames() {
        for (kind, flags, length, control) in [
            (DATA, 0, 1, 0),
            (DATA, END_STREAM, 0, 0),
            (DATA, 0, 0, 1),
            (1, END_HEADERS, 20, 0),
            (2, 0, 5, 1),
            (3, 0, 4, 1),
            (4, 0, 0, 1),
            (6, 0, 8, 1),
            (8, 0, 4, 1),
            (77, 0, 3, 1),
        ] {
            let (_, _, seen) = after(&[PREFACE, &frame(kind, flags, length)]);
            assert_eq!(seen, control, "{kind} {flags} {length}");
        }
    }

    #[test]
    fn empty_frames_with_data_are_removed() {
        let (empty, last) = (frame(DATA, 0, 0), frame(DATA, END_STREAM, 0));
        let padded = frame(DATA, PADDED, 1);
        let (fields, data) = (frame(1, END_HEADERS, 20), frame(DATA, 0, 5));
        for (frames, left) in [
            (
                vec![PREFACE, &empty, &data, &empty, &empty, &last],
                vec![PREFACE, &data, &last],
            ),
            (
                vec![&fields, &empty, &fields, &padded],
                vec![&fields, &fields, &padded],
            ),
            // A protocol error, which h2 must see.
            (
                vec![&fields, &frame(1, 0, 3), &empty],
                vec![&fields, &frame(1, 0, 3), &empty],
            ),
        ] {
            let mut bytes = frames.concat();
            let (kept, split) = FrameTracker::default().track(&mut bytes);
            assert_eq!((&bytes[..kept], split), (&*left.concat(), 0));
            tracked(&frames.concat());
        }
    }

    #[test]
    fn small_frames_cost_what_h2_charges_for_them() {
        let padded = |padding: u8, length| {
            let mut frame = frame(DATA, PADDED, length);
            frame[HEAD] = padding;
            frame
        };
        for (frame, expected) in [
            (frame(DATA, 0, 1), 255),
            (frame(DATA, 0, 255), 1),
            (frame(DATA, 0, 0), 0),
            (frame(DATA, END_STREAM, 0), 0),
            (padded(9, 30), 236),
            (padded(9, 10), overhead(0)),
            (frame(1, END_HEADERS, 20), 0),
        ] {
            let (at_once, one_by_one) = tracked(&[PREFACE, &frame, &frame].concat());
            let costs = [at_once.overhead(), one_by_one.overhead()];
            assert_eq!(costs, [2 * expected; 2], "{frame:?}");
        }
    }

    #[test]
    fn the_longest_list_of_fields_is_that_of_the_last_setting() {
        let settings = |flags, list: &[(u16, u32)]| {
            let mut frame = frame(SETTINGS, flags, u8::try_from(6 * list.len()).expect("few"));
            frame.truncate(HEAD);
            for (id, value) in list {
                frame.extend(id.to_be_bytes());
                frame.extend(value.to_be_bytes());
            }
            frame
        };
        let first = settings(0, &[(3, 100), (6, 65_536), (4, 7)]);
        let second = settings(0, &[(6, 1000)]);
        for (frames, limit) in [
            (vec![settings(0, &[(1, 0)])], None),
            (vec![first.clone()], Some(65_536)),
            (vec![first, frame(8, 0, 4), second], Some(1000)),
            (vec![settings(ACK, &[(6, 5)])], None),
        ] {
            let (at_once, one_by_one) = tracked(&frames.concat());
            let limits = [at_once.max_header_list(), one_by_one.max_header_list()];
            assert_eq!(limits, [limit; 2]);
        }
    }

    #[test]
    fn the_window_of_the_connection_is_tracked() {
        let update = |stream: u8, increment: u32| {
            let mut frame = frame(WINDOW_UPDATE, 0, 4);
            frame[HEAD - 1] = stream;
            frame[HEAD..].copy_from_slice(&increment.to_be_bytes());
            frame
        };
        let reserved_bit = 1 << 31;
        let updates = [update(0, 70_000), update(1, 9), update(0, reserved_bit | 5)];
        let (at_once, one_by_one) = tracked(&updates.concat());
        assert_eq!([at_once.opened(), one_by_one.opened()], [70_005; 2]);
    }

    const fn others(others: u64) -> Control {
        Control { updates: 0, others }
    }

    #[test]
    fn control_frames_are_too_many_only_within_a_short_time() {
        let start = Instant::now();
        let at = |millis| move || start + Duration::from_millis(millis);
        let mut limit = ControlLimit::since(start);
        assert!(!limit.is_exceeded(others(MAX_CONTROL), 0, at(900)));
        assert!(limit.is_exceeded(others(MAX_CONTROL + 1), 0, at(999)));
        let mut limit = ControlLimit::since(start);
        for second in 1..100 {
            assert!(!limit.is_exceeded(
                others(MAX_CONTROL * second + second),
                0,
                at(1001 * second)
            ));
        }
        assert!(limit.is_exceeded(others(MAX_CONTROL * 100 + 1000), 0, at(99_500)));
    }

    #[test]
    fn a_peer_may_acknowledge_all_that_it_receives() {
        let start = Instant::now();
        let mut limit = ControlLimit::since(start);
        // Two for each frame with one byte of data.
        let mut seen = Control::default();
        for frames in 0..1_000_000 {
            seen.updates = 2 * frames;
            assert!(!limit.is_exceeded(seen, 10 * frames, || start));
        }
        // A PING and its reply have 17 bytes each, so that it does not earn the next one.
        let mut limit = ControlLimit::since(start);
        let pings = (0..).find(|pings| limit.is_exceeded(others(*pings), 17 * pings, || start));
        assert!(
            pings.is_some_and(|pings| pings < 3 * MAX_CONTROL),
            "{pings:?}"
        );
    }
}
