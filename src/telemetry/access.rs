//! Access lines: one per exchange, written when it ends. Each thread collects lines and queues them together, so that a line
//! costs no system call and no access to shared memory. Prompts, credentials and clients' header values are not included.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::Duration;

use super::clock;
use super::output::{self, Kind};
use crate::continuation;
use crate::failover::Cause;
use crate::printable;
use crate::split::{Assignment, Generation};
use crate::sse::{Api, Outcome, Usage};

/// A thread queues its lines once they reach this length, in bytes. Each time, the thread that writes them wakes up and may take
/// this thread's core.
const ENOUGH: usize = 64 * 1024;

/// The format of access lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFormat {
    Off,
    Text,
    Json,
}

/// What access lines contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessLogSettings {
    pub form: AccessFormat,
    /// Whether they name the client's address.
    pub client: bool,
}

static SETTINGS: OnceLock<AccessLogSettings> = OnceLock::new();

/// The lines of a thread, queued when the thread ends.
struct Lines(Vec<u8>);

impl Lines {
    /// Queues a copy of the exact length, so that the buffer keeps its capacity for the next lines.
    fn hand_over(&mut self) {
        output::write_lines(Kind::Access, &self.0);
        self.0.clear();
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.hand_over();
    }
}

thread_local! {
    static LINES: RefCell<Lines> = const { RefCell::new(Lines(Vec::new())) };
}

/// Configures access lines for the process. Only the first call counts. Without one, no lines are written.
pub fn configure(settings: AccessLogSettings) {
    let _ = SETTINGS.set(settings);
}

/// The fields of an access line.
#[derive(Debug)]
pub struct Line<'a> {
    /// The address of the client's connection; `None` if the request did not come over one.
    pub client: Option<&'a str>,
    pub request_id: &'a str,
    /// `None` if the request was rejected before it was assigned.
    pub assignment: Option<Assignment>,
    /// The generation that responded; `None` if the proxy did, or none.
    pub answered: Option<Generation>,
    pub method: &'a str,
    pub path: &'a str,
    pub class: Api,
    /// The model that the response names.
    pub model: Option<&'a str>,
    /// The address of the model server whose response the client gets.
    pub endpoint: Option<&'a str>,
    /// The status of the response; `None` if the exchange ended before there was one. A line shows it as 0.
    pub status: Option<u16>,
    pub attempts: u32,
    /// The cause of the last failed attempt.
    pub cause: Option<Cause>,
    pub outcome: Outcome,
    /// How many times another server continued the stream.
    pub continued: u32,
    /// Why the stream was not continued when it broke.
    pub not_continued: Option<continuation::ContinuationReason>,
    pub first_event: Option<Duration>,
    pub duration: Duration,
    pub events: u64,
    pub bytes: u64,
    pub usage: Usage,
    /// What went wrong, as a text of this program.
    pub why: Option<&'a str>,
    /// The `trace-id` of the request's W3C trace context, received or assigned.
    pub trace: Option<&'a str>,
}

/// Adds a line.
pub fn log(line: &Line<'_>) {
    let Some(settings) = SETTINGS
        .get()
        .filter(|settings| settings.form != AccessFormat::Off)
    else {
        return;
    };
    LINES.with_borrow_mut(|lines| {
        clock::with_now(|time| match settings.form == AccessFormat::Json {
            true => line.write::<true>(&mut lines.0, time, settings.client),
            false => line.write::<false>(&mut lines.0, time, settings.client),
        });
        if lines.0.len() >= ENOUGH {
            lines.hand_over();
        }
    });
}

/// Queues the lines of this thread for writing. Call it periodically on each thread.
pub fn flush() {
    LINES.with_borrow_mut(Lines::hand_over);
}

