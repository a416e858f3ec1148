//! Decides which generation a request goes to, and why.
//!
//! # The rule
//!
//! With a weight of 5%, `n × 5%` of any `n` consecutive requests through one proxy go to the new generation, to within one
//! request. This holds exactly from the first request on, not on average. A random number per request would miss by about
//! `√(n·w·(1−w))`: for twenty requests at 5%, by as much as the one request that is due.
//!
//! The split therefore uses error diffusion in one dimension. Each request adds the weight of the
//! new generation to an accumulator. When the accumulator reaches a whole request, that request
//! goes to the new generation and one is subtracted. This is Bresenham's line (1965), and the error
//! diffusion of Floyd and Steinberg (*An adaptive algorithm for spatial greyscale*, 1976): the
//! error of one decision is carried into the next. Any two runs of the same length contain the same
//! number of new requests, plus or minus one. No rule has a lower discrepancy.
//!
//! * Each proxy starts at a random phase, so that many proxies with little traffic do not all
//!   withhold their first request for the new generation until the same moment.
//! * The accumulator outlives the plan: a new weight does not restart the count. Each plan has a [`SplitPolicy`] with its own
//!   [`Weights`], and all policies of a process share one [`Diffusion`].
//! * A request with an affinity key goes to the generation given by the hash of its key ([`Key`]) and is
//!   *counted*. Requests without a key compensate, so that the total still meets the weight if there are enough of them.
//! * Requests that bypass the split (pinned, overridden, guarded, retried) are not counted.
//!
//! An exact rule has a period. A client whose requests alternate in step with it (every second one
//! large, at 50%) sends all of one kind to one generation. Traffic from many clients does not do
//! this.
//!
//! Does not depend on HTTP, plans, pools, clocks or a source of randomness. It is pure except for the atomic integers of
//! [`Diffusion`], and each update of these is a pure function.

mod affinity;
mod assign;
mod diffusion;
mod policy;
mod weights;

use std::fmt;

pub use affinity::Key;
pub use assign::{Assignment, Reason, RequestAttributes};
pub use diffusion::{DEBT_LIMIT, Diffusion};
pub use policy::SplitPolicy;
pub(crate) use weights::gcd;
pub use weights::{Weights, WeightsError};

/// One of the two versions of an update: a set of frontends and workers of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// The generation that served before the update.
    Old,
    /// The generation to which the update moves traffic.
    New,
}

impl Generation {
    /// Both, in the order of [`Generation::index`].
    pub const ALL: [Generation; 2] = [Generation::Old, Generation::New];

    /// `old` or `new`, as used for metric labels, log fields and header values.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Generation::Old => "old",
            Generation::New => "new",
        }
    }

    /// The other generation.
    #[must_use]
    pub const fn other(self) -> Generation {
        match self {
            Generation::Old => Generation::New,
            Generation::New => Generation::Old,
        }
    }

    /// The index in a two-element array: 0 for old, 1 for new.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Generation::Old => 0,
            Generation::New => 1,
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_indexed_in_the_order_of_all() {
        for (index, generation) in Generation::ALL.into_iter().enumerate() {
            assert_eq!(generation.index(), index);
            assert_eq!(generation.other().index(), 1 - index);
            assert_eq!(generation.to_string(), generation.as_str());
        }
    }
}
