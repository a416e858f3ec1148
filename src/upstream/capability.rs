//! The capabilities that an endpoint has proven: for which models and APIs it can continue a text, and which models it lists.
//!
//! The proof of an endpoint shows that it is worth asking for the rest of a stream. It is not enough for sending a continuation:
//! another server may have taken the address since. For that, [`ProvenConnection`] is the proof.
//!
//! The results are kept in [`Proofs`](super::proofs::Proofs).

mod demand;
mod prove;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub use self::demand::{Demand, ModelDemand};
pub use self::prove::{GuardField, PROBE_HEADER, ProvenConnection};
use super::Endpoint;
use super::proofs::{Models, ProbeRecord};
use crate::continuation::{Capability, Probe};

/// Maximum number of models for which an endpoint keeps results.
pub const MAX_MODELS: usize = 64;
/// Maximum length of the name of a probed model, in bytes.
pub const MAX_MODEL_NAME: usize = 256;

impl Endpoint {
    fn run(&self) -> u32 {
        self.proofs.runs.load(Ordering::Relaxed)
    }

    /// Whether it has recently proven that it can continue a text of `model`.
    #[must_use]
    pub fn capability(&self, probe: Probe, model: &str, now: Instant) -> Capability {
        let by_model = self.proofs.of(probe).load();
        by_model
            .get(model)
            .and_then(|record| record.usable(now, self.run()))
            .copied()
            .unwrap_or(Capability::Unknown)
    }

    /// The models with a result or a probe, in the order of their names, and what is known about each.
    #[must_use]
    pub fn capabilities(&self, probe: Probe, now: Instant) -> Vec<(Arc<str>, Capability)> {
        let by_model = self.proofs.of(probe).load();
        let run = self.run();
        by_model
            .iter()
            .map(|(model, record)| {
                let known = record.usable(now, run).copied();
                (Arc::clone(model), known.unwrap_or(Capability::Unknown))
            })
            .collect()
    }