/// A field's name with its punctuation, as text and as JSON.
type Name = [&'static str; 2];

macro_rules! name {
    ($name:literal) => {
        [concat!(" ", $name, "="), concat!(",\"", $name, "\":")]
    };
}

impl Line<'_> {
    fn write<const JSON: bool>(&self, out: &mut Vec<u8>, time: &str, with_client: bool) {
        let mut fields = Fields::<JSON> { out };
        fields.open(time);
        if let Some(client) = self.client.filter(|_| with_client) {
            fields.word(name!("client"), client);
        }
        fields.text(name!("request_id"), self.request_id);
        let assigned = self.assignment.map(|assignment| {
            let Assignment { generation, reason } = assignment;
            (generation.as_str(), reason.as_str())
        });
        let (generation, reason) = assigned.unwrap_or(("none", "rejected"));
        fields.word(name!("generation"), generation);
        fields.word(name!("reason"), reason);
        fields.word(
            name!("answered"),
            self.answered.map_or("none", Generation::as_str),
        );
        fields.text(name!("method"), self.method);
        fields.text(name!("path"), self.path);
        fields.word(name!("class"), self.class.as_str());
        if let Some(model) = self.model {
            fields.text(name!("model"), model);
        }
        if let Some(endpoint) = self.endpoint {
            fields.word(name!("endpoint"), endpoint);
        }
        fields.number(name!("status"), self.status.map_or(0, u64::from));
        fields.number(name!("attempts"), u64::from(self.attempts));
        if let Some(cause) = self.cause {
            fields.word(name!("cause"), cause.as_str());
        }
        fields.word(name!("outcome"), self.outcome.as_str());
        if self.continued > 0 {
            fields.number(name!("continued"), u64::from(self.continued));
        }
        if let Some(reason) = self.not_continued {
            fields.word(name!("not_continued"), reason.as_str());
        }
        if let Some(first) = self.first_event {
            fields.seconds(name!("first_event_seconds"), first);
        }
        fields.seconds(name!("duration_seconds"), self.duration);
        fields.number(name!("events"), self.events);
        fields.number(name!("bytes"), self.bytes);
        if self.usage != Usage::default() {
            fields.number(name!("prompt_tokens"), self.usage.prompt_tokens);
            fields.number(name!("completion_tokens"), self.usage.completion_tokens);
        }
        if let Some(why) = self.why {
            fields.text(name!("why"), why);
        }
        if let Some(trace) = self.trace {
            fields.text(name!("trace_id"), trace);
        }
        fields.close();
    }
}

/// The fields of a line, for a format known at compile time so that names are constants.
struct Fields<'a, const JSON: bool> {
    out: &'a mut Vec<u8>,
}

impl<const JSON: bool> Fields<'_, JSON> {
    fn open(&mut self, time: &str) {
        if JSON {
            self.out.extend_from_slice(b"{\"timestamp\":\"");
            self.out.extend_from_slice(time.as_bytes());
            self.out
                .extend_from_slice(b"\",\"level\":\"INFO\",\"target\":\"access\"");
        } else {
            self.out.extend_from_slice(time.as_bytes());
            self.out.extend_from_slice(b"  INFO access");
        }
    }

    #[inline(always)]
    fn name(&mut self, name: Name) {
        let name = name[usize::from(JSON)];
        self.out.extend_from_slice(name.as_bytes());
    }

    /// A word of this program or an address, which need no escaping.
    #[inline(always)]
    fn word(&mut self, name: Name, word: &str) {
        self.name(name);
        let quote: &[u8] = if JSON { b"\"" } else { b"" };
        self.out.extend_from_slice(quote);
        self.out.extend_from_slice(word.as_bytes());
        self.out.extend_from_slice(quote);
    }

    /// Quoted as JSON if necessary, so that no part of a request can forge a line.
    fn text(&mut self, name: Name, text: &str) {
        self.name(name);
        // No early exit, so that the compiler can vectorize the check.
        let plain = text
            .bytes()
            .fold(!text.is_empty(), |so_far, byte| so_far & is_plain(byte));
        if plain && !JSON {
            return self.out.extend_from_slice(text.as_bytes());
        }
        printable::write_json(&mut *self.out, text).expect(TAKES_ALL);
    }

    #[inline(always)]
    fn number(&mut self, name: Name, value: u64) {
        self.name(name);
        number(self.out, value);
    }

    #[inline(always)]
    fn seconds(&mut self, name: Name, duration: Duration) {
        self.name(name);
        seconds(self.out, duration);
    }

    fn close(&mut self) {
        self.out
            .extend_from_slice(if JSON { b"}\n" } else { b"\n" });
    }
}

