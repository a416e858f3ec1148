//! The command line and its subcommands. The arguments of each subcommand are validated in a separate file.

mod check;
mod cluster;
mod connection;
mod controller;
mod diff;
mod display;
mod examples;
mod inject;
mod manifest_file;
mod output;
mod parse;
mod plan;
mod proxy;
mod rollout;
mod simulate;
mod status;
mod variables;
mod verbs;
mod verdict;
mod version;

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand};

use crate::demo::DemoArgs;
use crate::telemetry::log::Level;

pub use self::check::CheckArgs;
pub use self::controller::ControllerArgs;
pub use self::inject::{InjectArgs, RbacArgs, UninjectArgs};
pub use self::output::print_all;
pub use self::plan::PlanArgs;
pub use self::proxy::{LogFormat, ProxyArgs};
pub use self::rollout::{RolloutArgs, RolloutCommand, RolloutEdit};
pub use self::simulate::SimulateArgs;
pub use self::status::StatusArgs;
pub use self::verbs::{CompletionsArgs, EditArgs, ManArgs, SetArgs};
pub use self::verdict::JudgeArgs;
pub use self::version::VersionArgs;

/// Moves live LLM traffic from an old generation of frontends to a new one without losing a stream.
#[derive(Debug, Parser)]
#[command(name = "crossfade", version, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    early: cluster::GlobalClusterArgs,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Split requests between an old and a new generation of frontends
    #[command(after_help = examples::PROXY)]
    Proxy(Box<ProxyArgs>),
    /// Set the split of every DynamoUpdateConfig in a cluster according to the ready workers
    #[command(after_help = examples::CONTROLLER)]
    Controller(Box<ControllerArgs>),
    /// Validate plan files and rollouts without running them, and print every problem with its field and line
    Check(CheckArgs),
    /// Print the custom resource definitions (CRDs) to apply to a cluster
    #[command(after_help = examples::CRD)]
    Crd,
    /// Add crossfade to the manifest of a frontend as a sidecar: print the manifest, and explain what changed
    Inject(Box<InjectArgs>),
    /// Remove from a manifest what inject added
    Uninject(UninjectArgs),
    /// Print the permissions that the service account of a pod with a sidecar needs; apply them to the pod's namespace
    Rbac(RbacArgs),
    /// Create the next generation, to run next to the current one: print the objects to apply and a DynamoRollout, from the
    /// current and the edited manifests
    #[command(after_help = examples::PLAN)]
    Plan(PlanArgs),
    /// Predict the duration and cost of a DynamoRollout by running its decisions on modelled workers and load. Exit status: 0 if
    /// the rollout ends, 1 if it never does
    #[command(after_help = examples::SIMULATE)]
    Simulate(Box<SimulateArgs>),
    /// Show an update from 0 to 100% on this machine: two model servers, the real proxy, and load
    #[command(after_help = examples::DEMO)]
    Demo(DemoArgs),
    /// Show an update: its phase, split, generations, proxies, and Events
    #[command(after_help = examples::STATUS)]
    Status(StatusArgs),
    /// Compare new with old on the same traffic: is new good enough? Exit status: 0 pass, 1 fail, 3 inconclusive
    #[command(after_help = examples::JUDGE)]
    Judge(Box<JudgeArgs>),
    /// Set the split of an update in a cluster by hand
    #[command(after_help = examples::SET)]
    Set(SetArgs),
    /// Hold the split of an update where it is
    #[command(after_help = examples::PAUSE)]
    Pause(EditArgs),
    /// Let the split of an update follow its workers again
    #[command(after_help = examples::RESUME)]
    Resume(EditArgs),
    /// Send all requests of an update to new although old has workers, and drain old; `resume` undoes this
    #[command(after_help = examples::DRAIN_OLD)]
    DrainOld(EditArgs),
    /// Retry the new generation of an update after it has failed the analysis
    #[command(after_help = examples::RETRY)]
    Retry(EditArgs),
    /// Show a DynamoRollout: its phase, its step, what it is waiting for, and both generations; its subcommands change what it does
    #[command(after_help = examples::ROLLOUT)]
    Rollout(Box<RolloutArgs>),
    /// Print the completion script for a shell, or for kubectl
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Print the manual, or write its pages into a directory
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
    /// Print the version of this program
    Version(VersionArgs),
    /// Drain the proxy on this machine, as SIGTERM does, but keep it running until it gets that signal; for preStop hooks
    #[command(after_help = examples::DRAIN)]
    Drain(DrainArgs),
    /// Change the log level of the proxy on this machine until its process exits
    #[command(after_help = examples::LOG_LEVEL)]
    LogLevel(LogLevelArgs),
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The admin port of the proxy
    #[arg(long, env = "CROSSFADE_ADMIN", default_value = "127.0.0.1:9464", value_name = "ADDR", value_parser = parse::address)]
    pub admin: SocketAddr,
}

