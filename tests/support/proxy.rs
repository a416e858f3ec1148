//! The program as a process: its ports, its output, its metrics, and how it ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{self, Client, Response};
use super::upstream::Upstream;
use super::wait::{PATIENCE, eventually, until};

/// A running proxy. Killed when dropped; if the test is panicking, its output is printed.
pub struct Proxy {
    child: Child,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    stdout: Arc<Mutex<Vec<String>>>,
    reading: Arc<(Mutex<Reading>, Condvar)>,
    stderr: Arc<Mutex<String>>,
}

/// What happens to the lines that a proxy writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// They are read.
    On,
    /// They stay in the pipe, until it is full and the proxy's writes block.
    Stopped,
    /// The pipe is closed after one more line.
    Closed,
}

/// The metric of requests that were recovered by another attempt.
pub const RECOVERED: &str = "crossfade_recovered_requests_total";

/// Flags of a proxy in a test, unless the test sets them.
const DEFAULTS: [(&str, &str); 6] = [
    ("--listen", "127.0.0.1:0"),
    ("--admin", "127.0.0.1:0"),
    ("--threads", "1"),
    ("--settle", "0"),
    ("--log-format", "json"),
    ("--log", "info"),
];

/// The program, without any of the test's environment that it could use as its own configuration.
pub fn program() -> Command {
    program_at(env!("CARGO_BIN_EXE_crossfade").as_ref())
}

/// Like [`program`], for another build.
fn program_at(path: &Path) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CROSSFADE_") || text.starts_with("OTEL_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs the program to its end.
pub fn run(args: &[&str]) -> Output {
    run_with_env(args, &[])
}

/// Like [`run`], with additional environment.
pub fn run_with_env(args: &[&str], env: &[(&str, &str)]) -> Output {
    let child = program()
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    // Reads while it waits, because a program blocks if it prints more than a pipe holds.
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    if let Ok(output) = receiver.recv_timeout(PATIENCE) {
        return output.unwrap();
    }
    unsafe { libc::kill(pid, libc::SIGKILL) };
    panic!("does not end: {args:?}: {:?}", receiver.recv());
}

/// Everything that a program has printed.
pub fn output_text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(all).unwrap()
}

impl Proxy {
    /// Starts a proxy between two servers, with `percent` of the requests to the new one.
    pub async fn split(old: &Upstream, new: &Upstream, percent: u8) -> Self {
        Self::split_with(old, new, percent, &[]).await
    }

    /// Like [`Self::split`], with additional flags.
    pub async fn split_with(old: &Upstream, new: &Upstream, percent: u8, more: &[&str]) -> Self {
        let (old, new, percent) = (old.url(), new.url(), percent.to_string());
        let mut args = vec!["--old", &old, "--new", &new, "--split", &percent];
        args.extend(more);
        Self::start(&args).await
    }

    /// Starts a proxy in front of one server, which gets all requests.
    pub async fn before(old: &Upstream, more: &[&str]) -> Self {
        Self::before_url(&old.url(), more).await
    }

    /// Like [`Self::before`], for a server that is not an [`Upstream`].
    pub async fn before_url(old: &str, more: &[&str]) -> Self {
        // Nothing listens on the discard port.
        let mut args = vec!["--old", old, "--new", "127.0.0.1:9", "--split", "0"];
        args.extend(more);
        Self::start(&args).await
    }

    /// Starts a proxy in front of an old server, with the plan from a file.
    pub async fn planned(old: &Upstream, plan: &super::PlanFile, more: &[&str]) -> Self {
        let (old, plan) = (old.url(), plan.as_str());
        let mut args = vec!["--old", &old, "--plan", &plan];
        args.extend(more);
        Self::start(&args).await
    }

    /// Starts a proxy with these flags, and the test defaults for all others.
    pub async fn start(args: &[&str]) -> Self {
        Self::start_with_env(args, &[]).await
    }

    /// Like [`Self::start`], with additional environment. A variable that it sets replaces the default flag.
    pub async fn start_with_env(args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::start_of(env!("CARGO_BIN_EXE_crossfade").as_ref(), args, env).await
    }

