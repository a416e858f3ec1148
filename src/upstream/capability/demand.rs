//! The models that requests name, so that endpoints are probed for them in advance.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::MAX_MODEL_NAME;
use crate::continuation::Probe;

/// Maximum number of models that are remembered. A further one replaces the one that was named first.
const MAX_WANTED: usize = 16;

/// A model and its probe.
pub type ModelDemand = (Probe, Arc<str>);

/// The models that requests name. Only requests that a model server answered with status 200 may add to it, since clients choose
/// the names.
#[derive(Debug, Default)]
pub struct Demand {
    /// The models to probe, oldest first.
    known: ArcSwap<VecDeque<ModelDemand>>,
    /// A model that has not been added yet.
    next: Mutex<Option<ModelDemand>>,
}

impl Demand {
    /// A request for `model`, whose stream can be continued if `probe` succeeds, was answered with status 200.
    ///
    /// At most one new model is recorded until [`Demand::take`]. Later requests name the others again.
    pub fn record(&self, probe: Probe, model: &str) {
        let fits = (1..=MAX_MODEL_NAME).contains(&model.len());
        let known = self.known.load();
        if !fits
            || known
                .iter()
                .any(|(of, known)| *of == probe && **known == *model)
        {
            return;
        }
        // Do not wait for another thread, because this runs on the request path.
        if let Ok(mut next) = self.next.try_lock()
            && next.is_none()
        {
            *next = Some((probe, model.into()));
        }
    }

    /// The models to probe, including one that was named in the meantime.
    pub fn take(&self) -> Vec<ModelDemand> {
        let next = self
            .next
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(next) = next {
            let mut known = VecDeque::clone(&self.known.load());
            known.push_back(next);
            if known.len() > MAX_WANTED {
                known.pop_front();
            }
            self.known.store(Arc::new(known));
        }
        self.known.load().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(demand: &Demand) -> Vec<String> {
        demand
            .take()
            .iter()
            .map(|(_, model)| model.to_string())
            .collect()
    }

    #[test]
    fn a_client_adds_one_model_at_a_time_and_few_in_all() {
        let demand = Demand::default();
        for name in ["a", "b", "", &"x".repeat(257)] {
            demand.record(Probe::Chat, name);
        }
        assert_eq!(take(&demand), ["a"]);
        demand.record(Probe::Chat, "a");
        assert_eq!(take(&demand), ["a"]);
        demand.record(Probe::Messages, "a");
        assert_eq!(take(&demand), ["a", "a"]);
        for index in 0..1000 {
            demand.record(Probe::Chat, &index.to_string());
            take(&demand);
        }
        let kept = take(&demand);
        assert_eq!(kept.len(), MAX_WANTED);
        assert_eq!(kept.last().map(String::as_str), Some("999"));
    }
}
