//! A request body that is being read, and the part of it that is kept.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame};
use tower::BoxError;

use super::Fault;
use super::kept::RetainedBody;
use crate::http1::{NamedFields, passable};
use crate::memory::{Budget, Charge, FREE, Purpose};
use crate::transport::deadline::Excluded;
use crate::transport::try_lend;

type Source = Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>;

/// A request body that is being read, and the part of it that is kept.
pub struct Stream {
    source: Source,
    /// Length announced by the head, in bytes.
    length: Option<u64>,
    /// Bytes read so far.
    read: u64,
    kept: RetainedBody,
    /// Bytes that the current attempt has received.
    sent: u64,
    /// The budget that is charged for what is held.
    budget: Option<Arc<Budget>>,
    /// Maximum length of a body that is kept, in bytes.
    keep: u64,
    /// Bytes that may still arrive.
    allowed: u64,
    fault: Option<Fault>,
    /// Trailers of these names are not forwarded.
    hidden: NamedFields,
    /// False once something was read that is not kept.
    whole: bool,
    ended: bool,
    /// How long readers have waited for the client, without the current wait.
    waited: Duration,
    waiting_since: Option<Instant>,
    /// For how long the last reader had waited for the client when it gave up.
    abandoned_wait: Duration,
}

impl Stream {
    pub fn new(source: Source, length: Option<u64>) -> Self {
        Self {
            source,
            length,
            read: 0,
            kept: RetainedBody::default(),
            sent: 0,
            budget: None,
            keep: 0,
            allowed: u64::MAX,
            fault: None,
            hidden: NamedFields::default(),
            whole: true,
            ended: false,
            waited: Duration::ZERO,
            waiting_since: None,
            abandoned_wait: Duration::ZERO,
        }
    }

    pub fn bound(&mut self, most: u64, budget: &Arc<Budget>) {
        self.allowed = most;
        self.budget = Some(Arc::clone(budget));
    }

    pub fn keep(&mut self, most: usize) {
        self.keep = most as u64;
    }

    pub fn hide(&mut self, names: NamedFields) {
        self.hidden = names;
    }

    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// How long readers have waited for the client.
    pub fn awaited(&self) -> Excluded {
        let current = self.waiting_since.map(|since| since.elapsed());
        Excluded {
            total: self.waited + current.unwrap_or_default(),
            continues: current.is_some(),
        }
    }

    /// The reader no longer waits for the client.
    pub fn abandon_wait(&mut self) {
        self.abandoned_wait = self.stop_waiting();
    }

    /// For how long the last reader had waited for the client when it gave up; zero if it did not wait.
    pub fn abandoned_wait(&self) -> Duration {
        self.abandoned_wait
    }

    /// Nothing reads the body for now, or something has arrived. Returns how long it took.
    fn stop_waiting(&mut self) -> Duration {
        let since = self.waiting_since.take();
        let waited = since.map_or(Duration::ZERO, |since| since.elapsed());
        self.waited += waited;
        waited
    }

    /// Starts over for another attempt. Returns false if part of the body was not kept.
    pub fn rewind(&mut self) -> bool {
        if self.whole {
            self.sent = 0;
        }
        self.whole
    }

    /// Whether the whole body has arrived, and all of it is kept.
    fn is_kept(&self) -> bool {
        let arrived = self.ended || self.length == Some(self.read);
        self.whole && arrived && self.fault.is_none()
    }

    /// All of it, if it has arrived and is kept.
    pub fn kept(&mut self) -> Option<Bytes> {
        self.is_kept().then(|| self.kept.all())?
    }

    pub fn kept_length(&self) -> Option<usize> {
        self.is_kept().then(|| self.kept.length())
    }

    /// Takes the whole body, with its charge, if it has arrived and been sent, and is small.
    pub fn settle(&mut self) -> Option<(Bytes, Charge)> {
        let is_sent = self.sent == self.read;
        let settled = (is_sent && self.is_kept()).then(|| self.kept.take_small())?;
        self.whole &= settled.is_none();
        settled
    }

    pub fn is_untouched(&self) -> bool {
        self.read == 0 && self.whole && !self.ended
    }

    /// Stops keeping the body. The kept part is released once it has been sent.
    pub fn forget(&mut self) {
        self.whole = false;
        self.let_go_of_sent();
    }

    fn let_go_of_sent(&mut self) {
        if !self.whole && self.sent == self.read {
            self.kept.let_go();
        }
    }

    fn take_in(&mut self, bytes: &Bytes) {
        self.read += bytes.len() as u64;
        self.allowed -= bytes.len() as u64;
        if !self.whole {
            return;
        }
        let more = self.length.map(|length| {
            let more = length.saturating_sub(self.read);
            usize::try_from(more).unwrap_or(usize::MAX)
        });
        // A body that is known to be too long is not kept at all.
        let all = self.read.max(self.length.unwrap_or(0));
        let budget = self.budget.as_ref().filter(|_| all <= self.keep);
        self.whole = budget.is_some_and(|budget| self.kept.push(bytes, more, budget));
    }

    /// Polls for what follows the first `sent` bytes.
    pub fn poll_after(
        &mut self,
        cx: &mut Context<'_>,
        sent: &mut u64,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.abandoned_wait = Duration::ZERO;
        // After a fault, bytes are missing, so nothing more may be sent.
        if let Some(fault) = self.fault {
            return Poll::Ready(Some(Err(fault.into())));
        }
        if *sent < self.read {
            return Poll::Ready(Some(self.kept_after(sent)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = self.source.as_mut().poll_frame(cx) else {
            self.waiting_since.get_or_insert_with(Instant::now);
            return Poll::Pending;
        };
        self.stop_waiting();
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                let known = error.downcast_ref().copied();
                self.give_up(known.unwrap_or(Fault::Broken));
                return Poll::Ready(Some(Err(error)));
            }
            None => {
                self.ended = true;
                return Poll::Ready(None);
            }
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                // Drop trailers that must not be forwarded. Trailers are the last frame.
                let trailers = frame.into_trailers().ok();
                let Some(trailers) = trailers.and_then(|map| passable(map, &self.hidden)) else {
                    self.ended = true;
                    return Poll::Ready(None);
                };
                // Trailers are not kept, so a body with trailers is not sent again.
                self.forget();
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
        };
        if data.len() as u64 > self.allowed {
            self.give_up(Fault::TooLarge);
            return Poll::Ready(Some(Err(Fault::TooLarge.into())));
        }
        self.take_in(&data);
        // Large data is sent from the kept copy, so that it is not held twice.
        if self.whole && data.len() > FREE {
            return Poll::Ready(Some(self.kept_after(sent)));
        }
        *sent = self.read;
        self.sent = self.read;
        self.let_go_of_sent();
        let lent = match &self.budget {
            Some(budget) => try_lend(data, budget, Purpose::RequestBody),
            None => Some(data),
        };
        let Some(data) = lent else {
            self.give_up(Fault::NoMemory);
            return Poll::Ready(Some(Err(Fault::NoMemory.into())));
        };
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    /// The kept bytes after the first `sent` bytes.
    fn kept_after(&mut self, sent: &mut u64) -> Result<Frame<Bytes>, BoxError> {
        let from = usize::try_from(*sent).unwrap_or(usize::MAX);
        let Some(bytes) = self.kept.after(from) else {
            return Err(Fault::Broken.into());
        };
        *sent += bytes.len() as u64;
        self.sent = *sent;
        self.let_go_of_sent();
        Ok(Frame::data(bytes))
    }

    fn give_up(&mut self, fault: Fault) {
        self.whole = false;
        self.fault = Some(fault);
        self.kept.let_go();
    }
}
