//! `crossfade inject`, `uninject` and `rbac`: their arguments, their input and their output.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::diff::unified;
use super::manifest_file::{INVALID_INPUT, STDIN, read};
use super::output::print_all;
use super::parse::{grace, path_prefix, port_flag, variable_name, whole};
use crate::files::explain;
use crate::inject::{self, Error, Options, Report};
use crate::printable::{printable, printable_lines};

/// The image that matches this program, if it was set at build time.
pub(super) const IMAGE: Option<&str> = option_env!("CROSSFADE_DEFAULT_IMAGE");

#[derive(Debug, Args)]
pub struct ManifestArgs {
    /// The manifests, in YAML or JSON [default: -, standard input]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print only the explanation, not the manifests
    #[arg(long)]
    dry_run: bool,
    /// Print the changes as a unified diff instead of the manifests
    #[arg(long, conflicts_with = "dry_run")]
    diff: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cat frontend.yaml | crossfade inject - | kubectl apply -f -
  kubectl get deployment frontend -o yaml | crossfade inject - | kubectl replace -f -
  crossfade inject frontend.yaml --diff
  crossfade inject server.yaml --port 3000 --port-env PORT --health /healthz")]
pub struct InjectArgs {
    #[command(flatten)]
    manifest: ManifestArgs,
    /// The crossfade image [default: the one that was released with this program]
    #[arg(long, env = "CROSSFADE_IMAGE", value_name = "IMAGE")]
    image: Option<String>,
    /// Add a plain container, for Kubernetes before 1.33, instead of a native sidecar
    #[arg(long)]
    plain_container: bool,
    /// The container of the frontend, if it is not found automatically
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    frontend_container: Option<String>,
    /// The port on which the frontend listens, if it is not a known server
    #[arg(long, value_name = "PORT", value_parser = whole::<u16>(1..=u16::MAX))]
    port: Option<u16>,
    /// The argument that sets the frontend's port, such as `--port`
    #[arg(
        long,
        value_name = "FLAG",
        value_parser = port_flag,
        allow_hyphen_values = true,
        conflicts_with = "port_env"
    )]
    port_arg: Option<String>,
    /// The environment variable that sets the frontend's port, such as `PORT`
    #[arg(long, value_name = "NAME", value_parser = variable_name)]
    port_env: Option<String>,
    /// The health check path of the frontend; adds probes if there are none
    #[arg(long, value_name = "PATH", value_parser = path_prefix)]
    health: Option<String>,
    /// The name by which updates refer to these pods (`spec.sourceDeployment`) [default: their label, or the object's name]
    #[arg(long, value_name = "NAME")]
    deployment: Option<String>,
    /// How long open streams have to finish when a pod is deleted [default: 870]
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    drain: Option<u64>,
    /// The CPU that the sidecar requests [default: 500m, or --cpu-limit if that is less]
    #[arg(long, value_name = "QUANTITY", value_parser = inject::cpu)]
    cpu_request: Option<String>,
    /// The CPU limit of the sidecar, such as `2`; without one, it may use idle CPU of its node [default: none]
    #[arg(long, value_name = "QUANTITY", value_parser = inject::cpu)]
    cpu_limit: Option<String>,
    /// The memory that the sidecar requests, at most its limit of 1Gi [default: 128Mi]
    #[arg(long, value_name = "QUANTITY", value_parser = inject::memory)]
    memory_request: Option<String>,
    /// Replace the preStop hook of the frontend, if it has one
    #[arg(long)]
    replace_pre_stop: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl get deployment frontend -o yaml | crossfade uninject - | kubectl replace -f -
  crossfade uninject injected.yaml >frontend.yaml")]
pub struct UninjectArgs {
    #[command(flatten)]
    manifest: ManifestArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crossfade rbac default | kubectl apply -f -
  crossfade rbac my-graph-k8s-service-discovery -n inference | kubectl apply -f -")]
pub struct RbacArgs {
    /// The service account of the pods with a sidecar; without it, a separate one is created
    #[arg(value_name = "ACCOUNT", value_parser = super::parse::kubernetes_name)]
    account: Option<String>,
    /// The namespace of the objects [default: none, so that `kubectl apply -n` sets it]
    #[arg(short, long, value_name = "NAME", value_parser = super::parse::kubernetes_name)]
    namespace: Option<String>,
}

impl InjectArgs {
    /// Prints the manifests with crossfade, and an explanation on standard error.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let options = Options {
            image: self.image.clone(),
            plain_container: self.plain_container,
            container: self.frontend_container.clone(),
            port: self.port,
            port_arg: self.port_arg.clone(),
            port_env: self.port_env.clone(),
            health: self.health.clone(),
            deployment: self.deployment.clone(),
            drain: self.drain,
            cpu_request: self.cpu_request.clone(),
            cpu_limit: self.cpu_limit.clone(),
            memory_request: self.memory_request.clone(),
            replace_pre_stop: self.replace_pre_stop,
        };
        self.manifest
            .run(|text| inject::inject(text, &options, IMAGE))
    }
}

impl UninjectArgs {
    /// Prints the manifests without crossfade, and an explanation on standard error.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        self.manifest.run(|text| {
            let report = inject::uninject(text)?;
            if report.notes.is_empty() {
                explain("found nothing to remove: the manifests are unchanged");
            }
            Ok(report)
        })
    }
}

impl RbacArgs {
    /// Takes over a namespace that was given before the subcommand.
    pub(super) fn after(&mut self, before: Option<String>) {
        self.namespace = self.namespace.take().or(before);
    }

    /// Prints the role of a sidecar and its binding.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let text = inject::rbac(self.account.as_deref(), self.namespace.as_deref());
        print_all(text.as_bytes())
    }
}

impl ManifestArgs {
    fn run(&self, edit: impl Fn(&str) -> Result<Report, Error>) -> ExitCode {
        let file = match &self.file {
            Some(file) => file,
            None if io::stdin().is_terminal() => {
                explain("crossfade: name a FILE, or `-` for standard input");
                return ExitCode::from(INVALID_INPUT);
            }
            None => Path::new(STDIN),
        };
        let name = printable(file.display()).to_string();
        let name = if file == Path::new(STDIN) {
            "standard input".to_owned()
        } else {
            name
        };
        let text = match read(file) {
            Ok(text) => text,
            Err(message) => {
                explain(format_args!("crossfade: {name}: {message}"));
                return ExitCode::from(INVALID_INPUT);
            }
        };
        match edit(&text) {
            Ok(report) => {
                for note in &report.notes {
                    explain(printable_lines(note));
                }
                self.print(file, &text, &report.text)
            }
            Err(error) => {
                explain(format_args!(
                    "crossfade: {name}: {}",
                    printable_lines(error)
                ));
                ExitCode::from(INVALID_INPUT)
            }
        }
    }

    fn print(&self, file: &Path, before: &str, after: &str) -> ExitCode {
        let shown = if self.dry_run {
            String::new()
        } else if self.diff {
            let name = file.display().to_string();
            unified(&name, before, after)
        } else {
            after.to_owned()
        };
        print_all(shown.as_bytes())
    }
}
