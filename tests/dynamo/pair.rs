//! Two stacks, proxies in front of them, requests, and the text of responses.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::dynamo::{MODEL, Options, Stack};
use crate::rig::{Client, End, Family, Proxy, Response};

/// The override header, with which a test selects the generation of the first attempt.
pub const GENERATION: &str = "x-generation";

/// The protocols to the model servers.
pub const PROTOCOLS: [&str; 2] = ["http1", "http2"];

/// Two generations.
pub struct Pair {
    pub old: Stack,
    pub new: Stack,
}

impl Pair {
    pub async fn start() -> Self {
        Self::start_with(Options::default(), Options::default()).await
    }

    pub async fn start_with(old: Options, new: Options) -> Self {
        let (old, new) = tokio::join!(
            Stack::start("old", "dynamo-v1", old),
            Stack::start("new", "dynamo-v2", new)
        );
        Self { old, new }
    }

    /// A proxy that sends `percent` of the requests to new, except those with the header [`GENERATION`].
    pub async fn proxy(&self, percent: u8, more: &[&str]) -> Proxy {
        let (old, new, percent) = (self.old.url(), self.new.url(), percent.to_string());
        let mut args = vec!["--old", &old, "--new", &new, "--split", &percent];
        args.extend(["--override-header", GENERATION]);
        args.extend(more);
        Proxy::start(&args).await
    }

    /// One proxy per protocol, with a split of 50 percent.
    pub async fn proxies(&self) -> [Proxy; 2] {
        let [one, two] = PROTOCOLS.map(|protocol| ["--upstream-protocol", protocol]);
        [self.proxy(50, &one).await, self.proxy(50, &two).await]
    }
}

/// An API family, streaming or unary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKind {
    pub family: Family,
    pub stream: bool,
}

impl RequestKind {
    pub fn all() -> impl Iterator<Item = Self> {
        Self::streams().chain(Family::ALL.map(|family| Self {
            family,
            stream: false,
        }))
    }

    pub fn streams() -> impl Iterator<Item = Self> + Clone {
        Family::ALL.into_iter().map(|family| Self {
            family,
            stream: true,
        })
    }

    pub fn body(self, prompt: &str) -> String {
        self.body_for(MODEL, prompt).to_string()
    }

    pub fn body_for(self, model: &str, prompt: &str) -> Value {
        let messages = json!([{"role": "user", "content": prompt}]);
        let mut body = json!({"model": model, "stream": self.stream});
        match self.family {
            Family::Chat => body["messages"] = messages,
            Family::Completions => body["prompt"] = prompt.into(),
            Family::Responses => body["input"] = prompt.into(),
            Family::Messages => {
                body["messages"] = messages;
                body["max_tokens"] = 2000.into();
            }
        }
        body
    }

    /// Sends a request to `generation` without reading its response.
    pub async fn open(self, address: SocketAddr, generation: &str, prompt: &str) -> Client {
        let mut client = Client::connect(address).await;
        self.send(&mut client, &[(GENERATION, generation)], prompt)
            .await;
        client
    }

    pub async fn send(self, client: &mut Client, headers: &[(&str, &str)], prompt: &str) {
        client
            .post(self.family.path(), headers, self.body(prompt))
            .await;
    }

    pub async fn response(self, address: SocketAddr, generation: &str, prompt: &str) -> Response {
        self.open(address, generation, prompt)
            .await
            .response()
            .await
    }

    /// The text of a response.
    pub fn text(self, response: &Response) -> String {
        if self.stream {
            return self.text_in(&response.text());
        }
        let body = response.json();
        let text = match self.family {
            Family::Chat => &body["choices"][0]["message"]["content"],
            Family::Completions => &body["choices"][0]["text"],
            Family::Responses => &body["output"][0]["content"][0]["text"],
            Family::Messages => &body["content"][0]["text"],
        };
        let text = text.as_str();
        text.unwrap_or_else(|| panic!("no text: {body}")).to_owned()
    }

    /// The text of a stream's events.
    pub fn text_in(self, events: &str) -> String {
        data(events)
            .filter_map(|data| serde_json::from_str::<Value>(data).ok())
            .filter_map(|data| {
                let text = match self.family {
                    Family::Chat => &data["choices"][0]["delta"]["content"],
                    Family::Completions => &data["choices"][0]["text"],
                    Family::Responses if data["type"] == "response.output_text.delta" => {
                        &data["delta"]
                    }
                    Family::Messages if data["type"] == "content_block_delta" => {
                        &data["delta"]["text"]
                    }
                    Family::Responses | Family::Messages => &Value::Null,
                };
                text.as_str().map(str::to_owned)
            })
            .collect()
    }

    /// Whether a stream has the terminal event of its family.
    pub fn is_complete(self, events: &str) -> bool {
        match self.family {
            Family::Chat | Family::Completions => data(events).any(|data| data == "[DONE]"),
            Family::Responses => events.contains("event: response.completed\n"),
            Family::Messages => events.contains("event: message_stop\n"),
        }
    }

    /// Asserts that the response is complete and has all of this number of words from `stack`.
    pub fn assert_text(self, response: &Response, stack: &Stack, words: usize) {
        let text = response.text();
        assert_eq!(
            (response.status, response.end),
            (200, End::Clean),
            "{self:?}: {text}"
        );
        assert_eq!(self.text(response), stack.text(words), "{self:?}: {text}");
        assert!(!self.stream || self.is_complete(&text), "{self:?}: {text}");
    }
}

/// The data of events with one data line.
pub fn data(events: &str) -> impl Iterator<Item = &str> {
    events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
}

/// Reads the body until it contains `needle`.
pub async fn read_until(client: &mut Client, needle: &str) -> String {
    let mut seen = Vec::new();
    loop {
        let piece = client.piece().await;
        let text = String::from_utf8_lossy(&seen).into_owned();
        seen.extend(piece.unwrap_or_else(|| panic!("before {needle:?} only {text:?}")));
        let text = String::from_utf8_lossy(&seen);
        if text.contains(needle) {
            return text.into_owned();
        }
    }
}

/// The text with IDs and times replaced, which differ from request to request.
pub fn normal(text: &str) -> String {
    const KEYS: [&str; 6] = [
        "id",
        "item_id",
        "response_id",
        "created",
        "created_at",
        "completed_at",
    ];
    KEYS.iter().fold(text.to_owned(), |text, key| {
        let key = format!("\"{key}\":");
        let mut pieces = text.split(&key);
        let mut normal = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let end = piece.find([',', '}']).unwrap_or(piece.len());
            normal += &key;
            normal += "*";
            normal += &piece[end..];
        }
        normal
    })
}

/// Waits for this number of access lines, and returns the values of `fields` of each, sorted.
pub async fn access(proxy: &Proxy, count: usize, fields: &[&str]) -> Vec<String> {
    proxy.access_line(count).await;
    let line = |line: &Value| {
        let values = fields.iter().map(|field| match &line[*field] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        values.collect::<Vec<_>>().join(" ")
    };
    let mut lines: Vec<_> = proxy.access().iter().map(line).collect();
    lines.sort();
    lines
}
