//! Resolves host names to all of their addresses, and remembers the last known addresses of each target.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::resource::{Host, TargetAddress};
use crate::transport;

/// How long the resolver may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The last known addresses of each target.
#[derive(Debug, Default)]
pub struct Addresses {
    resolved: HashMap<TargetAddress, Vec<SocketAddr>>,
    /// Reported by a source that takes precedence over the resolver.
    from_source: HashMap<TargetAddress, Vec<SocketAddr>>,
    /// Targets that have been resolved, successfully or not.
    tried: HashSet<TargetAddress>,
    /// The error of each name that did not resolve last time. An unchanged error is logged only once.
    failed: HashMap<TargetAddress, String>,
}

/// The sorted addresses of a name, or why it has none.
pub type Resolved = Result<Vec<SocketAddr>, String>;

impl Addresses {
    /// The known addresses of `targets`. A name that has never been resolved has none.
    #[must_use]
    pub fn of(&self, targets: &[TargetAddress]) -> Vec<(TargetAddress, Vec<SocketAddr>)> {
        targets
            .iter()
            .map(|target| {
                (
                    target.clone(),
                    self.known(target).cloned().unwrap_or_default(),
                )
            })
            .collect()
    }

    /// Records the answer of the resolver. Returns true if the addresses in use change.
    pub fn learn(&mut self, target: TargetAddress, resolved: Resolved) -> bool {
        self.tried.insert(target.clone());
        let addresses = match resolved {
            Ok(addresses) => {
                self.failed.remove(&target);
                addresses
            }
            // A name that temporarily does not resolve keeps its addresses.
            Err(error) => {
                if self.failed.get(&target) != Some(&error) {
                    tracing::warn!(name = %target.name(), %error, "name does not resolve");
                    self.failed.insert(target, error);
                }
                return false;
            }
        };
        let is_from_source = self.from_source.contains_key(&target);
        self.resolved.insert(target, addresses.clone()).as_ref() != Some(&addresses)
            && !is_from_source
    }

    /// Records the addresses that a source reports for a target; an empty list hands the target back to the resolver. Returns
    /// true if something changes.
    pub fn set_from_source(&mut self, target: &TargetAddress, addresses: Vec<SocketAddr>) -> bool {
        match addresses.is_empty() {
            true => self.from_source.remove(target).is_some(),
            false => {
                self.from_source
                    .insert(target.clone(), addresses.clone())
                    .as_ref()
                    != Some(&addresses)
            }
        }
    }

    fn known(&self, target: &TargetAddress) -> Option<&Vec<SocketAddr>> {
        self.from_source
            .get(target)
            .or_else(|| self.resolved.get(target))
    }

    /// The targets without a known address.
    #[must_use]
    pub fn unknown(&self, targets: &[TargetAddress]) -> Vec<TargetAddress> {
        targets
            .iter()
            .filter(|target| self.known(target).is_none())
            .cloned()
            .collect()
    }
}

impl Addresses {
    /// The targets without a known address that have never been looked up. A plan that names them waits for the resolver.
    #[must_use]
    pub fn never_resolved(&self, targets: &[TargetAddress]) -> Vec<TargetAddress> {
        let mut unknown = self.unknown(targets);
        unknown.retain(|target| !self.tried.contains(target));
        unknown
    }
}

/// Resolves each of `targets`.
pub async fn resolve(targets: Vec<TargetAddress>) -> Vec<(TargetAddress, Resolved)> {
    let mut tasks = tokio::task::JoinSet::new();
    for target in targets {
        tasks.spawn(async move {
            let addresses = addresses(&target).await;
            (target, addresses)
        });
    }
    tasks.join_all().await
}

async fn addresses(target: &TargetAddress) -> Resolved {
    let name = match &target.host {
        Host::Ip(ip) => return Ok(vec![(*ip, target.port).into()]),
        Host::Name(_) => target.name(),
    };
    let resolving = transport::resolve(&name, target.port, target.is_confined());
    let answer = tokio::time::timeout(TIMEOUT, resolving).await;
    let mut found = answer
        .map_err(|_| "the resolver does not respond".to_owned())?
        .map_err(|error| error.to_string())?;
    found.sort_unstable();
    found.dedup();
    match found.is_empty() {
        true => Err("it has no address".to_owned()),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_waited_for_once() {
        let target = |text: &str| text.parse::<TargetAddress>().unwrap();
        let all = ["a:1", "b:1", "10.0.0.1:1"].map(target);
        let mut addresses = Addresses::default();
        assert_eq!(addresses.never_resolved(&all), all);
        assert!(!addresses.learn(all[0].clone(), Err("no such name".to_owned())));
        assert!(addresses.learn(all[1].clone(), Ok(vec![([10, 0, 0, 2], 1).into()])));
        assert_eq!(addresses.never_resolved(&all), all[2..]);
        // It remains an unknown name, and those are resolved again in the background.
        assert_eq!(addresses.unknown(&all), [all[0].clone(), all[2].clone()]);
    }
}
