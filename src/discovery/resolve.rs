//! Names to addresses: all of them, asked again now and then.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::resource::{Host, Target};
use crate::transport;

/// Longest wait for an answer of the resolver.
const PATIENCE: Duration = Duration::from_secs(2);

/// The addresses last known for each target.
#[derive(Debug, Default)]
pub struct Addresses {
    resolved: HashMap<Target, Vec<SocketAddr>>,
    /// Told by a source that knows better than the resolver.
    told: HashMap<Target, Vec<SocketAddr>>,
    /// The resolver has been asked for them, with success or not.
    asked: HashSet<Target>,
}

impl Addresses {
    /// What is known of `targets` now; a name that was never resolved has no address.
    #[must_use]
    pub fn of(&self, targets: &[Target]) -> Vec<(Target, Vec<SocketAddr>)> {
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

    /// Notes an answer. True when it changes something.
    pub fn learn(&mut self, target: Target, addresses: Vec<SocketAddr>) -> bool {
        self.asked.insert(target.clone());
        // A name that does not resolve for a moment keeps the addresses it had.
        if addresses.is_empty() {
            return false;
        }
        let is_told = self.told.contains_key(&target);
        self.resolved.insert(target, addresses.clone()).as_ref() != Some(&addresses) && !is_told
    }

    /// Notes what a source tells of a target; none is that it knows no better. True when it changes something.
    pub fn tell(&mut self, target: &Target, addresses: Vec<SocketAddr>) -> bool {
        match addresses.is_empty() {
            true => self.told.remove(target).is_some(),
            false => {
                self.told.insert(target.clone(), addresses.clone()).as_ref() != Some(&addresses)
            }
        }
    }

    fn known(&self, target: &Target) -> Option<&Vec<SocketAddr>> {
        self.told.get(target).or_else(|| self.resolved.get(target))
    }

    /// The targets that have no address yet.
    #[must_use]
    pub fn unknown(&self, targets: &[Target]) -> Vec<Target> {
        targets
            .iter()
            .filter(|target| self.known(target).is_none())
            .cloned()
            .collect()
    }
}

impl Addresses {
    /// The targets of which nothing is known, not even that the resolver knows nothing: what a plan that names them has to
    /// wait for.
    #[must_use]
    pub fn unasked(&self, targets: &[Target]) -> Vec<Target> {
        let mut unknown = self.unknown(targets);
        unknown.retain(|target| !self.asked.contains(target));
        unknown
    }
}

/// The addresses of each of `targets`, in a stable order; none for a name that does not resolve in time.
pub async fn resolve(targets: Vec<Target>) -> Vec<(Target, Vec<SocketAddr>)> {
    let mut asked = tokio::task::JoinSet::new();
    for target in targets {
        asked.spawn(async move {
            let addresses = addresses(&target).await;
            (target, addresses)
        });
    }
    asked.join_all().await
}

async fn addresses(target: &Target) -> Vec<SocketAddr> {
    let name = match &target.host {
        Host::Ip(ip) => return vec![(*ip, target.port).into()],
        Host::Name(_) => target.name(),
    };
    let asked = transport::resolve(&name, target.port, target.is_confined());
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(mut found)) => {
            found.sort_unstable();
            found.dedup();
            found
        }
        Ok(Err(error)) => {
            tracing::warn!(%name, %error, "name does not resolve");
            Vec::new()
        }
        Err(_) => {
            tracing::warn!(%name, "the resolver does not answer");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nobody_knows_is_waited_for_once() {
        let target = |text: &str| text.parse::<Target>().unwrap();
        let all = ["a:1", "b:1", "10.0.0.1:1"].map(target);
        let mut addresses = Addresses::default();
        assert_eq!(addresses.unasked(&all), all);
        assert!(!addresses.learn(all[0].clone(), Vec::new()));
        assert!(addresses.learn(all[1].clone(), vec![([10, 0, 0, 2], 1).into()]));
        assert_eq!(addresses.unasked(&all), all[2..]);
        // It is asked for again all the same, beside everything else.
        assert_eq!(addresses.unknown(&all), [all[0].clone(), all[2].clone()]);
    }
}
