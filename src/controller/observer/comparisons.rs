//! The counts of both generations that the proxies of an update report.

use std::collections::BTreeSet;

use super::{Observed, Observer, ProxyPod};
use crate::controller::comparisons::{self, ReportedCounts};
use crate::controller::parsed::ParsedUpdate;
use crate::controller::poller::Pace;
use crate::rollout::ObservedProxy;

/// The known state of one proxy.
#[derive(Clone, Debug)]
pub(in crate::controller) struct ProxyComparison {
    /// Its pod.
    pub name: String,
    pub answer: ComparisonResult,
}

#[derive(Clone, Debug)]
pub(in crate::controller) enum ComparisonResult {
    Counts(ReportedCounts),
    /// It has just been asked.
    NotYet,
    /// It reports nothing, or nothing about this update, for this reason.
    Unavailable(String),
}

impl Observer {
    /// If new is analysed, asks the proxies of the update that may have sent a request to this new generation. A proxy that
    /// does not respond is left out only if its pod cannot have clients yet: whether it is ready says nothing about connections
    /// that it already has.
    pub(super) fn comparisons(
        &self,
        parsed: &ParsedUpdate,
        proxies: &[ObservedProxy],
        early_until: &mut Option<std::time::Instant>,
    ) -> Vec<ProxyComparison> {
        let key = &parsed.key;
        let pods = self.known().get(key).cloned();
        let pods = pods.filter(|_| parsed.spec.analysis.is_some());
        let pods: Vec<&ProxyPod> = pods.iter().flat_map(|pods| pods.iter()).collect();
        let addresses = pods.iter().filter_map(|pod| pod.address.clone().ok());
        self.comparisons
            .keep(key, &addresses.collect::<BTreeSet<_>>());
        let split = parsed.split();
        let pace = match split.is_all_old() || split.is_all_new() {
            true => Pace::Slow,
            false => Pace::Normal,
        };
        let begun = parsed.memory().trial.generation;
        let compared = pods.into_iter().map(|pod| {
            let answer = self.compare(parsed, pod, pace, early_until);
            let applied = proxies.iter().find(|proxy| proxy.name == pod.pod);
            let applied = applied.and_then(|proxy| proxy.state.as_ref().ok());
            // An earlier plan may name another new.
            let is_of_trial = applied.is_some_and(|state| state.applied >= begun);
            let answer = match answer {
                ComparisonResult::Counts(_) if !is_of_trial => {
                    ComparisonResult::Unavailable("has not applied the update".to_owned())
                }
                answer => answer,
            };
            let name = pod.pod.clone();
            let responds = matches!(answer, ComparisonResult::Counts(_));
            (pod.may_have_clients || responds).then_some(ProxyComparison { name, answer })
        });
        compared.flatten().collect()
    }

    fn compare(
        &self,
        parsed: &ParsedUpdate,
        pod: &ProxyPod,
        pace: Pace,
        early_until: &mut Option<std::time::Instant>,
    ) -> ComparisonResult {
        let address = match &pod.address {
            Ok(address) => address,
            Err(no_report) => return ComparisonResult::Unavailable(format!("has {no_report}")),
        };
        let key = &parsed.key;
        let permit = || self.limits.proxy(&key.namespace);
        let follow = |sink, share| comparisons::follow(address.clone(), sink, share);
        match self.comparisons.poll(key, address, pace, permit, follow) {
            None => ComparisonResult::Unavailable("is not queried: too many proxies".to_owned()),
            Some(Ok(compared)) => match &compared.counts {
                Ok(_) => ComparisonResult::Counts(compared),
                Err(why) => ComparisonResult::Unavailable(why.to_string()),
            },
            Some(Err(since)) if !Observed::misses(early_until, since) => ComparisonResult::NotYet,
            Some(Err(_)) => ComparisonResult::Unavailable("does not respond".to_owned()),
        }
    }
}
