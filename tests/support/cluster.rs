//! A real Kubernetes for tests: a bare API server next to a test, or a whole cluster around it.
//!
//! Starts it, injects faults, stops it, and runs `kubectl`. Does not depend on the proxy. `tests/kubernetes/` describes its
//! components and how to install them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::{env, fs};

use serde_json::Value;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/cluster.sh");

/// Set to `existing` to run the scenarios in the cluster in KUBECONFIG, from a place that can reach its Services.
const WHICH: &str = "CROSSFADE_TEST_CLUSTER";

/// A cluster that tests can query and change.
#[derive(Debug)]
pub struct Cluster {
    /// Files and logs of a cluster that the tests started.
    directory: Option<PathBuf>,
    /// The process that holds the cluster. It ends when its standard input is closed.
    holder: Option<Child>,
}

impl Cluster {
    /// Starts etcd and an API server, without pods or controllers. They stop when the value is dropped or the test ends.
    ///
    /// # Panics
    /// If they do not come up, or `tests/kubernetes/install.sh` has not been run.
    pub fn api_server() -> Self {
        let mut holder = Command::new(SCRIPT)
            .args(["api", "sh", "-c", "echo $CLUSTER_DIR; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the script starts");
        let mut line = String::new();
        let mut reader = BufReader::new(holder.stdout.take().expect("it is piped"));
        reader.read_line(&mut line).expect("text");
        let directory = PathBuf::from(line.trim_end());
        assert!(
            directory.is_dir(),
            "no API server: see above for what is missing"
        );
        Self {
            directory: Some(directory),
            holder: Some(holder),
        }
    }

    /// The cluster in which this test runs: the one from [`run_scenarios`], or an existing one.
    ///
    /// # Panics
    /// If it is an existing cluster and the user has not allowed the tests to use it: they delete what they find.
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

    /// Whether the cluster was started by the tests, which may then inject faults and mount files of the machine into its pods.
    pub fn is_own(&self) -> bool {
        self.directory.is_some()
    }

    /// The administrator's kubeconfig file; `None` for that of the environment.
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

    /// Runs `kubectl` and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl_with(args, "")
    }

    /// Like [`Self::kubectl`], with an input.
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

    /// The JSON output of `kubectl get`.
    pub fn get(&self, args: &[&str]) -> Value {
        let args = [&["get", "-o", "json"], args].concat();
        serde_json::from_str(&self.kubectl(&args)).expect("JSON")
    }

    /// Runs `pause`, `resume`, `stop` or `start` on the API server, and returns once that has taken effect.
    ///
    /// # Panics
    /// If the cluster was not started by the tests.
    pub fn api(&self, what: &str) {
        let directory = self
            .directory
            .as_ref()
            .expect("a cluster that the tests started");
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

/// Runs the ignored tests of this test binary, one by one, inside a cluster of their own, so that they can reach pods and other
/// addresses that exist only there. If no cluster is possible, prints a prominent note and stores it for the end of `make
/// test`. `images` are archives for the node. The results are written to `scenarios.log`, from which `tests/all.sh` reads the scenarios to
/// rerun.
///
/// # Panics
/// If a scenario fails.
pub fn run_scenarios(images: &[PathBuf]) {
    let [skipped, log] = ["kubernetes-skipped", "scenarios.log"]
        .map(|file| Path::new(env!("CARGO_TARGET_TMPDIR")).join(file));
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
    let scenarios = env::var("CROSSFADE_TEST_SCENARIO").unwrap_or_default();
    let mut command = Command::new(SCRIPT);
    command
        .arg("run")
        .arg(env::current_exe().expect("this program has a path"))
        .args(["--ignored", "--test-threads=1", "--nocapture", "--logfile"])
        .arg(&log)
        .args(scenarios.split_whitespace())
        .env("CLUSTER_IMAGES", images.join(" "));
    // So that it also stops when the test process is killed.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    let status = command.status().expect("the script starts");
    assert!(status.success(), "scenarios failed: {status}");
}

/// Builds an image of a program, without a container engine.
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
