//! `crossfade simulate`: the arguments about workers and load, the input files, and the output.

mod sizes;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::sizes::{PerRole, per_role};
use self::workers::{Overrides, Workers};
use super::manifest_file::{INVALID_INPUT, read};
use super::output::print;
use super::parse::{amount, rate, seconds, seconds_or_none};
use crate::files::explain;
use crate::inject::{Manifest, manifests};
use crate::managed_update::{self, Accepted, Direction};
use crate::printable::{printable, printable_lines, write_json_pretty};
use crate::resource::{AmountSpec, DrainSpec, ROLLOUT_KIND, RolloutManifest, load_rollout};
use crate::scaling::{RolloutSettings, Sizes};
use crate::simulation::{
    self, MAX_REPLICAS, Moves, Samples, Scenario, SimulationEnd, SimulationReport,
};

/// How long the proxies take to apply a split, and an idle worker takes to terminate.
const APPLY: Duration = Duration::from_secs(2);
const STOP: Duration = Duration::from_secs(5);
/// The default of the controller's `--quiet-period`.
const QUIET: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The DynamoRollout, and the manifests of its workers, which define their number, GPUs, and grace period; repeat the flag for
    /// more files; `-` is standard input
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Time from the start of a worker until it is ready
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    startup: Duration,
    /// 99th percentile of the stream durations
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    stream_p99: Duration,
    /// Requests per second
    #[arg(long, value_name = "NUMBER", value_parser = rate)]
    rate: f64,
    /// Number of replicas in a full generation, such as 4 or prefill=4,decode=2 [default: those in the files]
    #[arg(long, value_name = "NUMBER", value_parser = per_role)]
    replicas: Option<PerRole>,
    /// GPUs per worker, such as 8 or prefill=4,decode=8 [default: those in the files, else 1]
    #[arg(long, value_name = "NUMBER", value_parser = per_role)]
    gpus: Option<PerRole>,
    /// terminationGracePeriodSeconds of the workers [default: the one in the files, else the length of the longest stream]
    #[arg(long, value_name = "DURATION", value_parser = seconds_or_none)]
    grace: Option<Duration>,
    /// Time for which a worker must be ready before it gets requests
    #[arg(long, value_name = "DURATION", default_value = "5", value_parser = seconds_or_none)]
    stable: Duration,
    /// Override maxSurge: a number or a percentage
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    max_surge: Option<AmountSpec>,
    /// Override maxUnavailable: a number or a percentage
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    max_unavailable: Option<AmountSpec>,
    /// Override whether another worker continues a stream when its own worker terminates
    #[arg(long, value_name = "on|off")]
    continuation: Option<Switch>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: ReportFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    Text,
    Json,
    Svg,
}

