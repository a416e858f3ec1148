//! A real headless browser: Chromium, controlled over a pipe with the DevTools protocol.
//!
//! Does not depend on the proxy.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep, timeout};

/// Executable names of Chromium, the headless shell first.
const NAMES: [&str; 5] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
];

/// Timeout for every operation. A browser consists of some ten processes, which start slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A browser with one tab. Killed when dropped.
pub struct Browser {
    child: Child,
    commands: pipe::Sender,
    answers: BufReader<pipe::Receiver>,
    session: Option<String>,
    sent: u64,
    /// The errors that the tab reported: of scripts, of loading, of its policies.
    pub console_errors: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts it. Returns `None`, and prints a note, if Chromium is not installed.
    pub async fn start() -> Option<Self> {
        // Read at the end of `make test`.
        let skipped = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live-page-skipped");
        let _ = std::fs::remove_file(&skipped);
        let Some(program) = NAMES.into_iter().find_map(in_path) else {
            let note = "SKIPPED: the live page in a browser: there is no Chromium: install the package `chromium`\n";
            eprint!("{note}");
            std::fs::write(skipped, note).expect("the build directory can be written");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let (command_reader, command_writer) = std::io::pipe().unwrap();
        let (answer_reader, answer_writer) = std::io::pipe().unwrap();
        let (reads, writes) = (command_reader.as_raw_fd(), answer_writer.as_raw_fd());
        let mut command = Command::new(program);
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--no-first-run",
                "--disable-background-networking",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: only calls that are safe between fork and exec. The copies are made first, because an original may itself be
        // 3 or 4.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let copies = [reads, writes].map(|fd| libc::fcntl(fd, libc::F_DUPFD, 10));
                for (copy, wanted) in copies.into_iter().zip([3, 4]) {
                    if libc::dup2(copy, wanted) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                    libc::close(copy);
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop((command_reader, answer_writer));
        let commands = pipe::Sender::from_file(File::from(OwnedFd::from(command_writer))).unwrap();
        let answers = pipe::Receiver::from_file(File::from(OwnedFd::from(answer_reader))).unwrap();
        let mut browser = Self {
            child,
            commands,
            answers: BufReader::new(answers),
            session: None,
            sent: 0,
            console_errors: Vec::new(),
            _profile: profile,
        };
        let tab = browser
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let target = json!({"targetId": tab["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", target).await;
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        Some(browser)
    }

    /// Opens a page.
    pub async fn open(&mut self, address: &str) {
        let answer = self.call("Page.navigate", json!({"url": address})).await;
        assert_eq!(answer.get("errorText"), None, "{address}");
    }

    /// Evaluates an expression on the page.
    pub async fn value(&mut self, expression: &str) -> Value {
        let wanted = json!({"expression": expression, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", wanted).await;
        assert_eq!(answer.get("exceptionDetails"), None, "{expression}");
        answer["result"]["value"].clone()
    }

    /// The text of the first element that the selector finds; empty if there is none.
    pub async fn text(&mut self, selector: &str) -> String {
        let found = format!(
            "((found) => found?.innerText || found?.textContent || '')(document.querySelector({selector:?}))"
        );
        self.value(&found).await.as_str().unwrap().to_owned()
    }

    /// Waits until `condition` holds for the text of the first element that the selector finds.
    pub async fn until(&mut self, selector: &str, condition: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text(selector).await;
            if condition(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "never: {selector}: {text:?}");
            sleep(POLL).await;
        }
    }

    /// Presses and releases a key, given by its DOM name.
    pub async fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if key == "Enter" && kind == "keyDown" {
                event["text"] = "\r".into();
            }
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Emulates a screen of this width and colour scheme (`light`, `dark`).
    pub async fn emulate_screen(&mut self, width: u32, scheme: &str) {
        let screen =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", screen)
            .await;
        // A screenshot would be cut off by the width of the scroll bars.
        let hidden = json!({"hidden": true});
        self.call("Emulation.setScrollbarsHidden", hidden).await;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media).await;
    }

    /// Writes a screenshot of the whole page to cargo's test directory, for a human to inspect.
    pub async fn picture(&mut self, name: &str) {
        let parameters = json!({"format": "png", "captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", parameters).await;
        let bytes = STANDARD.decode(answer["data"].as_str().unwrap()).unwrap();
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.png"));
        std::fs::write(path, bytes).unwrap();
    }

    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let id = self.sent;
        let mut command = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).await.unwrap();
        loop {
            let mut answer = Vec::new();
            let reading = self.answers.read_until(0, &mut answer);
            let read = timeout(PATIENCE, reading).await;
            read.expect("the browser answers in time").unwrap();
            assert_eq!(answer.pop(), Some(0), "the browser is gone");
            let mut answer: Value = serde_json::from_slice(&answer).unwrap();
            if answer["id"] == id {
                assert_eq!(answer.get("error"), None, "{method}");
                return answer["result"].take();
            }
            self.handle_event(&answer);
        }
    }

    fn handle_event(&mut self, event: &Value) {
        let parameters = &event["params"];
        let error = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => &parameters["exceptionDetails"],
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                &parameters["entry"]
            }
            Some("Runtime.consoleAPICalled") if parameters["type"] == "error" => parameters,
            _ => return,
        };
        self.console_errors.push(error.to_string());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn in_path(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}
