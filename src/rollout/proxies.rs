//! Summarizes the reported states of all proxies.

use std::time::Duration;

use super::{Experience, NoReport, ObservedProxy, PerGeneration, gate::ByProxies};

/// Which proxies have applied the resource's last change and which lag, and their streams and requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProxySummary {
    /// The ready proxies that lag or do not answer, sorted. They hold back a move.
    pub lagging: Vec<String>,
    /// Whether one of these has had enough time to respond.
    pub lagging_is_sure: bool,
    /// All live proxies that lag or do not answer, sorted. They hold back the end.
    pub lagging_alive: Vec<String>,
    /// How many answer.
    pub responding: usize,
    /// How many there are.
    count: usize,
    /// How many have no port on which they can be queried.
    without_port: usize,
    /// How many do not answer and have such a port.
    without_report: usize,
    /// How many have applied the last change and send no requests to old, and in how many of those old also drains.
    left_old: usize,
    drain_old: usize,
    /// Open requests of earlier plans that may still be sent to old. `None` if a proxy does not report them.
    pub may_reach_old: Option<u64>,
    /// Open streams. `None` if a proxy does not report them.
    pub open: Option<PerGeneration<u64>>,
    /// The time since the last client request to any of them. `None` if a proxy does not report that.
    pub quiet_for: Option<Duration>,
    /// Streams on old that they still have to move to new.
    pub moving: u64,
    /// Their observations of new.
    pub see_new: ByProxies,
}

impl ProxySummary {
    pub fn of(proxies: &[ObservedProxy], generation: u64) -> Self {
        let mut lagging_alive: Vec<&ObservedProxy> = proxies
            .iter()
            .filter(|proxy| {
                let state = proxy.state.as_ref();
                !state.is_ok_and(|state| state.applied >= generation)
            })
            .collect();
        lagging_alive.sort_by(|a, b| a.name.cmp(&b.name));
        let name = |proxy: &ObservedProxy| match &proxy.state {
            Ok(_) => proxy.name.clone(),
            Err(no_report) => format!("{} ({no_report})", proxy.name),
        };
        let ready = || lagging_alive.iter().filter(|proxy| proxy.ready);
        let responding = || proxies.iter().filter_map(|proxy| proxy.state.as_ref().ok());
        let left_old = responding().filter(|state| state.applied >= generation && state.leaves_old);
        Self {
            see_new: ByProxies {
                none_responds: responding().next().is_none(),
                serves: responding().any(|state| state.new_serves == Experience::Good),
                is_impaired: responding().any(|state| state.new_is_impaired),
            },
            responding: responding().count(),
            count: proxies.len(),
            without_port: proxies
                .iter()
                .filter(|proxy| matches!(proxy.state, Err(NoReport::NoPort(_))))
                .count(),
            without_report: proxies
                .iter()
                .filter(|proxy| {
                    let no_report = proxy.state.as_ref().err();
                    no_report.is_some_and(NoReport::may_end)
                })
                .count(),
            drain_old: left_old.clone().filter(|state| state.old_drains).count(),
            left_old: left_old.count(),
            may_reach_old: proxies
                .iter()
                .map(|proxy| proxy.state.as_ref().ok()?.may_reach_old)
                .try_fold(0, |sum: u64, count| Some(sum.saturating_add(count?))),
            quiet_for: proxies
                .iter()
                .map(|proxy| proxy.state.as_ref().ok()?.quiet_for)
                .min()
                .flatten(),
            lagging: ready().map(|proxy| name(proxy)).collect(),
            lagging_is_sure: ready().any(|proxy| proxy.state != Err(NoReport::NotYet)),
            lagging_alive: lagging_alive.iter().map(|proxy| name(proxy)).collect(),
            moving: responding()
                .map(|state| state.moving)
                .fold(0, u64::saturating_add),
            open: proxies
                .iter()
                .map(|proxy| Some(proxy.state.as_ref().ok()?.open_streams))
                .try_fold(PerGeneration::default(), |sum: PerGeneration<u64>, open| {
                    open.map(|open| PerGeneration {
                        old: sum.old.saturating_add(open.old),
                        new: sum.new.saturating_add(open.new),
                    })
                }),
        }
    }

    /// Whether no pod can have a proxy that answers.
    pub const fn are_unreachable(&self) -> bool {
        self.count == self.without_port
    }

    /// Whether there are no proxies at all.
    pub const fn are_none(&self) -> bool {
        self.count == 0
    }

    /// Whether there are proxies and none of them sends requests to old.
    pub const fn have_left_old(&self) -> bool {
        self.count > 0 && self.left_old == self.count
    }

    /// Whether there are proxies and none of them uses old as a fallback.
    pub const fn let_old_drain(&self) -> bool {
        self.count > 0 && self.drain_old == self.count
    }

    /// Whether none of those that answer uses old as a fallback, and the others may just have ended.
    pub const fn let_old_drain_or_end(&self) -> bool {
        self.count > 0 && self.drain_old + self.without_report == self.count
    }

    /// Whether, according to all of them, nothing runs on old and nothing can still be sent to it.
    pub fn old_is_empty(&self) -> bool {
        self.may_reach_old == Some(0) && self.open.is_some_and(|open| open.old == 0)
    }
}
