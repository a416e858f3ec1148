//! The command line: the subcommands. What the arguments of each mean together is told in its own file.

mod cluster;
mod controller;
mod parse;
mod proxy;
mod status;
mod verbs;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::demo::DemoArgs;
use crate::telemetry::log::Level;

pub use self::controller::ControllerArgs;
pub use self::proxy::{LogFormat, ProxyArgs};
pub use self::status::StatusArgs;
pub use self::verbs::{CompletionsArgs, EditArgs, ManArgs, SetArgs};

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
    Proxy(Box<ProxyArgs>),
    /// Keep the split of every DynamoUpdateConfig of a cluster where the ready workers are
    Controller(Box<ControllerArgs>),
    /// Judge plan files without running them: every problem, with its field and line
    Check(CheckArgs),
    /// Print the definition of the DynamoUpdateConfig resource, to be applied to a cluster
    Crd,
    /// Show the main job on this machine: two model servers, the real proxy, a load, a fade from 0 to 100 %
    Demo(DemoArgs),
    /// Show an update: phase, split, both generations, each proxy, what happened
    Status(StatusArgs),
    /// Set the split of an update in a cluster by hand
    Set(SetArgs),
    /// Hold the split of an update where it is
    Pause(EditArgs),
    /// Let the split of an update follow its workers again
    Resume(EditArgs),
    /// Send everything of an update to new though old has workers, and let old drain; `resume` takes that back
    DrainOld(EditArgs),
    /// Print completions of this command line for a shell, or for kubectl
    Completions(CompletionsArgs),
    /// Print the manual, or write its pages into a directory
    Man(ManArgs),
    /// Tell the proxy on this machine to drain, as SIGTERM does, but to stay until it gets that signal: a preStop hook
    Drain(DrainArgs),
    /// Change what the proxy on this machine logs, until it ends
    LogLevel(LogLevelArgs),
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Plan files: `DynamoUpdateConfig` manifests
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
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
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_flag_of_the_proxy_has_a_variable() {
        let command = Cli::command();
        command.clone().debug_assert();
        // What a person's hand says once is no setting.
        let by_hand = [
            "check",
            "set",
            "pause",
            "resume",
            "drain-old",
            "completions",
            "man",
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
}
