//! Real Dynamo for tests: stacks of one frontend and its workers, each in its own process, on loopback only, with a discovery
//! directory that no other stack sees.
//!
//! Starts these processes, injects faults, stops them, and reads what they wrote. Does not depend on the proxy.
//! `tests/dynamo/install.sh` installs Dynamo. `tests/dynamo/worker.py` describes the commands that a prompt can give to a
//! scripted worker.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, fs, io, iter, thread};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

// The path is explicit because test files include this one with `#[path]`.
#[path = "dynamo/process.rs"]
pub mod process;

/// The default model of a stack.
pub const MODEL: &str = "tiny";

/// How long a condition may take to become true.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// The files that `tests/dynamo/install.sh` installed.
#[derive(Debug, Clone)]
pub struct Dynamo {
    pub python: PathBuf,
    pub model: PathBuf,
}

/// Where `tests/dynamo/install.sh` installs.
pub fn home() -> PathBuf {
    let chosen = env::var_os("CROSSFADE_DYNAMO").map(PathBuf::from);
    let default = || {
        let cache = env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty());
        let cache = cache.map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
        Some(cache?.join("crossfade/dynamo"))
    };
    let home = chosen.or_else(default);
    home.expect("HOME, XDG_CACHE_HOME or CROSSFADE_DYNAMO is set")
}

impl Dynamo {
    /// Finds the installation.
    ///
    /// # Panics
    /// If there is none, or if its versions differ from those that this source tree requires.
    pub fn install() -> Self {
        const STAMP: &str = concat!(
            include_str!("../dynamo/requirements.txt"),
            include_str!("../dynamo/tiny_model.py")
        );
        let home = home();
        let stamp = fs::read_to_string(home.join("stamp")).unwrap_or_default();
        assert!(
            stamp == STAMP,
            "Dynamo is not installed in {} in the wanted versions: run `make test`, or tests/dynamo/install.sh",
            home.display()
        );
        Self {
            python: home.join("venv/bin/python"),
            model: home.join("model"),
        }
    }
}

/// The kind of model that a worker simulates.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `tests/dynamo/worker.py`: known words, and faults on command.
    Scripted,
    /// Dynamo's own mocker: random words, realistic timing. Every request needs `max_tokens`. About 175 tokens per second and
    /// stream, multiplied by `speedup`, which must not be 0.
    Mocker { speedup: f64 },
}

/// The options of a stack. The default has one scripted worker.
#[derive(Debug, Clone)]
pub struct Options {
    pub kind: Kind,
    pub workers: usize,
    /// The name of the model.
    pub model: String,
    /// The chat template of the model instead of its own.
    pub template: Option<&'static str>,
    /// Additional arguments of `dynamo.frontend`, such as `--migration-limit`.
    pub frontend_args: Vec<String>,
    /// Additional arguments of the workers.
    pub worker_args: Vec<String>,
    /// Additional environment of all processes, such as `DYN_HTTP_BODY_LIMIT_MB`.
    pub env: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: Kind::Scripted,
            workers: 1,
            model: MODEL.to_owned(),
            template: None,
            frontend_args: Vec::new(),
            worker_args: Vec::new(),
            env: Vec::new(),
        }
    }
}

/// A copy of `model` below `directory`, with this chat template.
fn with_template(model: &Path, template: &str, directory: &Path) -> PathBuf {
    let copy = directory.join("model");
    fs::create_dir(&copy).expect("a directory for the model");
    for file in fs::read_dir(model).expect("the installed model") {
        let file = file.expect("its files");
        fs::copy(file.path(), copy.join(file.file_name())).expect("a copy");
    }
    let path = copy.join("tokenizer_config.json");
    let config = fs::read_to_string(&path).expect("the tokenizer's configuration");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["chat_template"] = template.into();
    fs::write(&path, config.to_string()).expect("it is written");
    copy
}

/// A frontend and its workers. Dropping it kills them all; if the test is panicking, their logs are printed and kept. They also
/// die with the test process, however that ends.
#[derive(Debug)]
pub struct Stack {
    dynamo: Dynamo,
    name: String,
    namespace: String,
    options: Options,
    address: SocketAddr,
    directory: TempDir,
    frontend: Option<Child>,
    workers: Vec<Child>,
}

