//! The bytes that travel: requests, events and replies, so made that the far end can tell each wrong byte.
//!
//! An event is what a model server sends per token, padded to [`EVENT`] bytes. It names its stream, its place in it and
//! the time at which it was written; all other bytes are the same in every event.

/// Bytes of one event, its blank line included.
pub const EVENT: usize = 250;
/// How a stream ends.
pub const DONE: &[u8] = b"data: [DONE]\n\n";
/// Bytes of a short reply.
pub const REPLY: usize = 1024;
/// Digits of a number in a payload: enough for nanoseconds since boot.
const DIGITS: usize = 20;

/// What a request asks the model server to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestForm {
    /// Events at the pace of the workload.
    Paced,
    /// Events as fast as the connection takes them.
    Flood,
    /// A reply of [`REPLY`] bytes to a prompt of 1 KiB.
    Short,
    /// The same to a prompt of 400 KiB.
    Big,
    /// The same to longer and longer bodies: 4 KiB, 100 KiB, 1 MiB, 4 MiB.
    Body4K,
    Body100K,
    Body1M,
    Body4M,
}

impl RequestForm {
    pub const ALL: [Self; 8] = [
        Self::Paced,
        Self::Flood,
        Self::Short,
        Self::Big,
        Self::Body4K,
        Self::Body100K,
        Self::Body1M,
        Self::Body4M,
    ];

    pub fn letter(self) -> char {
        match self {
            Self::Paced => 'p',
            Self::Flood => 'f',
            Self::Short => 's',
            Self::Big => 'b',
            Self::Body4K => 'k',
            Self::Body100K => 'h',
            Self::Body1M => 'm',
            Self::Body4M => 'l',
        }
    }

    pub fn of(letter: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|ask| ask.letter() as u8 == letter)
    }

    pub fn streams(self) -> bool {
        matches!(self, Self::Paced | Self::Flood)
    }

    fn prompt_bytes(self) -> usize {
        match self {
            Self::Paced | Self::Flood => 512,
            Self::Short => 1024,
            Self::Big => 400 * 1024,
            Self::Body4K => 4 * 1024,
            Self::Body100K => 100 * 1024,
            Self::Body1M => 1024 * 1024,
            Self::Body4M => 4 * 1024 * 1024,
        }
    }
}

/// All templates, made once.
pub struct Payload {
    event: [u8; EVENT],
    reply: Vec<u8>,
    prompts: [Vec<u8>; RequestForm::ALL.len()],
    event_at: [usize; 3],
    /// Bytes of text in an event.
    text: usize,
    reply_at: usize,
}

impl Payload {
    pub fn new() -> Self {
        let zero = "0".repeat(DIGITS);
        let head = format!(
            r#"data: {{"id":"{zero}","object":"chat.completion.chunk","created":1795217637,"model":"tiny","choices":[{{"index":0,"delta":{{"content":""#
        );
        let tail = "\"},\"finish_reason\":null}]}\n\n";
        let id = head.find(&zero).expect("the number is in the text");
        let sequence = head.len();
        let content = format!("{zero} {zero}");
        let padding = "s".repeat(EVENT - head.len() - content.len() - tail.len());
        let text = content.len() + padding.len();
        let event = format!("{head}{content}{padding}{tail}");
        let reply = sized(
            &format!(
                r#"{{"id":"{zero}","object":"chat.completion","model":"tiny","choices":[{{"index":0,"message":{{"role":"assistant","content":""#
            ),
            r#""},"finish_reason":"stop"}]}"#,
            REPLY,
        );
        Self {
            event: event.into_bytes().try_into().expect("padded to its length"),
            text,
            reply_at: 7,
            reply,
            prompts: RequestForm::ALL.map(|ask| {
                sized(
                    &format!(
                        r#"{{"model":"tiny","stream":{},"messages":[{{"role":"user","content":""#,
                        ask.streams()
                    ),
                    r#""}]}"#,
                    ask.prompt_bytes(),
                )
            }),
            event_at: [id, sequence, sequence + DIGITS + 1],
        }
    }

    /// Bytes of text in an event.
    pub fn text(&self) -> usize {
        self.text
    }

    /// The body of a request.
    pub fn prompt(&self, ask: RequestForm) -> &[u8] {
        &self.prompts[ask as usize]
    }

    /// Appends event `sequence` of stream `id`, written at `now`, as a chunk of HTTP/1.1.
    pub fn event(&self, out: &mut Vec<u8>, id: u64, sequence: u64, now: u64) {
        const { assert!(EVENT == 0xfa) };
        out.extend_from_slice(b"fa\r\n");
        let start = out.len();
        out.extend_from_slice(&self.event);
        let event = &mut out[start..];
        for (at, number) in self.event_at.into_iter().zip([id, sequence, now]) {
            digits(&mut event[at..at + DIGITS], number);
        }
        out.extend_from_slice(b"\r\n");
    }

    /// When the event was written; `None` when a byte of it is wrong.
    pub fn check_event(&self, event: &[u8], id: u64, sequence: u64) -> Option<u64> {
        let mut expected = self.event;
        digits(&mut expected[self.event_at[0]..][..DIGITS], id);
        digits(&mut expected[self.event_at[1]..][..DIGITS], sequence);
        let stamp = event.get(self.event_at[2]..self.event_at[2] + DIGITS)?;
        expected[self.event_at[2]..][..DIGITS].copy_from_slice(stamp);
        (expected == event).then(|| number(stamp))?
    }

    /// Appends a short reply, head and body.
    pub fn reply(&self, out: &mut Vec<u8>, id: u64, generation: &str) {
        out.extend_from_slice(
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Generation: {generation}\r\nContent-Length: {REPLY}\r\n\r\n"
            )
            .as_bytes(),
        );
        let start = out.len() + self.reply_at;
        out.extend_from_slice(&self.reply);
        digits(&mut out[start..start + DIGITS], id);
    }

    pub fn check_reply(&self, reply: &[u8], id: u64) -> bool {
        let mut expected = self.reply.clone();
        digits(&mut expected[self.reply_at..][..DIGITS], id);
        expected == reply
    }
}

/// The head of an event stream.
pub fn stream_head(generation: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Generation: {generation}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
}

/// The end of an event stream: the last event, and the last chunk.
pub fn stream_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"e\r\n");
    out.extend_from_slice(DONE);
    out.extend_from_slice(b"\r\n0\r\n\r\n");
}

fn sized(head: &str, tail: &str, length: usize) -> Vec<u8> {
    let mut all = head.as_bytes().to_vec();
    let words = b"the quick brown fox jumps over the lazy dog ";
    let fill = length - head.len() - tail.len();
    all.extend(words.iter().cycle().take(fill));
    all.extend(tail.as_bytes());
    all
}

fn digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).expect("less than ten");
        number /= 10;
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |sum, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
