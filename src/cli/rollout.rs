//! The arguments of `crossfade rollout` and of its verbs.

use clap::{ArgMatches, Args, Subcommand};
use k8s_openapi::jiff::Timestamp;

use super::cluster::{ClusterChoice, GlobalClusterArgs};
use super::display::Display;
use super::examples;
use super::parse::{kubernetes_name, revision};
use super::verbs::EditOptions;
use crate::app::commands::RolloutOptions;
use crate::status::{ClusterOptions, RolloutVerb};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct RolloutArgs {
    #[command(subcommand)]
    pub verb: Option<RolloutCommand>,
    /// The rollout [default: the only one in the namespace; if there are several, all are listed]
    #[arg(value_parser = kubernetes_name)]
    name: Option<String>,
    #[command(flatten)]
    cluster: ClusterChoice,
    #[command(flatten)]
    display: Display,
}

#[derive(Debug, Subcommand)]
pub enum RolloutCommand {
    #[command(flatten)]
    Edit(RolloutEdit),
    /// List the revisions that `undo` can go back to
    #[command(after_help = examples::ROLLOUT_HISTORY)]
    History(HistoryArgs),
}

#[derive(Debug, Subcommand)]
pub enum RolloutEdit {
    /// Change neither sizes nor split, except to move requests away from a generation that cannot serve
    #[command(after_help = examples::ROLLOUT_PAUSE)]
    Pause(RolloutEditArgs),
    /// Continue to the new generation according to the strategy
    #[command(after_help = examples::ROLLOUT_RESUME)]
    Resume(RolloutEditArgs),
    /// Continue to the new generation without analysis and steps
    #[command(after_help = examples::ROLLOUT_PROMOTE)]
    Promote(RolloutEditArgs),
    /// Go back to the old generation
    #[command(after_help = examples::ROLLOUT_ABORT)]
    Abort(RolloutEditArgs),
    /// Go back to the old generation or to another revision, even after the rollout has ended
    #[command(after_help = examples::ROLLOUT_UNDO)]
    Undo(UndoArgs),
    /// Retry a new generation that has failed the analysis
    #[command(after_help = examples::ROLLOUT_RETRY)]
    Retry(RolloutEditArgs),
}

#[derive(Debug, Args)]
pub struct RolloutEditArgs {
    /// The rollout
    #[arg(value_parser = kubernetes_name)]
    pub name: String,
    #[command(flatten)]
    pub options: EditOptions,
}

#[derive(Debug, Args)]
pub struct UndoArgs {
    #[command(flatten)]
    edit: RolloutEditArgs,
    /// The revision, as `history` lists it [default: the old generation of the rollout]
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    to: Option<i64>,
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// The rollout
    #[arg(value_parser = kubernetes_name)]
    pub name: String,
    #[command(flatten)]
    cluster: ClusterChoice,
}

impl HistoryArgs {
    /// The cluster and namespace.
    #[must_use]
    pub fn choice(&self) -> ClusterOptions {
        self.cluster.clone().choice()
    }
}

impl RolloutEdit {
    /// The requested edit, and the rollout.
    #[must_use]
    pub fn parts(&self) -> (&RolloutEditArgs, RolloutVerb) {
        match self {
            Self::Pause(args) => (args, RolloutVerb::Pause),
            Self::Resume(args) => (args, RolloutVerb::Resume),
            Self::Promote(args) => (args, RolloutVerb::Promote),
            Self::Abort(args) => (args, RolloutVerb::Abort),
            Self::Undo(args) => (&args.edit, RolloutVerb::Undo(args.to)),
            Self::Retry(args) => (args, RolloutVerb::Retry(Timestamp::now())),
        }
    }

    fn args_mut(&mut self) -> &mut RolloutEditArgs {
        match self {
            Self::Pause(args)
            | Self::Resume(args)
            | Self::Promote(args)
            | Self::Abort(args)
            | Self::Retry(args) => args,
            Self::Undo(args) => &mut args.edit,
        }
    }
}

impl RolloutArgs {
    /// Takes over what was given before the subcommand. `given` are the subcommand's own arguments.
    pub(super) fn after(&mut self, early: GlobalClusterArgs, given: &ArgMatches) {
        match (&mut self.verb, given.subcommand()) {
            (Some(RolloutCommand::Edit(verb)), Some((_, given))) => {
                verb.args_mut().options.after(early, given);
            }
            (Some(RolloutCommand::History(args)), Some((_, given))) => {
                args.cluster.after(early, given);
            }
            _ => self.cluster.after(early, given),
        }
    }

    /// The options of the command without a verb.
    #[must_use]
    pub fn options(self) -> RolloutOptions {
        RolloutOptions {
            name: self.name,
            cluster: self.cluster.choice(),
            every: self.display.every(),
            form: self.display.output,
        }
    }
}
