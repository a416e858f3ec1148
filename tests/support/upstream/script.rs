//! What a scripted server does for one request, step by step.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::Received;

/// Something that a script waits for and a test opens.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    pub fn closed() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub async fn wait(&self) {
        let mut receiver = self.0.subscribe();
        let _ = receiver.wait_for(|open| *open).await;
    }
}

/// One step.
#[derive(Clone)]
pub enum Step {
    /// The response head. Without a length the body is chunked, with `connection: close` it lasts until the close.
    Head(u16, Vec<(String, String)>),
    /// Bytes of the body, in one chunk and one write.
    Chunk(Bytes),
    /// Bytes on the wire as they are (HTTP/1.1 only; in HTTP/2 bytes of the body).
    Raw(Bytes),
    /// The same bytes of the body many times, counted as they are taken.
    Flood(Bytes, usize, Arc<AtomicU64>),
    Pause(Duration),
    Wait(Gate),
    /// Goes on by the script that this makes, when the request's body is there.
    Then(Arc<dyn Fn(&Received) -> Script + Send + Sync>),
    /// The right end of the body, with these trailers.
    End(Vec<(String, String)>),
    /// Closes the connection as it is.
    Eof,
    /// Resets the connection; in HTTP/2 the stream.
    Reset,
    /// Nothing more, ever.
    Hang,
    /// Sends back whatever comes (HTTP/1.1 only).
    Echo,
}

/// What is done for one request. At its end the body is ended rightly, if that is still to do.
#[derive(Clone, Default)]
pub struct Script {
    pub steps: Vec<Step>,
    /// Does it begin without having read the request's body, and never read it?
    pub leaves_body: bool,
}

impl Script {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    pub fn head(self, status: u16, headers: &[(&str, &str)]) -> Self {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        self.step(Step::Head(status, headers))
    }

    /// The head of an event stream, as Dynamo sends it.
    pub fn sse(self) -> Self {
        let headers = [
            ("content-type", "text/event-stream"),
            ("cache-control", "no-cache"),
        ];
        self.head(200, &headers)
    }

    /// A whole answer of a known length.
    pub fn answer(self, status: u16, content_type: &str, body: impl AsRef<[u8]>) -> Self {
        let body = Bytes::copy_from_slice(body.as_ref());
        let length = body.len().to_string();
        let headers = [("content-type", content_type), ("content-length", &length)];
        let script = self.head(status, &headers);
        if body.is_empty() {
            script
        } else {
            script.step(Step::Chunk(body))
        }
    }

    pub fn json(self, status: u16, body: &str) -> Self {
        self.answer(status, "application/json", body)
    }

    /// One event: its lines, to which the blank one is added.
    pub fn event(self, lines: &str) -> Self {
        self.chunk(format!("{lines}\n\n"))
    }

    /// Each event of a text in a chunk of its own.
    pub fn events(self, text: &str) -> Self {
        let events = text.split_inclusive("\n\n");
        events.fold(self, |script, event| script.chunk(event))
    }

    pub fn chunk(self, bytes: impl AsRef<[u8]>) -> Self {
        self.step(Step::Chunk(Bytes::copy_from_slice(bytes.as_ref())))
    }

    pub fn raw(self, bytes: impl AsRef<[u8]>) -> Self {
        self.step(Step::Raw(Bytes::copy_from_slice(bytes.as_ref())))
    }

    pub fn pause(self, millis: u64) -> Self {
        self.step(Step::Pause(Duration::from_millis(millis)))
    }

    pub fn wait(self, gate: &Gate) -> Self {
        self.step(Step::Wait(gate.clone()))
    }

    pub fn end(self) -> Self {
        self.step(Step::End(Vec::new()))
    }

    pub fn eof(self) -> Self {
        self.step(Step::Eof)
    }

    pub fn reset(self) -> Self {
        self.step(Step::Reset)
    }

    pub fn hang(self) -> Self {
        self.step(Step::Hang)
    }

    /// The steps of `other` after these.
    pub fn then(mut self, other: Script) -> Self {
        self.steps.extend(other.steps);
        self
    }

    /// A script that depends on the request's body.
    pub fn by_body(choose: impl Fn(&Received) -> Script + Send + Sync + 'static) -> Self {
        Self::new().step(Step::Then(Arc::new(choose)))
    }

    /// The same, begun at once and without ever reading the request's body.
    pub fn leaving_the_body(mut self) -> Self {
        self.leaves_body = true;
        self
    }
}
