//! Opens many concurrent streams with the official client library or over HTTP/1.1 or HTTP/2, and collects their results.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::dynamo::{Dynamo, MODEL};
use crate::pair::{RequestKind, data};
use crate::rig::client::http2;
use crate::rig::{Client, End, Family, within};

/// How long a stream may take on a busy machine. Without delays, it takes 18 s, plus 10 s of silence before it is continued.
const STREAM: Duration = Duration::from_secs(90);

/// The result of a stream.
#[derive(Debug, Default)]
pub struct Answer {
    /// The class of its API family.
    pub class: &'static str,
    pub text: String,
    pub reasoning: String,
    pub ids: BTreeSet<String>,
    pub finish: Option<String>,
    pub usage: Value,
    /// Whether it ended with an error event.
    pub has_error: bool,
    pub is_whole: bool,
}

impl Answer {
    fn of_library(line: &str, class: &'static str) -> Self {
        let answer: Value = serde_json::from_str(line).expect("JSON");
        let has_error = answer["error"].is_string();
        let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
        let ids = answer["ids"].as_array().expect("a list").iter();
        Self {
            class,
            text: text("text"),
            reasoning: text("reasoning"),
            ids: ids.map(ToString::to_string).collect(),
            finish: answer["finish"].as_str().map(str::to_owned),
            usage: answer["usage"].clone(),
            has_error,
            is_whole: !has_error,
        }
    }

    fn of_events(events: &str, end: Option<End>, class: &'static str) -> Self {
        let mut all = Self {
            class,
            is_whole: end == Some(End::Clean) && data(events).any(|data| data == "[DONE]"),
            ..Self::default()
        };
        for data in data(events) {
            let Ok(chunk) = serde_json::from_str::<Value>(data) else {
                continue;
            };
            all.has_error |= chunk["error"].is_object();
            if let Some(id) = chunk["id"].as_str() {
                all.ids.insert(id.to_owned());
            }
            let choice = &chunk["choices"][0];
            let delta = &choice["delta"];
            let text = delta["content"].as_str().or(choice["text"].as_str());
            all.text += text.unwrap_or_default();
            all.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
            if let Some(finish) = choice["finish_reason"].as_str() {
                all.finish = Some(finish.to_owned());
            }
            if chunk["usage"].is_object() {
                all.usage = without_details(&chunk["usage"]);
            }
        }
        all
    }
}

/// The token counts that both kinds of clients report in the same form.
fn without_details(usage: &Value) -> Value {
    let keys = ["prompt_tokens", "completion_tokens", "total_tokens"];
    keys.iter().map(|key| usage[key].clone()).collect()
}

/// Open streams.
pub enum Streams {
    Library(Library, usize),
    /// Streams, and their connection if they share one.
    Raw(Vec<JoinHandle<Answer>>, Option<http2::Client>),
}

impl Streams {
    /// Opens `count` streams of the official client library, and returns once each has begun.
    pub async fn of_library(address: SocketAddr, count: usize, kind: &str, prompt: &str) -> Self {
        Self::Library(Library::open(address, count, kind, prompt).await, count)
    }

    /// Opens `count` streams over HTTP/1.1 or HTTP/2, and returns once each has sent `beginning`.
    pub async fn raw(
        address: SocketAddr,
        count: usize,
        (family, is_h2): (Family, bool),
        prompt: &str,
        beginning: &'static str,
    ) -> Self {
        let kind = RequestKind {
            family,
            stream: true,
        };
        let mut body = kind.body_for(MODEL, prompt);
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let body = body.to_string();
        let connection = match is_h2 {
            true => Some(http2::Client::connect(address).await),
            false => None,
        };
        let (sender, mut begun) = mpsc::unbounded_channel();
        let mut streams = Vec::new();
        for _ in 0..count {
            let mut stream = match &connection {
                Some(connection) => Raw::Two(connection.post(family.path(), &[], &body).await),
                None => {
                    let mut client = Client::connect(address).await;
                    client.post(family.path(), &[], &body).await;
                    client.head().await;
                    Raw::One(client)
                }
            };
            let sender = sender.clone();
            streams.push(tokio::spawn(async move {
                let (mut seen, mut has_begun) = (Vec::new(), false);
                while let Some(piece) = stream.piece().await {
                    seen.extend(piece);
                    let text = String::from_utf8_lossy(&seen);
                    if !has_begun && text.contains(beginning) {
                        has_begun = true;
                        let _ = sender.send(());
                    }
                }
                Answer::of_events(
                    &String::from_utf8_lossy(&seen),
                    stream.end(),
                    family.class(),
                )
            }));
        }
        for _ in 0..count {
            within("a stream begins", begun.recv()).await;
        }
        Self::Raw(streams, connection)
    }

    /// Waits for all streams to end, and returns their results.
    pub async fn answers(self) -> Vec<Answer> {
        let mut answers = Vec::new();
        match self {
            Self::Library(mut library, count) => {
                for _ in 0..count {
                    let line = timeout(STREAM, library.lines.recv()).await;
                    let line = line.expect("a stream ends in time");
                    let line = line.expect("each stream has a line");
                    answers.push(Answer::of_library(&line, library.class));
                }
                assert!(library.child.wait().expect("it ends").success());
            }
            Self::Raw(streams, _connection) => {
                for stream in streams {
                    answers.push(stream.await.expect("it does not panic"));
                }
            }
        }
        answers
    }
}

enum Raw {
    One(Client),
    Two(http2::Stream),
}

impl Raw {
    async fn piece(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::One(client) => client.piece().await,
            Self::Two(stream) => stream.piece().await,
        }
    }

    fn end(&self) -> Option<End> {
        match self {
            Self::One(client) => client.end,
            Self::Two(stream) => stream.end,
        }
    }
}

/// Streams of the official client library.
pub struct Library {
    lines: mpsc::UnboundedReceiver<String>,
    class: &'static str,
    child: Child,
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Library {
    async fn open(address: SocketAddr, count: usize, kind: &str, prompt: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai/streams.py");
        let url = format!("http://{address}");
        let mut child = Command::new(Dynamo::install().python)
            .arg(script)
            .args([&url, MODEL, &count.to_string(), kind, prompt])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the Python of the installation starts");
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, mut lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let begun = within("all streams begin", lines.recv()).await;
        assert_eq!(begun.as_deref(), Some("begun"));
        let family = match kind {
            "completions" => Family::Completions,
            _ => Family::Chat,
        };
        Self {
            lines,
            class: family.class(),
            child,
        }
    }
}