impl Stack {
    /// Starts a stack and returns once it serves; without workers, once its frontend responds. `name` is the prefix of the
    /// words of scripted workers (`old:0 old:1 …`), `namespace` is Dynamo's (`dynamo-v1`).
    ///
    /// # Panics
    /// If Dynamo is not installed or does not come up.
    pub async fn start(name: &str, namespace: &str, options: Options) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("crossfade-dynamo-")
            .tempdir()
            .expect("a directory for the stack");
        let mut dynamo = Dynamo::install();
        if let Some(template) = options.template {
            dynamo.model = with_template(&dynamo.model, template, directory.path());
        }
        let mut stack = Self {
            dynamo,
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            options,
            address: process::free_address(),
            directory,
            frontend: None,
            workers: Vec::new(),
        };
        stack.spawn_frontend();
        for _ in 0..stack.options.workers {
            stack.spawn_worker();
        }
        let mut tries = 1;
        while !stack.frontend_answers().await {
            assert!(tries < 3, "the frontend of {} does not come up", stack.name);
            tries += 1;
            // Another process took the port first.
            stack.address = process::free_address();
            stack.spawn_frontend();
        }
        stack.wait_workers(stack.options.workers).await;
        stack
    }

    /// `http://127.0.0.1:PORT`, constant for the life of the stack.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address of the frontend.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The complete text of a scripted worker that says this many words.
    pub fn text(&self, words: usize) -> String {
        let words: Vec<_> = (0..words)
            .map(|index| format!("{}:{index}", self.name))
            .collect();
        words.join(" ")
    }

    /// How many workers were started.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// Kills the worker with SIGKILL and waits for its end. Its number is not reused.
    pub fn kill_worker(&mut self, number: usize) {
        process::end(&mut self.workers[number]);
    }

    /// Sends SIGTERM: the worker deregisters, completes what is in flight and exits; see [`Self::worker_exit`].
    pub fn term_worker(&self, number: usize) {
        process::signal(&self.workers[number], libc::SIGTERM);
    }

    /// Sends SIGSTOP: the worker stays silent until [`Self::resume_worker`].
    pub fn pause_worker(&self, number: usize) {
        process::signal(&self.workers[number], libc::SIGSTOP);
    }

    /// Sends SIGUSR2: the streams that hang after `hang_after` words go on.
    pub fn release_worker(&self, number: usize) {
        process::signal(&self.workers[number], libc::SIGUSR2);
    }

    /// Sends SIGCONT. After a pause of more than about ten seconds the worker has lost its lease for good.
    pub fn resume_worker(&self, number: usize) {
        process::signal(&self.workers[number], libc::SIGCONT);
    }

    /// Waits for the worker to exit.
    pub async fn worker_exit(&mut self, number: usize) -> ExitStatus {
        let status = process::exit(&mut self.workers[number], PATIENCE).await;
        status.unwrap_or_else(|| {
            panic!(
                "worker {number} of {} does not exit\n{}",
                self.name,
                self.logs()
            )
        })
    }

    /// Starts another worker, and returns its number once the frontend serves with it.
    ///
    /// Beware: until the lease of a killed worker expires, some ten seconds after its death, the frontend still tries it in
    /// turn and responds with 503.
    pub async fn start_worker(&mut self) -> usize {
        let known = self.instances().await;
        let number = self.spawn_worker();
        self.wait("one more worker", async |stack| {
            !stack.instances().await.is_subset(&known) && stack.is_ready().await
        })
        .await;
        number
    }

    /// Kills the frontend with SIGKILL and waits for its end.
    pub fn kill_frontend(&mut self) {
        process::end(self.frontend.as_mut().expect("the frontend was started"));
    }

    /// Sends SIGTERM: the frontend rejects new requests and completes what is in flight; see [`Self::frontend_exit`].
    pub fn term_frontend(&self) {
        let frontend = self.frontend.as_ref().expect("the frontend was started");
        process::signal(frontend, libc::SIGTERM);
    }

    /// Waits for the frontend to exit.
    pub async fn frontend_exit(&mut self) -> ExitStatus {
        let frontend = self.frontend.as_mut().expect("the frontend was started");
        let status = process::exit(frontend, PATIENCE).await;
        status.unwrap_or_else(|| {
            panic!(
                "the frontend of {} does not exit\n{}",
                self.name,
                self.logs()
            )
        })
    }

    /// Starts the frontend again on the same address, and returns once it serves.
    pub async fn start_frontend(&mut self) {
        self.spawn_frontend();
        self.wait_ready().await;
    }

    /// Does the frontend list the model? (Its `/health` says "healthy" even without workers.)
    pub async fn is_ready(&self) -> bool {
        let answer = self.get("/v1/models").await;
        answer.is_ok_and(|(_, body)| body.contains(&format!("\"id\":\"{}\"", self.options.model)))
    }

    /// Waits until the frontend lists the model.
    pub async fn wait_ready(&self) {
        self.wait("the model", async |stack| stack.is_ready().await)
            .await;
    }

    /// Waits until the frontend no longer lists a model.
    pub async fn wait_empty(&self) {
        self.wait("an empty list of models", async |stack| {
            let answer = stack.get("/v1/models").await;
            answer.is_ok_and(|(_, body)| body.contains(r#""data":[]"#))
        })
        .await;
    }

    /// Waits until the frontend serves with this many workers, including dead ones whose lease (about ten seconds) has not
    /// expired.
    pub async fn wait_workers(&self, count: usize) {
        self.wait(&format!("{count} workers"), async |stack| {
            stack.instances().await.len() == count && (count == 0 || stack.is_ready().await)
        })
        .await;
    }

    /// The lines that the scripted workers have written: `started TAG`, `finished TAG WORDS`, `cancelled TAG WORDS`, `failed
    /// TAG WORDS`.
    pub fn events(&self) -> Vec<String> {
        let events = fs::read_to_string(self.directory.path().join("events")).unwrap_or_default();
        events.lines().map(str::to_owned).collect()
    }

    /// Waits for the first such line that starts with these words (`cancelled a7`), and returns it.
    pub async fn wait_event(&self, start: &str) -> String {
        let with_space = format!("{start} ");
        let find = |stack: &Self| {
            let mut events = stack.events().into_iter();
            events.find(|line| line == start || line.starts_with(&with_space))
        };
        self.wait(&format!("the event `{start}`"), async |stack| {
            find(stack).is_some()
        })
        .await;
        find(self).expect("the line exists, and the file only grows")
    }

    /// Status and body of a GET to the frontend.
    ///
    /// # Errors
    /// If it cannot be reached or does not speak HTTP.
    pub async fn get(&self, path: &str) -> io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(self.address).await?;
        // With HTTP/1.0 the body is not chunked and ends with the connection.
        let request = format!("GET {path} HTTP/1.0\r\nhost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .ok_or(io::ErrorKind::InvalidData)?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
    }

    /// The last lines of each process's log.
    pub fn logs(&self) -> String {
        const LINES: usize = 40;
        let workers = (0..self.workers.len()).map(|number| format!("worker-{number}.log"));
        let names = iter::once("frontend.log".to_owned()).chain(workers);
        let tail = |name: String| {
            let path = self.directory.path().join(name);
            let text = fs::read(&path).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().collect();
            let lines = &lines[lines.len().saturating_sub(LINES)..];
            format!("--- {}\n{}\n", path.display(), lines.join("\n"))
        };
        names.map(tail).collect()
    }

    async fn wait(&self, what: &str, mut condition: impl AsyncFnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self).await {
            assert!(
                Instant::now() < deadline,
                "waited {PATIENCE:?} in vain for {what} of {} at {}",
                self.name,
                self.address
            );
            sleep(POLL).await;
        }
    }

    /// The worker instances that the frontend knows; none if it does not respond.
    async fn instances(&self) -> BTreeSet<u64> {
        let Ok((_, body)) = self.get("/health").await else {
            return BTreeSet::new();
        };
        let health: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
        let instances = health["instances"].as_array().into_iter().flatten();
        instances
            .filter(|instance| instance["endpoint"] == "generate")
            .filter_map(|instance| instance["instance_id"].as_u64())
            .collect()
    }

    /// Waits until the frontend responds. Returns false if it exits or does not respond in time.
    async fn frontend_answers(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let frontend = self.frontend.as_mut().expect("the frontend was started");
            if frontend.try_wait().expect("our own child").is_some() {
                return false;
            }
            if self
                .get("/live")
                .await
                .is_ok_and(|(status, _)| status == 200)
            {
                return true;
            }
            sleep(POLL).await;
        }
        false
    }

    fn spawn_frontend(&mut self) {
        let mut command = self.command("frontend.log");
        command
            .args(["-m", "dynamo.frontend", "--enable-anthropic-api"])
            .args(["--http-host", &self.address.ip().to_string()])
            .args(["--http-port", &self.address.port().to_string()])
            .args(["--namespace", &self.namespace])
            .args([
                "--discovery-backend",
                "file",
                "--router-mode",
                "round-robin",
            ])
            .args(&self.options.frontend_args);
        self.frontend = Some(process::spawn(command));
    }

    fn spawn_worker(&mut self) -> usize {
        let number = self.workers.len();
        let mut command = self.command(&format!("worker-{number}.log"));
        match self.options.kind {
            Kind::Scripted => command
                .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dynamo/worker.py"))
                .args(["--namespace", &self.namespace, "--name", &self.name])
                .arg("--events")
                .arg(self.directory.path().join("events"))
                .args(&self.options.worker_args),
            Kind::Mocker { speedup } => command
                .args(["-m", "dynamo.mocker", "--discovery-backend", "file"])
                .arg("--endpoint")
                .arg(format!("dyn://{}.backend.generate", self.namespace))
                .args(["--speedup-ratio", &speedup.to_string()])
                .args(&self.options.worker_args),
        };
        command
            .args(["--model-name", &self.options.model, "--model-path"])
            .arg(&self.dynamo.model);
        self.workers.push(process::spawn(command));
        number
    }

    /// Python, with everything that isolates a process of the stack.
    fn command(&self, log: &str) -> Command {
        let directory = self.directory.path();
        let file = |name: &str| directory.join(name).display().to_string();
        let log = File::options()
            .create(true)
            .append(true)
            .open(directory.join(log));
        let log = log.expect("a log in the directory of the stack");
        let errors = log.try_clone().expect("one more handle");
        let mut command = Command::new(&self.dynamo.python);
        command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .current_dir(directory)
            .env("HOME", directory)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONUNBUFFERED", "1")
            .env("HF_HUB_OFFLINE", "1")
            .env("DYN_SDK_DISABLE_ANSI_LOGGING", "1")
            .env("DYN_NAMESPACE", &self.namespace)
            .env("DYN_DISCOVERY_BACKEND", "file")
            .env("DYN_FILE_KV", directory.join("discovery"))
            .env("DYN_SELF_HOST_METADATA", "0")
            .env("DYN_SYSTEM_HOST", "127.0.0.1")
            .env("DYN_REQUEST_PLANE", "tcp")
            .env("DYN_RESPONSE_PLANE", "tcp")
            .env("DYN_TCP_RPC_HOST", "127.0.0.1")
            .env("DYN_TCP_RESPONSE_STREAM_HOST", "127.0.0.1")
            // Without a broker each worker would listen on 0.0.0.0 for subscribers to its events; with one it only connects. No
            // broker runs there, and round-robin needs no events.
            .env("DYN_EVENT_PLANE", "zmq")
            .env(
                "DYN_ZMQ_BROKER_URL",
                format!("xsub=ipc://{} , xpub=ipc://{}", file("xsub"), file("xpub")),
            )
            .envs(self.options.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for child in self.frontend.iter_mut().chain(&mut self.workers) {
            process::end(child);
        }
        if thread::panicking() {
            eprintln!("stack {} at {}\n{}", self.name, self.address, self.logs());
            self.directory.disable_cleanup(true);
        }
    }
}
