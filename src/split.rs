//! The split: which generation a request goes to, and why.
//!
//! # The rule
//!
//! A weight of 5 % means that of any run of `n` requests through one proxy `n × 5 %` go to the new
//! generation, to within one request: exactly, from the first request on, not on average. Drawing
//! a random number per request would miss by about `√(n·w·(1−w))`: of twenty requests at 5 %, by
//! as much as the one request that is due.
//!
//! So the choice is made by error diffusion, in one dimension: each request adds the weight of the
//! new generation to an accumulator; whenever a whole request has gathered there, that request goes
//! to the new generation and one is taken off. This is Bresenham's line (1965), and the error
//! diffusion of Floyd and Steinberg (*An adaptive algorithm for spatial greyscale*, 1976): what one
//! decision gets wrong, the next ones are told. Any two runs of one length then hold the same number
//! of new requests, give or take one: no rule has a lower discrepancy.
//!
//! * Each proxy starts at a random phase, so that many proxies with little traffic each do not all
//!   hold back their first request to the new generation until the same moment.
//! * The accumulator outlives the plan: a change of weight starts no new count.
//! * A request with an affinity key goes to a side fixed by the hash of its key ([`Key`]), and is
//!   *counted*: the requests without a key make up for it, so that the whole still meets the weight
//!   for as long as there are enough of them.
//! * Everything that is not open to the split (pinned, overridden, guarded, retried) is not
//!   counted: it is beside the weight, not part of it.
//!
//! Beware: an exact rule has a period. A client whose own requests alternate in step with it (every
//! second one large, at 50 %) sends all of one kind to one generation. Traffic of many clients does
//! not do this.
//!
//! # What this room must not know
//!
//! HTTP, plans, pools, clocks, where randomness comes from. It is pure but for one atomic integer
//! ([`Diffusion`]), whose every step is a pure function.

mod affinity;
mod assign;
mod diffusion;
mod weights;

use std::fmt;

pub use affinity::Key;
pub use assign::{Assignment, Reason, RequestAttributes, assign};
pub use diffusion::{DEBT_LIMIT, Diffusion};
pub use weights::{Weights, WeightsError};

/// One of the two sides of an update: a set of frontends and workers of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// The one that served before the update.
    Old,
    /// The one the update fades to.
    New,
}

impl Generation {
    /// Both, in the order of [`Generation::index`].
    pub const ALL: [Generation; 2] = [Generation::Old, Generation::New];

    /// `old` or `new`: metric label, log field, header value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Generation::Old => "old",
            Generation::New => "new",
        }
    }

    /// The side that this one is not.
    #[must_use]
    pub const fn other(self) -> Generation {
        match self {
            Generation::Old => Generation::New,
            Generation::New => Generation::Old,
        }
    }

    /// The place in a two-element array: 0 for old, 1 for new.
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
