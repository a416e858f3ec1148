//! A real Kubernetes for tests: a bare API server beside a test, or a whole cluster around one.
//!
//! Answers for starting, hurting and ending it, and for `kubectl`. Knows nothing of the proxy. What it is made of, and how it
//! comes to be on the machine, stands in `tests/kubernetes/`.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::{env, fs};

use serde_json::Value;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/cluster.sh");

/// Set to `existing`: the scenarios run in the cluster that KUBECONFIG names, from where its Services can be reached.
const WHICH: &str = "CROSSFADE_TEST_CLUSTER";

/// A cluster that can be asked and changed.
#[derive(Debug)]
pub struct Cluster {
    /// Of one that the tests have started: its files, and its logs.
    directory: Option<PathBuf>,
    /// It ends when this one's input does.
    holder: Option<Child>,
}

impl Cluster {
    /// Starts etcd and an API server, nothing else: no pods, no controllers. They end with the value, and with the test.
    ///
    /// # Panics
    /// If they do not come up, or `tests/kubernetes/install.sh` has not run.
    pub fn api_server() -> Self {
        let mut holder = Command::new(SCRIPT)
            .args(["api", "sh", "-c", "echo $CLUSTER_DIR; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the script starts");
        let mut line = String::new();
        let mut said = BufReader::new(holder.stdout.take().expect("it is piped"));
        said.read_line(&mut line).expect("text");
        let directory = PathBuf::from(line.trim_end());
        assert!(
            directory.is_dir(),
            "no API server: what is missing is said above"
        );
        Self {
            directory: Some(directory),
            holder: Some(holder),
        }
    }

    /// The cluster around this test: that of [`run_scenarios`], or one that exists.
    ///
    /// # Panics
    /// If it is not the tests' own and nobody has said that they may use it: they delete what they find.
    pub fn around() -> Self {
        let directory = env::var_os("CLUSTER_DIR").map(PathBuf::from);
        let existing = env::var_os(WHICH).is_some_and(|which| which == "existing");
        assert!(
            directory.is_some() || existing,
            "this deletes all updates of the current namespace: set {WHICH}=existing if it may"
        );
        Self {
            directory,
            holder: None,
        }
    }

    /// Whether it belongs to the tests alone, which may then hurt it and use files of the machine in its pods.
    pub fn is_own(&self) -> bool {
        self.directory.is_some()
    }

    /// The file that says how to reach it as an administrator; none for the environment's own.
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        let directory = self.directory.as_ref()?;
        Some(directory.join("admin.kubeconfig"))
    }

    /// `kubectl`, without arguments.
    pub fn command(&self) -> Command {
        let mut command = match &self.directory {
            Some(directory) => Command::new(directory.join("bin/kubectl")),
            None => Command::new("kubectl"),
        };
        if let Some(kubeconfig) = self.kubeconfig() {
            command.env("KUBECONFIG", kubeconfig);
        }
        command
    }

    /// Runs `kubectl` with this input.
    pub fn try_kubectl(&self, args: &[&str], input: &str) -> Output {
        let mut child = self
            .command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut pipe = child.stdin.take().expect("it is piped");
        let input = input.to_owned();
        let writing = std::thread::spawn(move || pipe.write_all(input.as_bytes()));
        let output = child.wait_with_output().expect("kubectl ends");
        let _ = writing.join();
        output
    }

    /// What `kubectl` prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl_with(args, "")
    }

    /// The same with an input.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> String {
        let output = self.try_kubectl(args, input);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {args:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Applies manifests.
    pub fn apply(&self, manifests: &str) {
        self.kubectl_with(&["apply", "-f", "-"], manifests);
    }

    /// What `kubectl` gets, as JSON.
    pub fn get(&self, args: &[&str]) -> Value {
        let args = [&["get", "-o", "json"], args].concat();
        serde_json::from_str(&self.kubectl(&args)).expect("JSON")
    }

    /// `pause`, `resume`, `stop` or `start` of the API server; returns when it is so.
    ///
    /// # Panics
    /// If the cluster is not the tests' own.
    pub fn api(&self, what: &str) {
        let directory = self
            .directory
            .as_ref()
            .expect("a cluster of the tests' own");
        let mut command = Command::new(SCRIPT);
        command
            .args(["apiserver", what])
            .env("CLUSTER_DIR", directory);
        assert!(command.status().expect("the script starts").success());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            drop(holder.stdin.take());
            let _ = holder.wait();
        }
    }
}

/// Runs the ignored tests of this test binary, one after the other, in a cluster of their own that is around them: what is
/// reachable there alone, as pods are, they can reach. Without a cluster it says so, loudly, and leaves a note for the end of
/// `make test`. `images` are archives for its node.
///
/// # Panics
/// If a scenario fails.
pub fn run_scenarios(images: &[PathBuf]) {
    let skipped = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubernetes-skipped");
    let _ = fs::remove_file(&skipped);
    let possible = Command::new(SCRIPT)
        .arg("possible")
        .output()
        .expect("the script starts");
    if !possible.status.success() {
        let why = String::from_utf8_lossy(&possible.stdout);
        let note = format!("SKIPPED: the scenarios in a real cluster: {}", why.trim());
        eprintln!("{note}");
        fs::write(skipped, note + "\n").expect("the build directory can be written");
        return;
    }
    let images: Vec<_> = images.iter().map(|path| path.to_string_lossy()).collect();
    let mut command = Command::new(SCRIPT);
    command
        .arg("run")
        .arg(env::current_exe().expect("this program has a path"))
        .args(["--ignored", "--test-threads=1", "--nocapture"])
        .args(env::var("CROSSFADE_TEST_SCENARIO").ok())
        .env("CLUSTER_IMAGES", images.join(" "));
    // So that it also ends with a test process that was killed.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    let status = command.status().expect("the script starts");
    assert!(status.success(), "scenarios failed: {status}");
}

/// Makes an image of a program, without an engine.
///
/// # Panics
/// If that fails.
pub fn image(program: &Path, inside: &str, name: &str, out: &Path) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/image.py");
    let mut command = Command::new(script);
    command
        .arg(out)
        .arg(name)
        .arg(format!("{}={inside}", program.display()));
    assert!(command.status().expect("Python starts").success());
}
