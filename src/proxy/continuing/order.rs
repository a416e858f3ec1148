//! The order in which endpoints are asked for the rest of a stream. An endpoint that may not respond does not delay those that
//! have proven that they can continue it.

use std::sync::Arc;
use std::time::Instant;

use super::PreparedContinuation;
use crate::continuation::{Capability, ContinuationCause};
use crate::failover::Candidates;
use crate::upstream::{Endpoint, Pool};

/// When an endpoint is asked for the rest of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// It has proven that it can continue the stream.
    Proven,
    /// Nothing is known of it.
    Open,
    /// It did not respond to a probe.
    Unresponsive,
    /// It is ejected, but not because it did not respond in time. An attempt is better than the end of the stream.
    Ejected,
}

impl Order {
    /// Every one, in the order of asking.
    pub const ALL: [Self; 4] = [Self::Proven, Self::Open, Self::Unresponsive, Self::Ejected];
}

impl PreparedContinuation {
    /// When to ask `endpoint`. `None` if it has proven that it cannot continue the stream.
    fn order(&self, endpoint: &Endpoint, now: Instant) -> Option<Order> {
        let Some((probe, model)) = &self.proof else {
            return Some(Order::Proven);
        };
        match endpoint.capability(*probe, model, now) {
            Capability::Supported => Some(Order::Proven),
            Capability::Unsupported => None,
            _ if endpoint.left_probe_unanswered(*probe, model) => Some(Order::Unresponsive),
            Capability::Unknown | Capability::Unauthorized => Some(Order::Open),
        }
    }

    /// The next endpoint to ask, at `order` or before, and its order. `same` is the one whose stream broke, until it has been
    /// asked.
    pub fn pick(
        &self,
        pool: &Pool,
        candidates: &Candidates,
        order: Order,
        tried: &[u64],
        same: &mut Option<&Arc<Endpoint>>,
    ) -> Option<(Arc<Endpoint>, Order)> {
        let now = Instant::now();
        let at = |endpoint: &Endpoint| {
            let known = self.order(endpoint, now)?;
            let at = match candidates {
                Candidates::Others(_) if !endpoint.is_healthy(now) => {
                    // A stream that has to move still has its server.
                    let moves = self.cause == ContinuationCause::PlannedMove;
                    let may_hang =
                        endpoint.failed_probe() || endpoint.is_ejected_as_unresponsive(now);
                    (!moves && !may_hang).then_some(Order::Ejected)
                }
                _ => Some(known),
            };
            at.filter(|at| *at <= order)
        };
        let fits = |endpoint: &Endpoint| at(endpoint).is_some();
        let picked = match candidates {
            Candidates::Others(_) => pool.pick_fitting(fastrand::u32(..), fits, tried)?,
            Candidates::Same => {
                let of_pool = |same: &Arc<Endpoint>| {
                    let mut endpoints = pool.endpoints().iter();
                    endpoints.any(|endpoint| Arc::ptr_eq(endpoint, same))
                };
                same.take_if(|same| of_pool(same) && fits(same))?
            }
        };
        Some((Arc::clone(picked), at(picked)?))
    }
}
