//! One client: sends a request, checks the response word by word, and records how it ended.
//!
//! It parses events itself instead of with the proxy's decoder, so that it is an independent witness.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::demo::model_server::MODEL;
use crate::demo::transcript::Transcript;
use crate::split::Generation;

/// A client that receives nothing for this long closes the connection.
const TIMEOUT: Duration = Duration::from_secs(15);

/// How an exchange ended from the client's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::demo) enum Ending {
    /// Every word in order, a finish reason and `[DONE]`.
    Completed,
    /// The client got an error event or an error status.
    Failed,
    /// Cut, silent or with wrong words, without an error.
    Broken,
    /// No connection, or no response on it.
    Unreachable,
}

impl Ending {
    /// All endings, by number.
    pub(in crate::demo) const ALL: [Self; 4] = [
        Self::Completed,
        Self::Failed,
        Self::Broken,
        Self::Unreachable,
    ];
}

/// A client's observations of one exchange.
#[derive(Clone, Debug)]
pub(in crate::demo) struct RequestReport {
    /// How it ended.
    pub(in crate::demo) ending: Ending,
    /// The generation whose text it was; `None` without text.
    pub(in crate::demo) generation: Option<Generation>,
    /// From the request to the first token.
    pub(in crate::demo) first_token: Option<Duration>,
    /// From each token to the next one.
    pub(in crate::demo) gaps: Vec<Duration>,
}

/// A client with one connection, which it reuses while it can.
#[derive(Debug)]
pub(super) struct Client {
    address: SocketAddr,
    connection: Option<SendRequest<Full<Bytes>>>,
    tokens: u64,
}

impl Client {
    /// Requests responses of at most `tokens` tokens from `address`.
    pub(super) fn new(address: SocketAddr, tokens: u64) -> Self {
        Self {
            address,
            connection: None,
            tokens,
        }
    }

    /// One exchange, from the request to the end of the response.
    pub(super) async fn send_request(&mut self) -> RequestReport {
        let mut received = ReceivedResponse::new(Instant::now());
        let ending = match self.send().await {
            None => Ending::Unreachable,
            Some(response) if response.status() == StatusCode::OK => {
                received.follow(response.into_body()).await
            }
            Some(_) => Ending::Failed,
        };
        if ending != Ending::Completed {
            self.connection = None;
        }
        received.report(ending)
    }

    async fn send(&mut self) -> Option<Response<Incoming>> {
        let mut connection = self.connect().await?;
        let question = json!({
            "model": MODEL,
            "messages": [{"role": "user", "content": "Who is speaking?"}],
            "stream": true,
            // The lengths differ, because clients that started together would otherwise stay in step.
            "max_tokens": fastrand::u64(self.tokens / 3..=self.tokens),
        });
        let request = Request::post("/v1/chat/completions")
            .header(HOST, self.address.to_string())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(question.to_string()))
            .expect("a request of constant parts");
        let response = tokio::time::timeout(TIMEOUT, connection.send_request(request))
            .await
            .ok()?
            .ok()?;
        self.connection = Some(connection);
        Some(response)
    }

    async fn connect(&mut self) -> Option<SendRequest<Full<Bytes>>> {
        if let Some(mut connection) = self.connection.take()
            && connection.ready().await.is_ok()
        {
            return Some(connection);
        }
        let stream = TcpStream::connect(self.address).await.ok()?;
        stream.set_nodelay(true).ok()?;
        let (connection, io) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .ok()?;
        tokio::spawn(io);
        Some(connection)
    }
}

/// The response so far.
#[derive(Debug)]
struct ReceivedResponse {
    sent_at: Instant,
    last_token: Option<Instant>,
    first_token: Option<Duration>,
    gaps: Vec<Duration>,
    transcript: Transcript,
    /// A finish reason has arrived.
    finished: bool,
    unparsed: Vec<u8>,
}

impl ReceivedResponse {
    fn new(sent_at: Instant) -> Self {
        Self {
            sent_at,
            last_token: None,
            first_token: None,
            gaps: Vec::new(),
            transcript: Transcript::default(),
            finished: false,
            unparsed: Vec::new(),
        }
    }