    /// It refused a connection: the next server at this address has not proven anything.
    pub(in crate::upstream) fn went_away(&self) {
        self.proofs.runs.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection broke mid-stream: its server may have been replaced, so its proofs no longer count.
    ///
    /// An address that several servers share keeps its proofs: a failure of one says nothing about the others.
    pub fn may_have_restarted(&self) {
        if !self.shared {
            self.went_away();
        }
    }

    /// The models to probe, out of those that requests name (`wanted`) and, for Chat, those that it lists.
    #[must_use]
    pub fn models_to_probe(&self, probe: Probe, wanted: &[ModelDemand]) -> Vec<Arc<str>> {
        let wanted = wanted.iter().filter(|(of, _)| *of == probe);
        let mut models: Vec<_> = wanted.map(|(_, model)| Arc::clone(model)).collect();
        if probe != Probe::Chat {
            return models;
        }
        let listed = self.proofs.models.load();
        let listed = listed
            .as_ref()
            .as_ref()
            .and_then(|record| record.answer.as_ref());
        for model in listed.iter().flat_map(|(listed, _)| listed.iter()) {
            if models.len() < MAX_MODELS && !models.contains(model) {
                models.push(Arc::clone(model));
            }
        }
        models.truncate(MAX_MODELS);
        models
    }

    /// Whether its list of models should be read at `now`, under the plan of this epoch.
    #[must_use]
    pub fn is_list_due(&self, now: Instant, plan: u64) -> bool {
        let models = self.proofs.models.load();
        let record = models.as_ref().as_ref();
        record.is_none_or(|record| record.is_due(now, plan, self.run()))
    }

    /// Whether it did not respond to the last probe of whether it can continue a text of `model`.
    #[must_use]
    pub fn left_probe_unanswered(&self, probe: Probe, model: &str) -> bool {
        let by_model = self.proofs.of(probe).load();
        by_model
            .get(model)
            .is_some_and(|record| record.failures > 0)
    }

    /// Whether it should be probed at `now`, under the plan of this epoch, for continuation of a text of `model`.
    #[must_use]
    pub fn is_proof_due(&self, probe: Probe, model: &str, now: Instant, plan: u64) -> bool {
        let by_model = self.proofs.of(probe).load();
        let record = by_model.get(model);
        record.is_none_or(|record| record.is_due(now, plan, self.run()))
    }

    /// Records the result of a probe that was sent during `run`.
    fn proved(&self, of: (Probe, &str), answer: Capability, now: Instant, plan: u64, run: u32) {
        let (probe, model) = of;
        let answer = (answer != Capability::Unknown).then_some(answer);
        self.proofs.of(probe).rcu(|by_model| {
            let mut by_model = BTreeMap::clone(by_model);
            let previous = by_model.get(model);
            let mut record = ProbeRecord::next(previous, answer, now, plan, run);
            // An unauthenticated probe learns nothing, so the result of a probe with a client's credentials stays valid.
            if let (Some(Capability::Unauthorized), Some(previous)) = (answer, previous)
                && previous.usable(now, run).is_some()
            {
                record.answer.clone_from(&previous.answer);
            }
            by_model.insert(model.into(), record);
            while by_model.len() > MAX_MODELS {
                let oldest = by_model.iter().min_by_key(|(_, record)| record.at);
                let Some(oldest) = oldest.map(|(model, _)| Arc::clone(model)) else {
                    break;
                };
                by_model.remove(&oldest);
            }
            by_model
        });
    }

    /// Discards a result that a server at this address has contradicted. The probe is then due immediately.
    fn invalidate(&self, probe: Probe, model: &str) {
        self.proofs.of(probe).rcu(|by_model| {
            let mut by_model = BTreeMap::clone(by_model);
            by_model.remove(model);
            by_model
        });
    }

    /// Records its list of models; `None` if it did not return one.
    fn listed(&self, models: Option<Models>, now: Instant, plan: u64, run: u32) {
        self.proofs.models.rcu(|record| {
            let record = record.as_ref().as_ref();
            Some(ProbeRecord::next(record, models.clone(), now, plan, run))
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::upstream::proofs::{BACKOFF, LIFE, RENEWAL};

    const SECOND: Duration = Duration::from_secs(1);

    fn endpoint(shared: bool) -> Endpoint {
        Endpoint::new(([127, 0, 0, 1], 1).into(), None, shared)
    }

    #[test]
    fn a_proof_counts_until_it_is_too_old_and_is_renewed_before() {
        let (endpoint, start) = (endpoint(false), Instant::now());
        assert_eq!(
            endpoint.capability(Probe::Chat, "m", start),
            Capability::Unknown
        );
        assert!(endpoint.is_proof_due(Probe::Chat, "m", start, 1));
        endpoint.proved((Probe::Chat, "m"), Capability::Supported, start, 1, 0);
        assert_eq!(
            endpoint.capability(Probe::Chat, "m", start),
            Capability::Supported
        );
        assert_eq!(
            endpoint.capability(Probe::Chat, "n", start),
            Capability::Unknown
        );
        assert!(!endpoint.is_proof_due(Probe::Chat, "m", start + RENEWAL - SECOND, 1));
        assert!(endpoint.is_proof_due(Probe::Chat, "m", start + RENEWAL, 1));
        assert_eq!(
            endpoint.capability(Probe::Chat, "m", start + LIFE - SECOND),
            Capability::Supported
        );
        assert_eq!(
            endpoint.capability(Probe::Chat, "m", start + LIFE),
            Capability::Unknown
        );
    }

    #[test]
    fn another_plan_asks_again_and_uses_the_proof_meanwhile() {
        let (endpoint, start) = (endpoint(false), Instant::now());
        endpoint.proved((Probe::Chat, "m"), Capability::Supported, start, 1, 0);
        assert!(endpoint.is_proof_due(Probe::Chat, "m", start, 2));
        assert_eq!(
            endpoint.capability(Probe::Chat, "m", start),
            Capability::Supported
        );
    }

    #[test]
    fn the_proof_of_a_server_does_not_count_for_its_replacement() {
        let (own, service, now) = (endpoint(false), endpoint(true), Instant::now());
        for endpoint in [&own, &service] {
            endpoint.proved((Probe::Chat, "m"), Capability::Supported, now, 1, 0);
            endpoint.may_have_restarted();
        }
        assert_eq!(own.capability(Probe::Chat, "m", now), Capability::Unknown);
        assert!(own.is_proof_due(Probe::Chat, "m", now, 1));
        assert_eq!(
            service.capability(Probe::Chat, "m", now),
            Capability::Supported
        );
        // The result of a probe that was sent before the restart.
        own.proved((Probe::Chat, "m"), Capability::Supported, now, 1, 0);
        assert_eq!(own.capability(Probe::Chat, "m", now), Capability::Unknown);
        own.proved((Probe::Chat, "m"), Capability::Supported, now, 1, 1);
        assert_eq!(own.capability(Probe::Chat, "m", now), Capability::Supported);
    }

    #[test]
    fn a_silent_server_is_probed_again_soon_and_keeps_its_proof() {
        let (endpoint, start) = (endpoint(false), Instant::now());
        endpoint.proved((Probe::Chat, "m"), Capability::Supported, start, 1, 0);
        endpoint.proved(
            (Probe::Chat, "m"),
            Capability::Unknown,
            start + RENEWAL,
            1,
            0,
        );
        assert!(
            endpoint.left_probe_unanswered(Probe::Chat, "m")
                && !endpoint.left_probe_unanswered(Probe::Chat, "n")
        );
        let probed = start + RENEWAL;
        assert_eq!(
            endpoint.capability(Probe::Chat, "m", probed),
            Capability::Supported
        );
        assert!(!endpoint.is_proof_due(Probe::Chat, "m", probed, 1));
        assert!(endpoint.is_proof_due(Probe::Chat, "m", probed + BACKOFF.first, 1));
        assert_eq!(
            endpoint.capability(Probe::Chat, "m", start + LIFE),
            Capability::Unknown
        );
        endpoint.proved(
            (Probe::Chat, "m"),
            Capability::Unsupported,
            probed + SECOND,
            1,
            0,
        );
        assert_eq!(
            endpoint.capability(Probe::Chat, "m", probed + SECOND),
            Capability::Unsupported
        );
    }

    #[test]
    fn the_proof_of_a_client_probe_stays_valid_while_the_proxys_probes_are_rejected() {
        let (endpoint, start) = (endpoint(false), Instant::now());
        let of = (Probe::Messages, "m");
        let known = |now| endpoint.capability(Probe::Messages, "m", now);
        endpoint.proved(of, Capability::Unauthorized, start, 1, 0);
        assert_eq!(known(start), Capability::Unauthorized);
        endpoint.proved(of, Capability::Supported, start + SECOND, 1, 0);
        let later = start + RENEWAL;
        endpoint.proved(of, Capability::Unauthorized, later, 1, 0);
        assert_eq!(known(later), Capability::Supported);
        assert!(!endpoint.is_proof_due(Probe::Messages, "m", later + SECOND, 1));
        let old = start + SECOND + LIFE;
        assert_eq!(known(old), Capability::Unknown);
        endpoint.proved(of, Capability::Unauthorized, old, 1, 0);
        assert_eq!(known(old), Capability::Unauthorized);
        assert_eq!(
            endpoint.capability(Probe::Chat, "m", old),
            Capability::Unknown
        );
    }

    #[test]
    fn the_number_of_models_is_bounded() {
        let (endpoint, start) = (endpoint(false), Instant::now());
        for index in 0..1000 {
            let model = format!("m{index}");
            let now = start + Duration::from_millis(index);
            endpoint.proved((Probe::Chat, &model), Capability::Supported, now, 1, 0);
        }
        assert_eq!(
            endpoint.capabilities(Probe::Chat, start + SECOND).len(),
            MAX_MODELS
        );
        assert_eq!(
            endpoint.capability(Probe::Chat, "m999", start + SECOND),
            Capability::Supported
        );
        let listed: Vec<Arc<str>> = (0..1000).map(|index| format!("l{index}").into()).collect();
        endpoint.listed(Some(listed.into()), start, 1, 0);
        let wanted = ["l3", "named"].map(|model| (Probe::Chat, model.into()));
        assert!(
            endpoint
                .models_to_probe(Probe::Messages, &wanted)
                .is_empty()
        );
        let models = endpoint.models_to_probe(Probe::Chat, &wanted);
        assert_eq!(models.len(), MAX_MODELS);
        assert_eq!(
            models[..4].iter().map(|model| &**model).collect::<Vec<_>>(),
            ["l3", "named", "l0", "l1"]
        );
    }
}
