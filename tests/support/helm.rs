//! The real `helm` for tests, and copies of the charts as an earlier release would have had them.
//!
//! Does not depend on the proxy. `tests/tools/install.sh` builds the program.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use tempfile::TempDir;

/// Charts in `deploy/helm`.
pub const CONTROLLER: &str = "crossfade";
pub const DEFINITION: &str = "crossfade-crds";

pub fn chart(name: &str) -> PathBuf {
    let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/helm");
    charts.join(name)
}

/// The program, if `tests/tools/install.sh` has built it in the current version.
pub fn program() -> Option<PathBuf> {
    const STAMP: &str = concat!(
        include_str!("../tools/go.mod"),
        include_str!("../tools/install.sh")
    );
    let cache = env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty());
    let cache = cache.map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    let home = cache.join("crossfade/tools/go");
    let stamp = fs::read_to_string(home.join("stamp")).unwrap_or_default();
    (stamp == STAMP).then(|| home.join("helm"))
}

/// Runs `helm`, without a cluster or with a kubeconfig file.
pub struct Helm {
    kubeconfig: Option<PathBuf>,
    /// Temporary settings and caches.
    home: TempDir,
}

impl Helm {
    pub fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self {
            kubeconfig,
            home: tempfile::tempdir().expect("a directory"),
        }
    }

    /// # Panics
    /// If helm is not installed.
    pub fn tries(&self, args: &[&str]) -> Output {
        let program = program().expect("no helm: run tests/tools/install.sh, which needs Go");
        let mut command = Command::new(program);
        command.args(args).env_remove("KUBECONFIG");
        for place in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
            command.env(place, self.home.path());
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        command.output().expect("helm starts")
    }

    /// Runs a command and returns its standard output.
    ///
    /// # Panics
    /// If it fails.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.tries(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "helm {args:?}: {errors}{text}");
        text.into_owned()
    }

    /// Runs a command that must fail, and returns its error.
    ///
    /// # Panics
    /// If it succeeds.
    pub fn refuses(&self, args: &[&str]) -> String {
        let output = self.tries(args);
        assert!(!output.status.success(), "helm {args:?} should fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// A chart as in an earlier release: with another version, and with a definition that lacks a column.
pub struct Earlier(TempDir);

impl Earlier {
    pub const VERSION: &str = "0.0.9";

    pub fn of(name: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut copy = Command::new("cp");
        // With the targets of the links.
        copy.arg("-rL").arg(chart(name)).arg(directory.path());
        assert!(copy.status().expect("cp starts").success());
        let earlier = Self(directory);
        let edit = |file: &str, from: &str, to: &str| {
            let path = earlier.path().join(file);
            let text = fs::read_to_string(&path).expect(file);
            assert!(text.contains(from), "{file} has no {from}");
            fs::write(path, text.replace(from, to)).expect(file);
        };
        let version = format!("version: {}", env!("CARGO_PKG_VERSION"));
        edit(
            "Chart.yaml",
            &version,
            &format!("version: {}", Self::VERSION),
        );
        if name == DEFINITION {
            edit("files/crd.yaml", "name: Split\n", "name: Share\n");
        }
        earlier
    }

    pub fn path(&self) -> PathBuf {
        let mut entries = fs::read_dir(self.0.path()).expect("a directory");
        entries.next().expect("the chart").expect("an entry").path()
    }
}
