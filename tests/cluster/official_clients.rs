//! Clients with the official library.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::dynamo::{Dynamo, MODEL};

const CLIENTS: usize = 2;
/// Rounds of requests of each process. A round has one request of each kind, streaming and unary.
const ROUNDS: &str = "20";

/// Runs `tests/openai/client.py` again and again. It does not retry and checks that each text is complete and of one generation.
pub struct OfficialClients {
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl OfficialClients {
    pub fn start(address: SocketAddr) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let client = || {
            let stopped = stopped.clone();
            std::thread::spawn(move || {
                let mut requests = 0;
                while !stopped.load(Ordering::Relaxed) {
                    requests += run(address);
                }
                requests
            })
        };
        let threads = (0..CLIENTS).map(|_| client()).collect();
        Self { stopped, threads }
    }

    /// Waits until the processes have ended, and returns the number of responses.
    ///
    /// # Panics
    /// If a request failed.
    pub fn finish(self) -> u64 {
        self.stopped.store(true, Ordering::Relaxed);
        let requests = { self.threads.into_iter() }.map(|thread| {
            let requests = thread.join();
            requests.expect("no request failed")
        });
        requests.sum()
    }
}

/// Runs one process, and returns the number of responses.
fn run(address: SocketAddr) -> u64 {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai/client.py");
    let mut command = Command::new(Dynamo::install().python);
    command
        .args([program, &format!("http://{address}"), MODEL, ROUNDS])
        .stdin(Stdio::null());
    let output = command.output().expect("Python starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let generations = summary["total"].as_object().expect("counts");
    generations.values().filter_map(Value::as_u64).sum()
}
