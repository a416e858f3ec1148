//! What a scripted server does for one request, step by step.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::Received;

/// A gate that a script waits for and a test opens.
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
    /// The response head. Without a length the body is chunked; with `connection: close` it ends with the connection.
    Head(u16, Vec<(String, String)>),
    /// Body bytes, in one chunk and one write.
    Chunk(Bytes),
    /// Raw bytes on the wire (HTTP/1.1 only; in HTTP/2, body bytes).
    Raw(Bytes),
    /// The same body bytes many times, counted as they are accepted.
    Flood(Bytes, usize, Arc<AtomicU64>),
    Pause(Duration),
    Wait(Gate),
    /// Continues with the script that this returns, once the body of the request has arrived.
    Then(Arc<dyn Fn(&Received) -> Script + Send + Sync>),
    /// The clean end of the body, with these trailers.
    End(Vec<(String, String)>),
    /// Closes the connection without ending the body.
    Eof,
    /// Resets the connection, or in HTTP/2 the stream.
    Reset,
    /// Sends nothing more.
    Hang,
    /// Sends back everything that arrives (HTTP/1.1 only).
    Echo,
}

/// The script for one request. At its end the body is ended cleanly, if it has not ended yet.
#[derive(Clone, Default)]
pub struct Script {
    pub steps: Vec<Step>,
    /// Whether to start without reading the body of the request, and never read it.
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

    /// A complete response of known length.
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

    /// One event. Its lines are given without the blank one.
    pub fn event(self, lines: &str) -> Self {
        self.chunk(format!("{lines}\n\n"))
    }

    /// Each event of a text in its own chunk.
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

    /// Appends the steps of `other`.
    pub fn then(mut self, other: Script) -> Self {
        self.steps.extend(other.steps);
        self
    }

    /// A script that depends on the body of the request.
    pub fn by_body(choose: impl Fn(&Received) -> Script + Send + Sync + 'static) -> Self {
        Self::new().step(Step::Then(Arc::new(choose)))
    }

    /// The same script, started at once and without ever reading the body of the request.
    pub fn leaving_the_body(mut self) -> Self {
        self.leaves_body = true;
        self
    }
}
