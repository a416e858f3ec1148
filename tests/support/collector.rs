//! A real OpenTelemetry Collector for tests: it receives OTLP over gRPC or HTTP and writes it to a file, which is read here.
//!
//! Does not depend on the proxy. `tests/tracing/install.sh` builds it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use serde_json::Value;
use tempfile::TempDir;

use super::tls::{Authority, Files};
use super::wait::until;

/// A running collector. Stopped when dropped.
pub struct Collector {
    child: Child,
    directory: TempDir,
    pub address: SocketAddr,
    scheme: &'static str,
}

/// The protocol of a collector, `grpc` or `http`, and, for TLS, the authority of its certificate and of its clients' certificates.
#[derive(Clone, Copy)]
pub struct Receiver<'a> {
    pub protocol: &'a str,
    pub tls: Option<(&'a Authority, &'a Files)>,
}

/// One span, as written by the collector.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace: String,
    pub id: String,
    /// Empty if there is none.
    pub parent: String,
    pub state: String,
    pub name: String,
    /// 2 is a server's, 3 a client's.
    pub kind: u64,
    /// Nanoseconds since 1970.
    pub start: u64,
    pub end: u64,
    pub attributes: BTreeMap<String, Value>,
    /// Name and time of each event.
    pub events: Vec<(String, u64)>,
    /// 0 is unset, 2 an error.
    pub status: u64,
    pub message: String,
    /// The resource that sent the span.
    pub resource: BTreeMap<String, Value>,
}

impl Span {
    pub fn is_server(&self) -> bool {
        self.kind == 2
    }

    /// An attribute; null if there is none.
    pub fn attribute(&self, name: &str) -> &Value {
        self.attributes.get(name).unwrap_or(&Value::Null)
    }
}

/// The program, if `tests/tracing/install.sh` has built it from the current sources.
fn program() -> Option<PathBuf> {
    const STAMP: &str = concat!(
        include_str!("../tracing/receiver/go.mod"),
        include_str!("../tracing/receiver/main.go")
    );
    let cache = env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty());
    let cache = cache.map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    let home = cache.join("crossfade/tracing");
    let stamp = fs::read_to_string(home.join("stamp")).unwrap_or_default();
    (stamp == STAMP).then(|| home.join("receiver"))
}

impl Collector {
    /// Starts a collector on a free port. Without the program, prints a prominent note and leaves it for the end of `make
    /// test`.
    ///
    /// # Panics
    /// If it does not come up.
    pub async fn start() -> Option<Self> {
        Self::start_at("127.0.0.1:0").await
    }

    /// Like [`Self::start`], on this address.
    pub async fn start_at(address: &str) -> Option<Self> {
        let grpc = Receiver {
            protocol: "grpc",
            tls: None,
        };
        Self::start_as(grpc, address).await
    }

    /// Like [`Self::start_at`], as this receiver.
    pub async fn start_as(receiver: Receiver<'_>, address: &str) -> Option<Self> {
        let Receiver { protocol, tls } = receiver;
        let skipped = Path::new(env!("CARGO_TARGET_TMPDIR")).join("traces-skipped");
        let Some(program) = program() else {
            let note =
                "SKIPPED: traces to a real collector: run tests/tracing/install.sh, which needs Go";
            eprintln!("{note}");
            fs::write(skipped, format!("{note}\n")).unwrap();
            return None;
        };
        let _ = fs::remove_file(skipped);
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("spans.json");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let tls = tls.map_or_else(String::new, |(authority, files)| {
            format!(
                ", tls: {{cert_file: '{}', key_file: '{}', client_ca_file: '{}'}}",
                files.cert(),
                files.key(),
                authority.file()
            )
        });
        let settings = format!(
            "{{receivers: {{otlp: {{protocols: {{{protocol}: {{endpoint: '{address}'{tls}}}}}}}}}, \
              exporters: {{file: {{path: '{}', flush_interval: 20ms}}}}, \
              service: {{telemetry: {{metrics: {{level: none}}}}, \
                pipelines: {{traces: {{receivers: [otlp], exporters: [file]}}}}}}}}",
            file.display()
        );
        let mut command = Command::new(program);
        command
            .args(["--config", &format!("yaml:{settings}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // So that it also dies when the test process is killed.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, listening) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut sender = Some(sender);
            for line in lines.map_while(Result::ok) {
                if let Some(address) = listens(&line)
                    && let Some(sender) = sender.take()
                {
                    let _ = sender.send(address);
                }
            }
        });
        let address = super::wait::within("the collector listens", listening).await;
        Some(Self {
            child,
            directory,
            address: address.expect("the collector says where it listens"),
            scheme,
        })
    }

    /// The URL for `--otlp-endpoint`.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        let text = fs::read_to_string(self.directory.path().join("spans.json"));
        let text = text.unwrap_or_default();
        // The last line may be incomplete.
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        lines
            .flat_map(|line| spans(&serde_json::from_str(line).unwrap()))
            .collect()
    }

    /// Waits for the spans of `count` exchanges.
    pub async fn exchanges(&self, count: usize) -> Vec<Span> {
        until("the spans of exchanges arrive", async || {
            let spans = self.spans();
            let servers = spans.iter().filter(|span| span.is_server()).count();
            (servers >= count).then_some(spans)
        })
        .await
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the log line that announces the listener.
fn listens(line: &str) -> Option<SocketAddr> {
    let announces = line.contains("Starting GRPC server") || line.contains("Starting HTTP server");
    let fields = announces.then(|| line.find('{'))??;
    let fields: Value = serde_json::from_str(&line[fields..]).ok()?;
    fields["endpoint"].as_str()?.parse().ok()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The spans of one message (OTLP in JSON, where 64-bit numbers are strings).
fn spans(message: &Value) -> Vec<Span> {
    let mut found = Vec::new();
    for of_resource in list(&message["resourceSpans"]) {
        let resource = attributes(&of_resource["resource"]["attributes"]);
        let scopes = list(&of_resource["scopeSpans"]);
        for span in scopes.flat_map(|scope| list(&scope["spans"])) {
            let text = |name: &str| span[name].as_str().unwrap_or_default().to_owned();
            let events = list(&span["events"]);
            found.push(Span {
                trace: text("traceId"),
                id: text("spanId"),
                parent: text("parentSpanId"),
                state: text("traceState"),
                name: text("name"),
                kind: span["kind"].as_u64().unwrap(),
                start: nanoseconds(&span["startTimeUnixNano"]),
                end: nanoseconds(&span["endTimeUnixNano"]),
                attributes: attributes(&span["attributes"]),
                events: events
                    .map(|event| {
                        let name = event["name"].as_str().unwrap().to_owned();
                        (name, nanoseconds(&event["timeUnixNano"]))
                    })
                    .collect(),
                status: span["status"]["code"].as_u64().unwrap_or(0),
                message: span["status"]["message"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                resource: resource.clone(),
            });
        }
    }
    found
}

fn nanoseconds(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

fn attributes(value: &Value) -> BTreeMap<String, Value> {
    list(value)
        .map(|attribute| {
            let value = &attribute["value"];
            let number = |text: &Value| text.as_str().unwrap().parse::<i64>().unwrap().into();
            let value = value
                .as_object()
                .unwrap()
                .iter()
                .next()
                .map(|(kind, value)| match kind.as_str() {
                    "intValue" => number(value),
                    _ => value.clone(),
                });
            (
                attribute["key"].as_str().unwrap().to_owned(),
                value.unwrap(),
            )
        })
        .collect()
}