    /// Like [`Self::start_with_env`], for another build of the program.
    pub async fn start_of(program: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = program_at(program);
        command.arg("proxy");
        let given = |flag: &str| {
            let name = format!("CROSSFADE_{}", flag[2..].replace('-', "_").to_uppercase());
            args.contains(&flag) || env.iter().any(|(known, _)| *known == name)
        };
        for (flag, value) in DEFAULTS {
            if !given(flag) {
                command.args([flag, value]);
            }
        }
        command.args(args).envs(env.iter().copied());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // So that it also dies when the test process is killed.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let stdout = Arc::new(Mutex::new(Vec::new()));
        let reading = Arc::new((Mutex::new(Reading::On), Condvar::new()));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn({
            let (stdout, reading) = (stdout.clone(), reading.clone());
            move || {
                for line in lines.map_while(Result::ok) {
                    stdout.lock().unwrap().push(line);
                    let (wanted, changed) = &*reading;
                    let wanted = wanted.lock().unwrap();
                    let wanted = changed
                        .wait_while(wanted, |wanted| *wanted == Reading::Stopped)
                        .unwrap();
                    if *wanted == Reading::Closed {
                        return;
                    }
                }
            }
        });
        let stderr = Arc::new(Mutex::new(String::new()));
        let mut pipe = child.stderr.take().unwrap();
        std::thread::spawn({
            let stderr = stderr.clone();
            move || {
                let mut chunk = [0; 4096];
                while let Ok(count @ 1..) = pipe.read(&mut chunk) {
                    let text = String::from_utf8_lossy(&chunk[..count]);
                    stderr.lock().unwrap().push_str(&text);
                }
            }
        });
        let mut proxy = Self {
            child,
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            admin: SocketAddr::from(([0, 0, 0, 0], 0)),
            stdout,
            reading,
            stderr,
        };
        (proxy.address, proxy.admin) = until("the proxy says `serving`", async || {
            if let Some(status) = proxy.child.try_wait().unwrap() {
                panic!("{status}: {}", proxy.stderr());
            }
            proxy.lines().iter().find_map(|line| addresses(line))
        })
        .await;
        proxy
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The lines written so far.
    pub fn lines(&self) -> Vec<String> {
        self.stdout.lock().unwrap().clone()
    }

    /// Continues or stops reading its lines, or closes the pipe.
    pub fn read(&self, reading: Reading) {
        *self.reading.0.lock().unwrap() = reading;
        self.reading.1.notify_all();
    }

    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// The fields of each access line so far.
    pub fn access(&self) -> Vec<Value> {
        self.lines()
            .iter()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["target"] == "access")
            .map(|mut line| match line["fields"].take() {
                Value::Null => line,
                fields => fields,
            })
            .collect()
    }

    /// Waits for the `n`-th access line, counted from 1.
    pub async fn access_line(&self, n: usize) -> Value {
        until("an access line", async || {
            self.access().into_iter().nth(n - 1)
        })
        .await
    }

    /// GET on the admin port.
    pub async fn admin(&self, path: &str) -> Response {
        let mut client = Client::connect(self.admin).await;
        let host = self.admin.to_string();
        let headers = [("host", &*host), ("connection", "close")];
        client.get(path, &headers).await;
        client.response().await
    }

    /// The text of `/plan`, so that tests can search all of it.
    pub async fn plan(&self) -> String {
        let response = self.admin("/plan").await;
        assert_eq!(response.status, 200);
        response.json();
        response.text()
    }

    pub async fn metrics(&self) -> Metrics {
        let response = self.admin("/metrics").await;
        assert_eq!(response.status, 200);
        Metrics::parse(&response.text())
    }

