//! How a plan splits requests.

use std::sync::Arc;

use super::assign::assign;
use super::{Assignment, Diffusion, RequestAttributes, Weights};

/// The split of a plan: its weights, and the accumulator, which the policies of successive plans share.
///
/// A snapshot has one. Assigning a request takes no lock and allocates nothing.
#[derive(Debug)]
pub struct SplitPolicy {
    weights: Weights,
    diffusion: Arc<Diffusion>,
}

impl SplitPolicy {
    /// A policy with its own accumulator, which starts at `phase`, any 64 random bits (see [`Diffusion::new`]).
    #[must_use]
    pub fn new(weights: Weights, phase: u64) -> Self {
        Self {
            weights,
            diffusion: Arc::new(Diffusion::new(phase)),
        }
    }

    /// The policy of the next plan of the same process, with other weights. The count continues.
    #[must_use]
    pub fn with_weights(&self, weights: Weights) -> Self {
        Self {
            weights,
            diffusion: Arc::clone(&self.diffusion),
        }
    }

    /// Assigns a request. In order of precedence: guarded, forced, pinned, sticky, weighted. Only sticky and weighted requests are
    /// counted.
    #[must_use]
    pub fn assign(&self, attributes: &RequestAttributes) -> Assignment {
        assign(&self.weights, &self.diffusion, attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Generation;

    #[test]
    fn a_new_plan_does_not_restart_the_count() {
        let split = |percent| Weights::percent(percent).unwrap();
        let mut policy = SplitPolicy::new(split(50), 0);
        let mut to_new = 0;
        // If the count restarted with each plan, none of these requests would go to new.
        for _ in 0..100 {
            let assignment = policy.assign(&RequestAttributes::default());
            to_new += u32::from(assignment.generation == Generation::New);
            policy = policy.with_weights(split(50));
        }
        assert_eq!(to_new, 50);
    }
}
