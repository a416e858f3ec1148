//! What is known of the traffic of an HTTP/2 connection, for the tasks of its streams.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::overhead::{RETIRE_AT, overhead};

/// The initial window of a connection, in bytes (RFC 9113 §6.9.2).
const INITIAL_WINDOW: u64 = 65_535;
/// Maximum size of the header blocks that a connection is given before it has written the earlier ones, in bytes. Unlike data, they
/// have no flow control, and the library buffers any number of them for a peer that does not read.
const MAX_QUEUED_HEADS: usize = 64 * 1024;

/// The traffic of a connection.
#[derive(Debug)]
pub struct Traffic {
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    /// Whether the last write waits for the socket, and whether the write timeout has expired.
    pub(super) is_blocked: AtomicBool,
    pub(super) is_timed_out: AtomicBool,
    pub(super) is_flood: AtomicBool,
    /// The overhead of the DATA frames that were received, and of those that were read from their streams.
    pub(super) overhead: AtomicU64,
    pub(super) read: AtomicU64,
    pub(super) max_header_list: AtomicU32,
    /// The number of the frame with which an unfinished header block began; 0 if there is none.
    pub(super) unfinished_head: AtomicU64,
    /// Whether the peer's first frame has arrived, which contains its settings (RFC 9113 §3.4).
    pub(super) has_settings: AtomicBool,
    pub(super) settings: Notify,
    /// The size of the header blocks that the connection was given since it last had nothing left to write, in bytes.
    queued_heads: AtomicUsize,
    written: Notify,
    /// What the peer has added to the window of the connection, and the data sent into it, in bytes.
    pub(super) opened: AtomicU64,
    pub(super) data: AtomicU64,
    /// The length of all bodies that were begun on the connection, as far as it is known.
    promised: AtomicU64,
    /// The largest window so far.
    pub(super) widest: AtomicU64,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            received: AtomicU64::default(),
            sent: AtomicU64::default(),
            is_blocked: AtomicBool::default(),
            is_timed_out: AtomicBool::default(),
            is_flood: AtomicBool::default(),
            overhead: AtomicU64::default(),
            read: AtomicU64::default(),
            max_header_list: AtomicU32::new(u32::MAX),
            unfinished_head: AtomicU64::default(),
            has_settings: AtomicBool::default(),
            settings: Notify::default(),
            queued_heads: AtomicUsize::default(),
            written: Notify::default(),
            opened: AtomicU64::default(),
            data: AtomicU64::default(),
            promised: AtomicU64::default(),
            widest: AtomicU64::new(INITIAL_WINDOW),
        }
    }
}

impl Traffic {
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Whether the connection may be given a header block of `size` bytes now, which is counted if so.
    #[must_use]
    pub fn takes_head(&self, size: usize) -> bool {
        let with = |queued: usize| {
            let all = queued.saturating_add(size);
            (queued == 0 || all <= MAX_QUEUED_HEADS).then_some(all)
        };
        let queued = &self.queued_heads;
        { queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with) }.is_ok()
    }

    /// Waits until [`Self::takes_head`].
    pub async fn head_room(&self, size: usize) {
        loop {
            let written = self.written.notified();
            if self.takes_head(size) {
                return;
            }
            written.await;
        }
    }

    /// Records that the connection has nothing left to write.
    pub(super) fn wrote_all(&self) {
        if self.queued_heads.load(Ordering::Relaxed) > 0 {
            self.queued_heads.store(0, Ordering::Relaxed);
            self.written.notify_waiters();
        }
    }

    /// Whether the socket accepts no more data for now.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// Whether the connection was ended because the socket accepted no data for too long.
    #[must_use]
    pub fn is_timed_out(&self) -> bool {
        self.is_timed_out.load(Ordering::Relaxed)
    }

    /// Whether the peer sent too many control frames. If so, nothing more is read, and the connection must be closed.
    #[must_use]
    pub fn is_flood(&self) -> bool {
        self.is_flood.load(Ordering::Relaxed)
    }

    /// Counts a frame that was read from its stream.
    pub fn read(&self, data: &[u8]) {
        self.read.fetch_add(overhead(data.len()), Ordering::Relaxed);
    }

    /// Whether the connection has received so many small unread frames that it should get no more streams.
    #[must_use]
    pub fn should_retire(&self) -> bool {
        let read = self.read.load(Ordering::Relaxed);
        self.overhead.load(Ordering::Relaxed).saturating_sub(read) > RETIRE_AT
    }

    /// Records what the peer has added to the window of the connection so far.
    pub(super) fn set_opened(&self, opened: u64) {
        self.opened.store(opened, Ordering::Relaxed);
        self.widest.fetch_max(self.send_window(), Ordering::Relaxed);
    }

    /// What is left of the window that the peer grants to the connection, in bytes.
    #[must_use]
    fn send_window(&self) -> u64 {
        self.window_after(self.data.load(Ordering::Relaxed))
    }

    fn window_after(&self, data: u64) -> u64 {
        let opened = INITIAL_WINDOW + self.opened.load(Ordering::Relaxed);
        opened.saturating_sub(data)
    }

    /// Changes the number of bytes that one body will take: from 0 when it begins, and to what was sent of it when it ends.
    pub fn promise(&self, from: u64, to: u64) {
        let change = to.wrapping_sub(from);
        self.promised.fetch_add(change, Ordering::Relaxed);
    }

    /// The connection has no streams: what was promised was sent, or will not be.
    pub fn settle(&self) {
        let data = self.data.load(Ordering::Relaxed);
        self.promised.store(data, Ordering::Relaxed);
    }

    /// Whether a body of so many bytes (`None`: of any length) can be sent after those that were begun, even if the peer reads
    /// nothing else. Peers open the window again at the latest once half of it was read, so a larger body needs more than half.
    #[must_use]
    pub fn has_window_for(&self, length: Option<u64>) -> bool {
        let data = self.data.load(Ordering::Relaxed);
        let left = self.window_after(data.max(self.promised.load(Ordering::Relaxed)));
        let fits = length.is_some_and(|length| length <= left);
        fits || left > self.widest.load(Ordering::Relaxed) / 2
    }

    /// The longest list of fields that the peer accepts, in bytes as RFC 9113 §6.5.2 counts them. The maximum until it announces
    /// one.
    #[must_use]
    pub fn max_header_list(&self) -> u32 {
        self.max_header_list.load(Ordering::Relaxed)
    }

    /// Distinguishes the unfinished header block, if there is one, from others of the connection.
    #[must_use]
    pub fn unfinished_head(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.unfinished_head.load(Ordering::Relaxed))
    }

    /// Whether the peer's first settings have arrived.
    #[must_use]
    pub fn has_settings(&self) -> bool {
        self.has_settings.load(Ordering::Acquire)
    }

    /// Waits for the peer's first settings.
    pub async fn settings(&self) {
        let arrived = self.settings.notified();
        if !self.has_settings() {
            arrived.await;
        }
    }
}
