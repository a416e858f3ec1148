//! The transport below an HTTP/2 connection. It counts traffic, charges unfinished frames and header blocks to the memory budget,
//! limits how much is read at once, and removes empty DATA frames.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frame_tracker::{ControlLimit, FrameTracker, HEAD};
use super::overhead::MIN_FRAME_COST;
use super::sent_data::SentData;
use super::traffic::Traffic;
use crate::memory::{Budget, Charge, Purpose, holding_cost};
use crate::transport::allowance::Allowance;

/// How much is read before the thread polls its sockets again and the readers of streams run, in bytes. Until they run, data stays
/// in frames.
const AT_ONCE: usize = 64 * 1024;
/// A byte of a header block counts as this many additional bytes: HPACK can expand it to a field, which costs about a hundred times
/// the memory and work (RFC 7541 §6.1).
const HPACK_EXTRA: usize = 15;
/// Maximum size of a read after one that was mostly header blocks, in bytes. Such a read uses up [`AT_ONCE`].
const HEADER_HEAVY_READ: usize = AT_ONCE / (1 + HPACK_EXTRA);

fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// A transport whose traffic is counted.
pub struct CountedTransport<T> {
    transport: T,
    traffic: Arc<Traffic>,
    frames: FrameTracker,
    sent: SentData,
    split: SplitHead,
    control: ControlLimit,
    allowance: Allowance,
    /// Whether the last long read was mostly header blocks.
    is_header_heavy: bool,
    /// The charge for unfinished frames and header blocks.
    charge: Charge,
    memory: Arc<Budget>,
}

/// The header of a frame that arrived in several pieces. It is passed on when it is complete.
#[derive(Debug, Default)]
struct SplitHead {
    bytes: [u8; HEAD],
    /// How many bytes have arrived, and how many of them were passed on (none before `is_complete`).
    length: usize,
    passed: usize,
    is_complete: bool,
}

impl SplitHead {
    fn of(start: &[u8]) -> Self {
        let mut split = Self::default();
        split.bytes[..start.len()].copy_from_slice(start);
        split.length = start.len();
        split
    }

    const fn complete(bytes: [u8; HEAD]) -> Self {
        Self {
            bytes,
            length: HEAD,
            passed: 0,
            is_complete: true,
        }
    }

    /// Passes on what fits.
    fn pass_on(&mut self, buffer: &mut ReadBuf<'_>) {
        let rest = &self.bytes[self.passed..self.length];
        let rest = &rest[..rest.len().min(buffer.remaining())];
        buffer.put_slice(rest);
        self.passed += rest.len();
        if self.passed == self.length {
            *self = Self::default();
        }
    }
}

impl<T> CountedTransport<T> {
    /// Unfinished frames are charged to `memory`.
    pub fn new(transport: T, memory: &Arc<Budget>) -> (Self, Arc<Traffic>) {
        let traffic = Arc::<Traffic>::default();
        let counted = Self {
            transport,
            traffic: Arc::clone(&traffic),
            frames: FrameTracker::default(),
            sent: SentData::default(),
            split: SplitHead::default(),
            control: ControlLimit::since(Instant::now()),
            allowance: Allowance::default(),
            is_header_heavy: false,
            charge: Charge::default(),
            memory: Arc::clone(memory),
        };
        (counted, traffic)
    }

