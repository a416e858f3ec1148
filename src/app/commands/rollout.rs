//! The commands that a user runs on a rollout: one shows it, once or repeatedly; the others edit it after a confirmation.

use std::process::ExitCode;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{Confirmation, Error, OutputFormat, Source, View, confirm, print, show};
use crate::status::{self, Cluster, ClusterOptions, RolloutVerb};

/// The options of `rollout`.
#[derive(Clone, Debug)]
pub struct RolloutOptions {
    /// The rollout. Without a name, the only one of the namespace.
    pub name: Option<String>,
    pub cluster: ClusterOptions,
    /// Repeats at this interval.
    pub every: Option<Duration>,
    pub form: OutputFormat,
}

/// Shows a rollout.
///
/// # Errors
/// When the cluster cannot be read. With `--watch`, this is not an error, because the cluster may become reachable again.
pub fn rollout(options: RolloutOptions) -> Result<ExitCode, Error> {
    crate::app::runtime()?.block_on(async {
        let cluster = Cluster::open(&options.cluster).await?;
        let source = Source::Rollouts(cluster, options.name);
        show(source, options.every, options.form).await
    })
}

pub(super) async fn view(cluster: &Cluster, name: Option<&str>) -> Result<View, status::Error> {
    if let Some(name) = name {
        return Ok(View::Rollout(cluster.rollout(name).await?.into()));
    }
    let mut rollouts = cluster.rollouts().await?;
    match rollouts.pop() {
        None => Err(status::Error::NoRollout(cluster.namespace().to_owned())),
        Some(only) if rollouts.is_empty() => Ok(View::Rollout(only.into())),
        Some(last) => {
            rollouts.push(last);
            Ok(View::Rollouts(rollouts))
        }
    }
}

/// Prints the revisions of a rollout.
///
/// # Errors
/// When the cluster cannot be read.
pub fn rollout_history(name: &str, choice: &ClusterOptions) -> Result<ExitCode, Error> {
    crate::app::runtime()?.block_on(async {
        let cluster = Cluster::open(choice).await?;
        let rollout = cluster.rollout(name).await?;
        print(&status::rollout_history(&rollout, Timestamp::now()))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Shows what a verb changes in a rollout, asks for confirmation, and makes the changes.
///
/// # Errors
/// When the cluster cannot be read or rejects the edit, or when there is no terminal for the confirmation.
pub fn edit_rollout(
    name: &str,
    choice: &ClusterOptions,
    yes: bool,
    verb: RolloutVerb,
) -> Result<ExitCode, Error> {
    crate::app::runtime()?.block_on(async {
        let cluster = Cluster::open(choice).await?;
        let rollout = cluster.rollout(name).await?;
        let changes = verb.changes(&rollout);
        let caveat = verb.caveat(&rollout);
        match confirm(name, cluster.namespace(), &changes, caveat.as_deref(), yes)? {
            Confirmation::NoChanges => Ok(ExitCode::SUCCESS),
            Confirmation::Declined => Ok(ExitCode::FAILURE),
            Confirmation::Confirmed => {
                cluster.apply_to_rollout(&rollout, verb).await?;
                // The change has been made, even if this message cannot be written.
                let _ = print("changed\n");
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}
