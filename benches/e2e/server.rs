//! The far end: a model server that checks requests and writes events.

use super::h1::value;
use super::payload::{Payload, RequestForm, stream_end, stream_head};
use memchr::memmem;

/// An accepted connection.
pub struct Server {
    /// Which generation this is: 0 the old, 1 the new.
    generation: usize,
    /// What came of a head that is not yet whole.
    held: Vec<u8>,
    /// How much is still to come of the body of a question.
    skip: usize,
    /// The request whose body is being read, and how much of it was.
    request: Option<(RequestForm, u64, usize)>,
    serving: Option<Serving>,
}

struct Serving {
    id: u64,
    sequence: u64,
}

impl Server {
    pub fn new(generation: usize) -> Self {
        Self {
            generation,
            held: Vec::new(),
            skip: 0,
            request: None,
            serving: None,
        }
    }

    pub fn generation(&self) -> usize {
        self.generation
    }

    pub fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// Takes in bytes of a request. Returns what it asks for once it is whole; the answer has then begun in `out`.
    ///
    /// # Errors
    /// Says what is not as it should be.
    pub fn feed(
        &mut self,
        input: &[u8],
        payload: &Payload,
        out: &mut Vec<u8>,
    ) -> Result<Option<RequestForm>, String> {
        let whole;
        let mut input = input;
        let skipped = self.skip.min(input.len());
        self.skip -= skipped;
        input = &input[skipped..];
        if self.request.is_none() {
            self.held.extend_from_slice(input);
            let Some(end) = memmem::find(&self.held, b"\r\n\r\n") else {
                return Ok(None);
            };
            if self.serving.is_some() {
                return Err("a request within another".into());
            }
            whole = std::mem::take(&mut self.held);
            let head = whole[..end + 2].to_ascii_lowercase();
            if value(&head, "x-crossfade-question").is_some() {
                let rest = whole.len() - end - 4;
                let length = value(&head, "content-length").unwrap_or("0");
                let length: usize = length.parse().map_err(|_| "how long?")?;
                self.skip = length.saturating_sub(rest);
                answer(out, head.starts_with(b"get"));
                return Ok(None);
            }
            let bench = value(&head, "x-bench").ok_or("no x-bench")?;
            let ask = bench
                .bytes()
                .next()
                .and_then(RequestForm::of)
                .ok_or("what is asked?")?;
            let id = bench[1..].parse().map_err(|_| "for whom?")?;
            let length = payload.prompt(ask).len().to_string();
            if value(&head, "content-length") != Some(&length) {
                return Err(format!("not {length} bytes long: {}", head.escape_ascii()));
            }
            self.request = Some((ask, id, 0));
            input = &whole[end + 4..];
        }
        let Some((ask, id, at)) = &mut self.request else {
            return Ok(None);
        };
        let expected = &payload.prompt(*ask)[*at..];
        if !expected.starts_with(input) {
            return Err(format!("the prompt of {ask:?} {id} differs"));
        }
        *at += input.len();
        if input.len() < expected.len() {
            return Ok(None);
        }
        let (ask, id) = (*ask, *id);
        self.request = None;
        let generation = ["old", "new"][self.generation];
        if ask.streams() {
            out.extend_from_slice(stream_head(generation).as_bytes());
            self.serving = Some(Serving { id, sequence: 0 });
        } else {
            payload.reply(out, id, generation);
        }
        Ok(Some(ask))
    }

    /// Writes an event and returns how many there were.
    pub fn event(&mut self, payload: &Payload, out: &mut Vec<u8>, now: u64) -> u64 {
        let Some(serving) = &mut self.serving else {
            return 0;
        };
        payload.event(out, serving.id, serving.sequence, now);
        serving.sequence += 1;
        serving.sequence
    }

    pub fn end(&mut self, out: &mut Vec<u8>) {
        if self.serving.take().is_some() {
            stream_end(out);
        }
    }
}

/// The answer to what the proxy asks for itself: the list of models, or that a text can be continued.
fn answer(out: &mut Vec<u8>, is_list: bool) {
    let (status, body) = if is_list {
        ("200 OK", r#"{"object":"list","data":[{"id":"tiny"}]}"#)
    } else {
        (
            "400 Bad Request",
            r#"{"message":"Cannot set both `continue_final_message` and `add_generation_prompt` to True."}"#,
        )
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body.as_bytes());
}