    /// Waits until the series of `name` with these labels add up to `value`.
    pub async fn counts(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let metrics = self.metrics().await;
            let sum = metrics.sum(name, labels);
            if sum == value {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{name}{labels:?} is {sum}, not {value}: {:#?}",
                metrics.of(name)
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until `count` exchanges have ended with this outcome.
    pub async fn outcomes(&self, outcome: &str, count: u32) {
        let labels = [("outcome", outcome)];
        self.counts("crossfade_requests_total", &labels, count.into())
            .await;
    }

    /// How many requests with these labels it has recovered so far.
    pub async fn recovered(&self, labels: &[(&str, &str)]) -> f64 {
        self.metrics().await.sum(RECOVERED, labels)
    }

    /// Waits until it has recovered `count` requests with these labels.
    pub async fn recovers(&self, labels: &[(&str, &str)], count: f64) {
        self.counts(RECOVERED, labels, count).await;
    }

    /// One streaming chat through the proxy.
    pub async fn chat(&self) -> Response {
        client::chat(self.address).await
    }

    /// Sends chats until one is served by `generation`.
    pub async fn serves(&self, generation: &str) {
        eventually(&format!("{generation} serves"), async || {
            self.chat().await.generation() == generation
        })
        .await;
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Stops the process for `time`, and calls `meanwhile` once it has stopped.
    pub async fn stand_still(&self, time: Duration, meanwhile: impl FnOnce()) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        eventually("it stops", async || {
            std::fs::read_to_string(&stat).unwrap().contains(") T ")
        })
        .await;
        meanwhile();
        // The process must be stopped for this long, so there is no condition to wait for.
        tokio::time::sleep(time).await;
        self.signal(libc::SIGCONT);
    }

    /// Limits its file descriptors to numbers below this one, or to its hard limit. Open descriptors are not affected.
    pub fn limit_descriptors(&self, below: Option<u64>) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        let prlimit = |new: *const libc::rlimit, old: *mut libc::rlimit| unsafe {
            libc::prlimit(pid, libc::RLIMIT_NOFILE, new, old)
        };
        assert_eq!(prlimit(std::ptr::null(), &raw mut limit), 0);
        limit.rlim_cur = below.unwrap_or(limit.rlim_max);
        assert_eq!(prlimit(&raw const limit, std::ptr::null_mut()), 0);
    }

    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    /// The exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end. Returns the exit status, or `None` if a signal killed it.
    pub async fn end(&mut self) -> Option<i32> {
        let status = until("the proxy ends", async || self.child.try_wait().unwrap()).await;
        assert!(!status.core_dumped(), "{status}");
        status.code()
    }

    /// Processor time used so far.
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
        let ticks: u64 = fields
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse::<u64>().unwrap())
            .sum();
        // `CLK_TCK` is 100 on every Linux.
        Duration::from_millis(ticks * 10)
    }

    /// Its resident memory, in bytes.
    pub fn memory(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    /// Its peak resident memory, in bytes.
    pub fn memory_peak(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    /// The part of its memory that is pages of files, above all of its program, in bytes.
    pub fn memory_of_files(&self) -> u64 {
        self.status_bytes("RssFile:")
    }

    fn status_bytes(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib * 1024
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.read(Reading::Closed);
        if std::thread::panicking() {
            let lines = self.lines();
            for line in &lines[lines.len().saturating_sub(40)..] {
                eprintln!("proxy: {line}");
            }
            eprintln!("proxy: {}", self.stderr());
        }
    }
}

/// The addresses in a `serving` line, in text or JSON.
fn addresses(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    if !line.contains("serving") {
        return None;
    }
    let value = |name: &str| {
        let rest = &line[line
            .find(&format!("{name}="))
            .or_else(|| line.find(&format!("\"{name}\":")))?..];
        let rest = rest.trim_start_matches(['"', '=', ':']);
        let rest = rest
            .strip_prefix(name)?
            .trim_start_matches(['"', '=', ':', ' ']);
        let end = rest.find(['"', ' ', ',', '}']).unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    Some((value("listen")?, value("admin")?))
}

/// One scrape.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Name, labels, value.
    pub series: Vec<(String, BTreeMap<String, String>, f64)>,
    pub text: String,
}

impl Metrics {
    /// # Panics
    /// If the text is not in Prometheus' text format.
    pub fn parse(text: &str) -> Self {
        let series = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(|line| {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                let (name, labels) = match series.split_once('{') {
                    None => (series, BTreeMap::new()),
                    Some((name, labels)) => {
                        let labels = labels.strip_suffix('}').expect("labels end");
                        let labels = labels.split("\",").filter(|label| !label.is_empty());
                        let labels = labels.map(|label| {
                            let (name, value) = label.split_once("=\"").expect("a label");
                            (name.to_owned(), value.trim_end_matches('"').to_owned())
                        });
                        (name, labels.collect())
                    }
                };
                (name.to_owned(), labels, value.parse().expect("a number"))
            })
            .collect();
        Self {
            series,
            text: text.to_owned(),
        }
    }

    /// The series of a name.
    pub fn of(&self, name: &str) -> Vec<(&BTreeMap<String, String>, f64)> {
        self.series
            .iter()
            .filter(|(known, _, _)| known == name)
            .map(|(_, labels, value)| (labels, *value))
            .collect()
    }

    /// The sum over the series of a name that have all these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.of(name)
            .iter()
            .filter(|(known, _)| {
                labels
                    .iter()
                    .all(|(name, value)| known.get(*name).is_some_and(|known| known == value))
            })
            .map(|(_, value)| value)
            .sum()
    }

    pub fn has(&self, name: &str) -> bool {
        self.series.iter().any(|(known, _, _)| known == name)
    }
}
