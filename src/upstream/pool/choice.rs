//! Picks an endpoint of a pool by load and health.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{FailFast, Pool};
use crate::upstream::Endpoint;

/// While no endpoint is healthy, one request in this many is sent anyway.
const SEND_EVERY: u32 = 2;
const SEND_EVERY_UNREACHABLE: u32 = 4;

impl Pool {
    /// Whether any endpoint is healthy at `now`.
    #[must_use]
    pub fn is_healthy(&self, now: Instant) -> bool {
        self.endpoints
            .iter()
            .any(|endpoint| endpoint.is_healthy(now))
    }

    /// Picks the less loaded of two endpoints chosen by `draw` (power of two choices, Mitzenmacher 2001), never `but`.
    ///
    /// The candidates are the healthy endpoints, if they are at least half of all. Below that, endpoints ejected for error
    /// responses are candidates too (a panic threshold, as in Envoy): otherwise the remaining ones would break down under the
    /// full load, and errors from all endpoints are more likely caused by the requests. If no candidate is left, all endpoints
    /// are candidates: an attempt is better than a refusal.
    pub(super) fn pick(
        &self,
        now: Instant,
        draw: u32,
        but: Option<&Arc<Endpoint>>,
    ) -> Option<&Arc<Endpoint>> {
        if let ([only], None) = (&self.endpoints[..], but) {
            return Some(only);
        }
        let others = self
            .endpoints
            .iter()
            .filter(|endpoint| but.is_none_or(|but| !Arc::ptr_eq(but, endpoint)));
        let healthy = others.clone().filter(|endpoint| endpoint.is_healthy(now));
        let count = healthy.clone().count();
        if count * 2 >= self.endpoints.len() {
            return two_choices(healthy, count, draw);
        }
        let there = others.clone().filter(|endpoint| !endpoint.is_gone(now));
        match there.clone().count() {
            0 => two_choices(others.clone(), others.count(), draw),
            count => two_choices(there, count, draw),
        }
    }

    /// Whether the request should fail without an attempt. Every [`SEND_EVERY`]th request is sent anyway, so that the first
    /// success ends the ejection. If no endpoint is reachable, these requests are rarer ([`SEND_EVERY_UNREACHABLE`]), because
    /// each may take the whole connect timeout. If all endpoints failed their probes there are none: the probes detect
    /// recovery.
    pub(super) fn should_fail_fast(&self, fail_fast: FailFast, now: Instant) -> bool {
        if fail_fast == FailFast::Never || self.endpoints.is_empty() || self.is_healthy(now) {
            return false;
        }
        let gone = || self.endpoints.iter().all(|endpoint| endpoint.is_gone(now));
        if fail_fast == FailFast::IfGone && !gone() {
            return false;
        }
        if self
            .endpoints
            .iter()
            .all(|endpoint| endpoint.failed_probe())
        {
            return true;
        }
        let unreachable = |endpoint: &Arc<Endpoint>| endpoint.is_unreachable(now);
        let every = match self.endpoints.iter().all(unreachable) {
            true => SEND_EVERY_UNREACHABLE,
            false => SEND_EVERY,
        };
        !self
            .turns
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(every)
    }

    /// Picks, like [`Pool::send`], an endpoint that `fits`. Endpoints whose IDs are in `but` are left out.
    #[must_use]
    pub fn pick_fitting(
        &self,
        draw: u32,
        fits: impl Fn(&Endpoint) -> bool,
        but: &[u64],
    ) -> Option<&Arc<Endpoint>> {
        let fitting = self
            .endpoints
            .iter()
            .filter(|endpoint| !but.contains(&endpoint.id) && fits(endpoint));
        two_choices(fitting.clone(), fitting.count(), draw)
    }
}

fn two_choices<'a>(
    mut endpoints: impl Iterator<Item = &'a Arc<Endpoint>>,
    count: usize,
    draw: u32,
) -> Option<&'a Arc<Endpoint>> {
    if count < 2 {
        return endpoints.next();
    }
    let first = (draw >> 16) as usize % count;
    let second = (first + 1 + (draw & 0xffff) as usize % (count - 1)) % count;
    let (low, high) = (first.min(second), first.max(second));
    let a = endpoints.nth(low)?;
    let b = endpoints.nth(high - low - 1)?;
    // The order of the pair is random too, so that a tie favours neither.
    let (a, b) = if first < second { (a, b) } else { (b, a) };
    Some(if a.open() <= b.open() { a } else { b })
}