    async fn follow(&mut self, mut body: Incoming) -> Ending {
        let mut ending = None;
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(TIMEOUT, body.frame()).await {
            // Anything after the end is read and ignored, so that the connection can be reused.
            if let (None, Some(data)) = (ending, frame.data_ref()) {
                ending = self.take(data, Instant::now());
            }
        }
        ending.unwrap_or(Ending::Broken)
    }

    /// Processes bytes as they arrive. Returns the ending once an event determines it.
    fn take(&mut self, bytes: &[u8], now: Instant) -> Option<Ending> {
        self.unparsed.extend_from_slice(bytes);
        while let Some(end) = self.unparsed.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.unparsed.drain(..end + 2).collect();
            for line in event.split(|byte| *byte == b'\n') {
                if let Some(data) = line.strip_prefix(b"data:")
                    && let Some(ending) = self.event(data.trim_ascii(), now)
                {
                    return Some(ending);
                }
            }
        }
        None
    }

    fn event(&mut self, data: &[u8], now: Instant) -> Option<Ending> {
        if data == b"[DONE]" {
            let whole = self.finished && self.transcript.is_complete();
            return Some(if whole {
                Ending::Completed
            } else {
                Ending::Broken
            });
        }
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            return Some(Ending::Broken);
        };
        if event.get("error").is_some_and(|error| !error.is_null()) {
            return Some(Ending::Failed);
        }
        if let Some(token) = event
            .pointer("/choices/0/delta/content")
            .and_then(Value::as_str)
            && !token.is_empty()
        {
            self.token(token, now);
        }
        self.finished |= event
            .pointer("/choices/0/finish_reason")
            .is_some_and(Value::is_string);
        None
    }

    fn token(&mut self, token: &str, now: Instant) {
        self.transcript.push(token);
        match self.last_token.replace(now) {
            None => self.first_token = Some(now.saturating_duration_since(self.sent_at)),
            Some(before) => self.gaps.push(now.saturating_duration_since(before)),
        }
    }

    fn report(self, ending: Ending) -> RequestReport {
        RequestReport {
            ending,
            generation: self.transcript.generation(),
            first_token: self.first_token,
            gaps: self.gaps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::transcript;

    fn token(word: &str) -> String {
        format!(
            "data: {}\n\n",
            json!({"choices": [{"delta": {"content": word}, "finish_reason": null}]})
        )
    }

    const FINISH: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn speech(tokens: usize) -> String {
        transcript::words(Generation::New)
            .take(tokens)
            .map(token)
            .collect()
    }

    fn ending_of(stream: &str) -> Option<Ending> {
        ReceivedResponse::new(Instant::now()).take(stream.as_bytes(), Instant::now())
    }

    #[test]
    fn only_a_whole_answer_is_completed() {
        assert_eq!(
            ending_of(&(speech(5) + FINISH + DONE)),
            Some(Ending::Completed)
        );
        assert_eq!(ending_of(&(speech(5) + DONE)), Some(Ending::Broken));
        assert_eq!(
            ending_of(&(speech(3) + &speech(3) + FINISH + DONE)),
            Some(Ending::Broken)
        );
        assert_eq!(ending_of(&(speech(5) + FINISH)), None);
        assert_eq!(ending_of("data: {nonsense\n\n"), Some(Ending::Broken));
    }

    #[test]
    fn an_error_event_is_a_failure_regardless_of_what_follows() {
        let error = ": comment\ndata: {\"error\":{\"message\":\"gone\",\"code\":502}}\n\n";
        assert_eq!(ending_of(&(speech(5) + error + DONE)), Some(Ending::Failed));
    }

    #[test]
    fn the_observed_events_do_not_depend_on_the_slices() {
        let stream = ": ping\n\n".to_owned() + &speech(4) + FINISH + DONE;
        let mut received = ReceivedResponse::new(Instant::now());
        let mut endings = stream
            .as_bytes()
            .chunks(3)
            .filter_map(|cut| received.take(cut, Instant::now()));
        assert_eq!(endings.next(), Some(Ending::Completed));
        let report = received.report(Ending::Completed);
        assert_eq!(
            (report.generation, report.gaps.len()),
            (Some(Generation::New), 3)
        );
        assert!(report.first_token.is_some());
    }
}