    /// Charges what is unfinished. A frame is charged even beyond the budget. A header block for which there is no room closes the
    /// connection.
    fn charge_unfinished(&mut self) -> io::Result<()> {
        let (frame, block) = (
            self.frames.unfinished_frame(),
            self.frames.unfinished_block(),
        );
        let wanted = holding_cost(frame + block);
        if wanted == self.charge.bytes() {
            return Ok(());
        }
        if block == 0 {
            self.charge.force(&self.memory, wanted);
        } else if !self.charge.resize(&self.memory, wanted, Purpose::Head) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    /// Waits for more data. An error ends the connection.
    fn pending(&mut self) -> Poll<io::Result<()>> {
        match self.charge_unfinished() {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Tracks the received bytes. Returns how many of them must be passed on.
    fn process(&mut self, bytes: &mut [u8]) -> usize {
        let (frames_before, blocks_before) =
            (self.frames.frames(), self.frames.header_block_bytes());
        let (left, split) = self.frames.track(bytes);
        let (bytes, start) = bytes.split_at(bytes.len() - split);
        if !start.is_empty() {
            self.split = SplitHead::of(start);
        }
        let frames = size(self.frames.frames() - frames_before);
        let blocks = size(self.frames.header_block_bytes() - blocks_before);
        let work = bytes.len().max(frames * MIN_FRAME_COST) + blocks * HPACK_EXTRA;
        self.allowance.spend(work);
        let traffic = &self.traffic;
        traffic
            .received
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        traffic
            .overhead
            .store(self.frames.overhead(), Ordering::Relaxed);
        traffic.set_opened(self.frames.opened());
        if let Some(most) = self.frames.max_header_list() {
            traffic.max_header_list.store(most, Ordering::Relaxed);
        }
        let head = self.frames.unfinished_head();
        traffic
            .unfinished_head
            .store(head.unwrap_or(0), Ordering::Relaxed);
        if self.frames.frames() > 0 && !traffic.has_settings() {
            traffic.has_settings.store(true, Ordering::Release);
            traffic.settings.notify_waiters();
        }
        if self
            .control
            .is_exceeded(self.frames.control(), traffic.sent(), Instant::now)
        {
            traffic.is_flood.store(true, Ordering::Relaxed);
        }
        left
    }

    fn sent(&mut self, written: &Poll<io::Result<usize>>, slices: &[IoSlice<'_>]) {
        self.note_write(written);
        if let Poll::Ready(Ok(bytes)) = written {
            self.traffic
                .sent
                .fetch_add(*bytes as u64, Ordering::Relaxed);
            let mut left = *bytes;
            for slice in slices {
                let here = left.min(slice.len());
                self.sent.pass(&slice[..here]);
                left -= here;
            }
            self.traffic.data.store(self.sent.bytes, Ordering::Relaxed);
        }
    }

    fn note_write<R>(&self, polled: &Poll<io::Result<R>>) {
        let traffic = &self.traffic;
        traffic
            .is_blocked
            .store(polled.is_pending(), Ordering::Relaxed);
        if let Poll::Ready(Err(error)) = polled
            && error.kind() == io::ErrorKind::TimedOut
        {
            traffic.is_timed_out.store(true, Ordering::Relaxed);
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CountedTransport<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.traffic.is_flood() {
                return Poll::Pending;
            }
            if this.split.is_complete {
                this.split.pass_on(buffer);
                return Poll::Ready(Ok(()));
            }
            if this.allowance.poll(cx, AT_ONCE).is_pending() {
                return this.pending();
            }
            let read = match this.split.length {
                0 => this.poll_read_frames(cx, buffer),
                _ => this.poll_read_head(cx),
            };
            match read {
                Poll::Ready(Ok(Passed::Something)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(Passed::Nothing)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    this.allowance.renew();
                    return this.pending();
                }
            }
        }
    }
}

/// What a read has passed on.
enum Passed {
    /// Bytes, or the end of the transport.
    Something,
    Nothing,
}

impl<T: AsyncRead + Unpin> CountedTransport<T> {
    fn poll_read_frames(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<Passed>> {
        let before = buffer.filled().len();
        if self.is_header_heavy {
            let most = buffer.remaining().min(HEADER_HEAVY_READ);
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
            ready!(Pin::new(&mut self.transport).poll_read(cx, &mut part))?;
            let read = part.filled().len();
            buffer.advance(read);
        } else {
            ready!(Pin::new(&mut self.transport).poll_read(cx, buffer))?;
        }
        let bytes = &mut buffer.filled_mut()[before..];
        let (read, header_block_bytes) = (bytes.len(), self.frames.header_block_bytes());
        let left = self.process(bytes);
        if 2 * size(self.frames.header_block_bytes() - header_block_bytes) > HEADER_HEAVY_READ {
            self.is_header_heavy = true;
        } else if read >= HEADER_HEAVY_READ {
            // A shorter read does not show what follows.
            self.is_header_heavy = false;
        }
        buffer.set_filled(before + left);
        Poll::Ready(Ok(match left > 0 || read == 0 {
            true => Passed::Something,
            false => Passed::Nothing,
        }))
    }

    /// Reads the rest of a frame header that arrived in pieces.
    fn poll_read_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Passed>> {
        let split = &mut self.split;
        let mut rest = ReadBuf::new(&mut split.bytes[split.length..]);
        ready!(Pin::new(&mut self.transport).poll_read(cx, &mut rest))?;
        let here = rest.filled().len();
        split.length += here;
        // At the end of the stream, h2 handles the incomplete header.
        split.is_complete = here == 0;
        if split.length == HEAD {
            let mut head = split.bytes;
            let left = self.process(&mut head);
            self.split = match left {
                0 => SplitHead::default(),
                _ => SplitHead::complete(head),
            };
        }
        Poll::Ready(Ok(Passed::Nothing))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CountedTransport<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write(cx, bytes);
        self.sent(&written, &[IoSlice::new(bytes)]);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write_vectored(cx, slices);
        self.sent(&written, slices);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The library flushes only what it has written completely.
        self.traffic.wrote_all();
        let flushed = Pin::new(&mut self.transport).poll_flush(cx);
        self.note_write(&flushed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::allowance::tests::polls_of_the_sockets;

    /// A peer that sends the same bytes repeatedly.
    struct Endless(Vec<u8>);

    impl AsyncRead for Endless {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let here = buffer.remaining() / self.0.len() * self.0.len();
            buffer.put_slice(&self.0.repeat(here / self.0.len()));
            Poll::Ready(Ok(()))
        }
    }

    /// How many times the sockets are polled while this many bytes are received of a peer that sends `frame` without end. `None` if
    /// the connection receives nothing more.
    fn polls(frame: Vec<u8>, bytes: usize) -> Option<u32> {
        let budget = Budget::new(usize::MAX);
        let (mut counted, traffic) = CountedTransport::new(Endless(frame), &budget);
        let mut received = 0;
        let flood = Arc::clone(&traffic);
        let polls = polls_of_the_sockets(move |cx| {
            while received < bytes {
                let mut buffer = [0; 8 * 1024];
                let mut buffer = ReadBuf::new(&mut buffer);
                if Pin::new(&mut counted)
                    .poll_read(cx, &mut buffer)
                    .is_pending()
                {
                    if traffic.is_flood() {
                        break;
                    }
                    return Poll::Pending;
                }
                received += buffer.filled().len();
            }
            Poll::Ready(())
        });
        (!flood.is_flood()).then_some(polls)
    }

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        frame.resize(9 + usize::from(length), 0);
        frame
    }

    #[test]
    fn a_peer_that_sends_continuously_lets_the_thread_poll_its_sockets() {
        let large = polls(frame(0, 247), 4 << 20).expect("no flood");
        assert!((32..=64).contains(&large), "{large}");
        let small = polls(frame(0, 1), 1 << 20).expect("no flood");
        assert!((100..=130).contains(&small), "{small}");
    }

    #[test]
    fn header_blocks_count_as_the_size_to_which_they_expand() {
        let mut block = frame(1, 247);
        block[4] = 4;
        // 4 KiB take almost the whole allowance, so that each turn reads them twice.
        let polls = polls(block, 1 << 20).expect("no flood");
        assert!((125..=130).contains(&polls), "{polls}");
    }

    /// Sends one piece for each read, and notes how much each read could take.
    #[derive(Default)]
    struct Pieces {
        pieces: std::collections::VecDeque<Vec<u8>>,
        room: Arc<std::sync::Mutex<Vec<usize>>>,
    }

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let Some(piece) = self.pieces.pop_front() else {
                return Poll::Pending;
            };
            let room = buffer.remaining();
            self.room.lock().expect("no panic").push(room);
            buffer.put_slice(&piece);
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn reads_stay_small_after_header_blocks_until_much_else_has_arrived() {
        let mut block = frame(1, 247);
        block[4] = 4;
        let (blocks, data) = (block.repeat(10), frame(0, 247));
        let pieces = [
            blocks.clone(),
            // The head of a frame in three parts, of which the last comes with the rest.
            block[..4].to_vec(),
            block[4..7].to_vec(),
            block[7..9].to_vec(),
            block[9..].to_vec(),
            data.clone(),
            data.repeat(16),
            data,
        ];
        let pieces = Pieces {
            pieces: pieces.into(),
            ..Pieces::default()
        };
        let room = Arc::clone(&pieces.room);
        let (mut counted, _) = CountedTransport::new(pieces, &Budget::new(usize::MAX));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut buffer = [0; 8 * 1024];
        while Pin::new(&mut counted)
            .poll_read(&mut cx, &mut ReadBuf::new(&mut buffer))
            .is_ready()
        {}
        let (full, part) = (8 * 1024, HEADER_HEAVY_READ);
        let room = room.lock().expect("no panic");
        assert_eq!(*room, [full, part, 5, 2, part, part, part, full]);
    }

    #[test]
    fn nothing_more_is_read_from_a_peer_that_sends_only_control_frames() {
        assert_eq!(polls(frame(6, 8), 1 << 20), None);
    }
}