/// Why writing to a line cannot fail.
const TAKES_ALL: &str = "writing to a Vec does not fail";

/// Whether a text with this byte may go without quotes.
const fn is_plain(byte: u8) -> bool {
    (byte > b' ') & (byte <= b'~') & (byte != b'"') & (byte != b'\\') & (byte != b'=')
}

/// Decimal digits. Does not use `write!`, which would be most of a line's cost.
fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Seconds with six decimals.
fn seconds(out: &mut Vec<u8>, duration: Duration) {
    number(out, duration.as_secs());
    let start = out.len();
    // A leading 1 keeps the zeros and is replaced by the point.
    number(out, 1_000_000 + u64::from(duration.subsec_micros()));
    out[start] = b'.';
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Reason;

    fn line(path: &str, json: bool) -> String {
        let line = Line {
            client: Some("10.0.0.9"),
            request_id: "request-7",
            assignment: Some(Assignment {
                generation: Generation::New,
                reason: Reason::Sticky,
            }),
            answered: Some(Generation::Old),
            method: "POST",
            path,
            class: Api::Chat,
            model: Some("tiny"),
            endpoint: Some("10.0.1.1:8000"),
            status: Some(200),
            attempts: 2,
            cause: Some(Cause::Connect),
            outcome: Outcome::Completed,
            continued: 0,
            not_continued: None,
            first_event: Some(Duration::from_micros(1_200_034)),
            duration: Duration::from_secs(3),
            events: 7,
            bytes: 99,
            usage: Usage::default(),
            why: None,
            trace: None,
        };
        let mut out = Vec::new();
        let time = "2026-11-25T01:02:03.000004Z";
        if json {
            line.write::<true>(&mut out, time, false);
        } else {
            line.write::<false>(&mut out, time, true);
        }
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_line_in_text_and_in_json() {
        assert_eq!(
            line("/v1/chat/completions", false),
            "2026-11-25T01:02:03.000004Z  INFO access client=10.0.0.9 request_id=request-7 generation=new reason=sticky \
             answered=old method=POST path=/v1/chat/completions class=chat model=tiny endpoint=10.0.1.1:8000 status=200 attempts=2 cause=connect \
             outcome=completed first_event_seconds=1.200034 duration_seconds=3.000000 events=7 bytes=99\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&line("/v1/chat/completions", true)).expect("JSON");
        assert_eq!(json["timestamp"], "2026-11-25T01:02:03.000004Z");
        assert_eq!(json["client"], serde_json::Value::Null);
        assert_eq!(json["endpoint"], "10.0.1.1:8000");
        assert_eq!(json["answered"], "old");
        assert_eq!(json["events"], 7);
    }

    #[test]
    fn a_path_cannot_forge_a_line() {
        let text = line("/a b\n1.0 access outcome=completed \"", false);
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains(r#"path="/a b\n1.0 access outcome=completed \"""#));
    }

    #[test]
    fn a_path_cannot_steer_a_terminal() {
        for json in [false, true] {
            let text = line("/\u{1b}[2J\u{9b}2J\u{85}\u{202e}\u{7f}\u{2028}", json);
            assert!(
                text.contains(r#""/\u001b[2J\u009b2J\u0085\u202e\u007f\u2028""#),
                "{text:?}"
            );
        }
    }
}
