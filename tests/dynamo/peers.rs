//! Third-party programs other than Dynamo: uvicorn and the official clients.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use serde_json::Value;

use crate::dynamo::{Dynamo, home, process};
use crate::rig::client;
use crate::rig::{Family, until};

/// The Python of the environment that `peers.txt` describes.
///
/// # Panics
/// If it is not installed, or has other versions.
fn python() -> PathBuf {
    let home = home();
    let stamp = fs::read_to_string(home.join("peers.stamp")).unwrap_or_default();
    assert!(
        stamp == include_str!("peers.txt"),
        "uvicorn is not installed in {} in the wanted version: run `make test`, or tests/dynamo/install.sh",
        home.display()
    );
    home.join("peers/bin/python")
}

fn file(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dynamo");
    tests.join(name)
}

/// A uvicorn that serves `app.py`.
pub struct Uvicorn {
    child: Child,
    pub address: SocketAddr,
}

impl Uvicorn {
    /// Starts it with this implementation of HTTP/1.1: `h11` or `httptools`.
    pub async fn start(http: &str) -> Self {
        let address = process::free_address();
        let mut command = Command::new(python());
        command
            .args(["-m", "uvicorn", "app:app", "--app-dir"])
            .arg(file(""))
            .args(["--http", http, "--host", &address.ip().to_string()])
            .args(["--port", &address.port().to_string()])
            .args(["--log-level", "warning", "--timeout-keep-alive", "60"])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null());
        let mut child = process::spawn(command);
        until("uvicorn serves", async || {
            assert!(child.try_wait().unwrap().is_none(), "uvicorn ended");
            tokio::net::TcpStream::connect(address).await.ok()
        })
        .await;
        Self { child, address }
    }

    /// The lines that the application has logged, one per request.
    pub async fn seen(&self) -> Vec<String> {
        let text = client::get(self.address, "/seen").await.text();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Uvicorn {
    fn drop(&mut self) {
        process::end(&mut self.child);
    }
}

/// Reads `count` streams with the official client of the family. Returns the ID and the blocks of each.
pub async fn read_streams(
    family: Family,
    address: SocketAddr,
    count: usize,
) -> Vec<(String, Value)> {
    let python = match family {
        Family::Messages => python(),
        _ => Dynamo::install().python,
    };
    let mut command = Command::new(python);
    command
        .arg(file("stream_client.py"))
        .arg(family.class())
        .arg(format!("http://{address}"))
        .arg(count.to_string())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    // In another thread, because the servers of this test run on this one.
    let running = tokio::task::spawn_blocking(move || command.output());
    let output = running.await.unwrap().expect("the client starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("one line of JSON")
}
