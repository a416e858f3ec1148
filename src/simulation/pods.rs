//! The modelled pods of one role: they start, become ready, serve streams, and terminate.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::split::Generation;

/// A stream: when it ends, and through which frontends it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    pub end: u64,
    pub through: Generation,
}

impl Ord for Stream {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |stream: &Self| (stream.end, stream.through == Generation::New);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Stream {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One pod. Times are seconds since the start.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub number: u64,
    pub ready_at: u64,
    pub warm_at: u64,
    pub marked: bool,
    /// When its termination began, and the latest time at which it is killed.
    pub ending: Option<Ending>,
    streams: BinaryHeap<Reverse<Stream>>,
}

/// How a pod ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// Not before.
    pub earliest: u64,
    /// It ends with all streams that it still has.
    pub killed_at: u64,
}

impl Pod {
    pub const fn new(number: u64, ready_at: u64, warm_at: u64) -> Self {
        Self {
            number,
            ready_at,
            warm_at,
            marked: false,
            ending: None,
            streams: BinaryHeap::new(),
        }
    }

    pub const fn is_ready(&self, now: u64) -> bool {
        self.ending.is_none() && self.ready_at <= now
    }

    pub fn open(&self) -> usize {
        self.streams.len()
    }

    pub fn carry(&mut self, stream: Stream) {
        self.streams.push(Reverse(stream));
    }

    /// The streams that have ended.
    pub fn ended(&mut self, now: u64) -> Vec<Stream> {
        let mut ended = Vec::new();
        while let Some(Reverse(stream)) = self.streams.peek() {
            if stream.end > now {
                break;
            }
            ended.extend(self.streams.pop().map(|Reverse(stream)| stream));
        }
        ended
    }

    /// Removes at most this many of its streams.
    pub fn lose(&mut self, most: usize) -> Vec<Stream> {
        let mut streams = std::mem::take(&mut self.streams).into_vec();
        let lost = streams.split_off(streams.len().saturating_sub(most));
        self.streams = streams.into();
        lost.into_iter().map(|Reverse(stream)| stream).collect()
    }

    /// Whether it is gone.
    pub fn is_gone(&self, now: u64) -> bool {
        let over = |ending: Ending| {
            let is_idle = self.streams.is_empty() && now >= ending.earliest;
            is_idle || now >= ending.killed_at
        };
        self.ending.is_some_and(over)
    }
}
