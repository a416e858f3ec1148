//! The command line: its subcommands. The arguments of each are validated in a file of their own.

mod check;
mod cluster;
mod controller;
mod examples;
mod inject;
mod parse;
mod proxy;
mod status;
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
pub use self::proxy::{LogFormat, ProxyArgs};
pub use self::status::StatusArgs;
pub use self::verbs::{CompletionsArgs, EditArgs, ManArgs, SetArgs};
pub use self::verdict::JudgeArgs;
pub use self::version::VersionArgs;

/// Fades live LLM traffic from an old generation of frontends to a new one without losing a stream.
#[derive(Debug, Parser)]
#[command(name = "crossfade", version, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    early: cluster::Early,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Split requests between an old and a new generation of frontends
    #[command(after_help = examples::PROXY)]
    Proxy(Box<ProxyArgs>),
    /// Keep the split of every DynamoUpdateConfig of a cluster where the ready workers are
    #[command(after_help = examples::CONTROLLER)]
    Controller(Box<ControllerArgs>),
    /// Validate plan files without running them; prints every problem with its field and line
    Check(CheckArgs),
    /// Print the definition of the DynamoUpdateConfig resource, to be applied to a cluster
    #[command(after_help = examples::CRD)]
    Crd,
    /// Add crossfade to the manifest of a frontend as a sidecar: prints the manifest, and explains what changed
    Inject(Box<InjectArgs>),
    /// Take out of a manifest again what inject put into it
    Uninject(UninjectArgs),
    /// Print what the service account of a pod with a sidecar must be allowed, to be applied to its namespace
    Rbac(RbacArgs),
    /// Show the main job on this machine: two model servers, the real proxy, a load, a fade from 0 to 100 %
    #[command(after_help = examples::DEMO)]
    Demo(DemoArgs),
    /// Show an update: phase, split, both generations, each proxy, what happened
    #[command(after_help = examples::STATUS)]
    Status(StatusArgs),
    /// Compare new with old on the same traffic: is new good enough? Exit status: 0 yes, 1 no, 3 no verdict
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
    /// Send everything of an update to new though old has workers, and let old drain; `resume` takes that back
    #[command(after_help = examples::DRAIN_OLD)]
    DrainOld(EditArgs),
    /// Print completions of this command line for a shell, or for kubectl
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Print the manual, or write its pages into a directory
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
    /// Print the version of this program
    Version(VersionArgs),
    /// Tell the proxy on this machine to drain, as SIGTERM does, but to stay until it gets that signal: a preStop hook
    #[command(after_help = examples::DRAIN)]
    Drain(DrainArgs),
    /// Change what the proxy on this machine logs, until it ends
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
        // Arguments of commands that a user types are no settings.
        let by_hand = [
            "check",
            "set",
            "pause",
            "resume",
            "drain-old",
            "completions",
            "man",
            "version",
            "inject",
            "uninject",
            "rbac",
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