#[derive(Debug, Args)]
pub struct LogLevelArgs {
    /// error, warn, info, debug, trace, off, or target=level,…
    pub level: Level,
    /// The admin port of the proxy
    #[arg(long, env = "CROSSFADE_ADMIN", default_value = "127.0.0.1:9464", value_name = "ADDR", value_parser = parse::address)]
    pub admin: SocketAddr,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::Config;

    #[test]
    fn every_verb_has_examples_and_each_of_them_can_be_typed() {
        for sub in Cli::command().get_subcommands() {
            let help = sub
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            // Longer lines would be broken where a shell ends the command.
            assert!(help.lines().all(|line| line.len() <= 100), "{help}");
            let help = help.replace("\\\n", " ");
            let lines: Vec<_> = help.lines().filter(|line| line.starts_with("  ")).collect();
            assert!(
                help.starts_with("Examples:\n") && !lines.is_empty(),
                "{}",
                sub.get_name()
            );
            for line in lines {
                let own = line
                    .split(" | ")
                    .find(|part| part.trim().starts_with("crossfade "));
                let words = own.unwrap_or_else(|| panic!("{line}")).split_whitespace();
                let words = words.take_while(|word| !word.starts_with('>'));
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{line}\n{error}");
                }
            }
        }
    }

    #[test]
    fn the_command_line_is_consistent_and_every_flag_of_the_proxy_has_a_variable() {
        let command = Cli::command();
        command.clone().debug_assert();
        // Arguments of commands that a user types are not settings.
        let by_hand = [
            "check",
            "set",
            "pause",
            "resume",
            "drain-old",
            "retry",
            "completions",
            "man",
            "version",
            "inject",
            "uninject",
            "rbac",
            "plan",
            "simulate",
        ];
        for sub in command
            .get_subcommands()
            .filter(|sub| !by_hand.contains(&sub.get_name()))
        {
            for argument in sub
                .get_arguments()
                .filter(|argument| argument.get_id() != "help" && !argument.is_positional())
            {
                let name = argument.get_long().expect("has a long name");
                let expected = format!("CROSSFADE_{}", name.to_uppercase().replace('-', "_"));
                assert_eq!(
                    argument.get_env().and_then(|env| env.to_str()),
                    Some(&*expected)
                );
                assert!(argument.get_help().is_some(), "{name}");
            }
        }
    }

    #[test]
    fn the_defaults_of_the_flags_are_those_of_the_library() {
        let cli = Cli::try_parse_from(["crossfade", "proxy", "--old", "a:1"]).unwrap();
        let Command::Proxy(args) = cli.command else {
            panic!("another command");
        };
        let settings = |config: &Config| {
            let Config {
                proxy,
                limits,
                upstream,
                settle,
                drain,
                ..
            } = config;
            format!("{:?}", (proxy, limits, upstream, settle, drain))
        };
        let flags = args.config().unwrap();
        assert_eq!(settings(&flags), settings(&Config::default()));
    }
}