impl SimulateArgs {
    /// Simulates the rollout and prints the result: status 0 if it ends, 1 if it never does, 2 if the input cannot be simulated.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let scenario = match self.scenario() {
            Ok(scenario) => scenario,
            Err(message) => {
                explain(format_args!("crossfade: {}", printable_lines(message)));
                return ExitCode::from(INVALID_INPUT);
            }
        };
        let report = simulation::run(&scenario);
        let ends = matches!(report.ended, SimulationEnd::At(_));
        let done = ExitCode::from(u8::from(!ends));
        print(&self.printed(&report), done, INVALID_INPUT)
    }

    fn printed(&self, report: &SimulationReport) -> Vec<u8> {
        match self.output {
            ReportFormat::Text => simulation::text(report).into_bytes(),
            ReportFormat::Svg => simulation::svg(report).into_bytes(),
            ReportFormat::Json => {
                let mut text = Vec::new();
                let json = simulation::json(report);
                write_json_pretty(&mut text, &json).expect("writing to a Vec does not fail");
                text.push(b'\n');
                text
            }
        }
    }

    fn scenario(&self) -> Result<Scenario, String> {
        let mut rollouts = Vec::new();
        let mut objects = Vec::new();
        for path in &self.files {
            let name = printable(path.display()).to_string();
            let text = read(path).map_err(|message| format!("{name}: {message}"))?;
            let manifests = manifests(&text).map_err(|error| format!("{name}: {error}"))?;
            for manifest in manifests {
                match manifest
                    .objects
                    .iter()
                    .any(|object| object["kind"] == ROLLOUT_KIND)
                {
                    true => rollouts.push(rollout(&name, &manifest)?),
                    false => objects.extend(manifest.objects),
                }
            }
        }
        let [rollout] = &mut rollouts[..] else {
            let count = rollouts.len();
            return Err(format!(
                "the files must contain exactly one {ROLLOUT_KIND}; they contain {count}"
            ));
        };
        if rollout.spec.undo().is_some() {
            return Err(
                "spec.undoTo is set, but going back to a revision cannot be simulated: remove it to simulate the rollout to the target"
                    .to_owned(),
            );
        }
        let workers = Workers::of(&rollout.spec, &objects);
        let stated = Overrides {
            replicas: self.replicas.as_ref(),
            gpus: self.gpus.as_ref(),
        };
        let accepted = workers.accepted(&rollout.spec, stated)?;
        let settings = self.settings(rollout, &accepted)?;
        // Within one object, new begins with nothing.
        let begun = match settings.in_place {
            true => Sizes::new(),
            false => workers.begun(),
        };
        if begun.values().any(|size| *size > MAX_REPLICAS) {
            return Err(format!("at most {MAX_REPLICAS} replicas can be simulated"));
        }
        Ok(Scenario {
            settings,
            begun,
            startup: self.startup,
            stable: self.stable,
            apply: APPLY,
            stop: STOP,
            grace: self.grace(&workers),
            analysis: rollout.spec.analysis.as_ref().map(|analysis| Samples {
                count: analysis.min_samples.into(),
                window: Duration::from_secs(analysis.window_seconds.into()),
            }),
            quiet: QUIET,
            rate: self.rate,
            stream_p99: self.stream_p99,
            chooses: workers.can_be_chosen,
            moves: moves(&rollout.spec.traffic.drain),
        })
    }

    /// The settings of the rollout, with the overrides from the command line.
    fn settings(
        &self,
        rollout: &mut RolloutManifest,
        accepted: &Accepted,
    ) -> Result<RolloutSettings, String> {
        let strategy = &mut rollout.spec.strategy;
        if let Some(surge) = &self.max_surge {
            strategy.max_surge = surge.clone();
        }
        if let Some(unavailable) = &self.max_unavailable {
            strategy.max_unavailable = unavailable.clone();
        }
        if strategy.max_surge.is_none() && strategy.max_unavailable.is_none() {
            return Err("maxSurge and maxUnavailable must not both be 0".to_owned());
        }
        if rollout.spec.is_in_place() && !rollout.spec.strategy.max_surge.is_none() {
            return Err("within one object, maxSurge must be 0".to_owned());
        }
        let settings = managed_update::settings(&rollout.spec, accepted, Direction::AsSpecified);
        let mut settings = settings.ok_or("a generation has no workers to move")?;
        if settings.shape.units() > MAX_REPLICAS {
            return Err(format!("at most {MAX_REPLICAS} replicas can be simulated"));
        }
        if let Some(continuation) = self.continuation {
            settings.strategy.continuation = continuation == Switch::On;
        }
        Ok(settings)
    }

    /// By default, workers have as much time as they need.
    fn grace(&self, workers: &Workers) -> Duration {
        let longest = 2 * self.stream_p99;
        self.grace.or(workers.grace).unwrap_or_else(|| {
            explain(format_args!("assumed: terminationGracePeriodSeconds {}, as long as the longest stream; set it with --grace, or add the manifests of the workers with -f",
                longest.as_secs()));
            longest
        })
    }
}

fn moves(drain: &DrainSpec) -> Option<Moves> {
    Some(Moves {
        after: Duration::try_from_secs_f64(drain.move_after_seconds?).ok()?,
        rate: drain.move_rate.into(),
    })
}

/// The rollout in a document, with problems at the lines of the whole text.
fn rollout(name: &str, manifest: &Manifest<'_>) -> Result<RolloutManifest, String> {
    let text = "\n".repeat(manifest.line) + manifest.text;
    load_rollout(&text).map_err(|problems| {
        let lines = problems.iter().map(|problem| format!("{name}: {problem}"));
        lines.collect::<Vec<_>>().join("\n")
    })
}
