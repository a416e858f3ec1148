//! A real API server with the resource definitions, and manifests for it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};

/// A real API server that stops with the test process, when its standard input is closed.
pub struct Server {
    _child: Child,
    /// The environment with which commands reach it.
    environment: Vec<(String, String)>,
}

/// Whether `kubectl` succeeded, and its output including errors.
pub type CommandResult = (bool, String);

impl Server {
    fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/cluster.sh");
        let mut child = Command::new(script)
            .args(["api", "sh", "-c", "env; echo ready; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("tests/kubernetes/cluster.sh runs");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut environment = Vec::new();
        loop {
            let line = lines.next();
            let line = line.expect("no API server: see above for what is missing");
            match line.unwrap() {
                line if line == "ready" => break,
                line => environment.extend(
                    line.split_once('=')
                        .map(|(name, value)| (name.to_owned(), value.to_owned())),
                ),
            }
        }
        let server = Self {
            environment,
            _child: child,
        };
        let (good, text) = server.kubectl(
            &[
                "apply",
                "-f",
                concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd/crd.yaml"),
            ],
            "",
        );
        assert!(good && !text.contains("Warning"), "{text}");
        let established = [
            "wait",
            "--for=condition=Established",
            "crd/dynamoupdateconfigs.nvidia.com",
            "crd/dynamorollouts.nvidia.com",
            "--timeout=30s",
        ];
        server.good(&established, "");
        server
    }

    pub fn kubectl(&self, args: &[&str], input: &str) -> CommandResult {
        let mut child = self
            .command("kubectl")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn good(&self, args: &[&str], input: &str) -> String {
        let (good, text) = self.kubectl(args, input);
        assert!(good, "{args:?}: {text}");
        text
    }

    pub fn apply(&self, manifest: &Value) -> CommandResult {
        self.kubectl(&["apply", "-f", "-"], &manifest.to_string())
    }

    /// A server-side dry run.
    pub fn tries(&self, manifest: &Value) -> CommandResult {
        self.kubectl(
            &["apply", "--dry-run=server", "-f", "-"],
            &manifest.to_string(),
        )
    }

    /// Runs `pause`, `resume`, `stop` or `start` on it.
    pub fn inject_fault(&self, how: &str) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/cluster.sh");
        let status = self
            .command(script)
            .args(["apiserver", how])
            .status()
            .unwrap();
        assert!(status.success(), "{how}");
    }
}

/// One server for all tests of this file, one test at a time.
pub fn server() -> MutexGuard<'static, Server> {
    static SERVER: Mutex<Option<&'static Mutex<Server>>> = Mutex::new(None);
    let mut known = SERVER
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let server = *known.get_or_insert_with(|| Box::leak(Box::new(Mutex::new(Server::start()))));
    drop(known);
    server
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub fn update(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoUpdateConfig",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

/// A valid spec with `change` merged into it. Null removes a field.
pub fn spec_with(change: &Value) -> Value {
    let mut spec = json!({
        "newFrontendService": "new:8000", "trafficSplitPercent": 25, "sourceDeployment": "old-one",
    });
    for (field, value) in change.as_object().unwrap() {
        match value {
            Value::Null => spec.as_object_mut().unwrap().remove(field),
            value => spec
                .as_object_mut()
                .unwrap()
                .insert(field.clone(), value.clone()),
        };
    }
    spec
}
