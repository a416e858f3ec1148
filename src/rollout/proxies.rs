//! What the proxies say together.
//!
//! Must not know what waits for it.

use super::{Proxy, Sides, Silence};

/// Those that have applied the resource's last change, those that lag, and what runs through them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proxies {
    /// The ready ones that lag or do not answer, sorted: they hold back a move.
    pub lagging: Vec<String>,
    /// Is one among them that had its chance to answer?
    pub lagging_is_sure: bool,
    /// All alive that lag or do not answer, sorted: they hold back the end.
    pub lagging_alive: Vec<String>,
    /// Open streams. None if one does not say.
    pub open: Option<Sides<u64>>,
}

impl Proxies {
    pub fn of(proxies: &[Proxy], generation: u64) -> Self {
        let mut lagging_alive: Vec<&Proxy> = proxies
            .iter()
            .filter(|proxy| {
                let state = proxy.state.as_ref();
                !state.is_ok_and(|state| state.applied >= generation)
            })
            .collect();
        lagging_alive.sort_by(|a, b| a.name.cmp(&b.name));
        let told = |proxy: &Proxy| match &proxy.state {
            Ok(_) => proxy.name.clone(),
            Err(Silence::NotYet) => format!("{} (not heard yet)", proxy.name),
            Err(Silence::NoAnswer) => format!("{} (does not answer)", proxy.name),
            Err(Silence::NoPort(port)) => format!("{} (has no port {port})", proxy.name),
        };
        let ready = || lagging_alive.iter().filter(|proxy| proxy.ready);
        Self {
            lagging: ready().map(|proxy| told(proxy)).collect(),
            lagging_is_sure: ready().any(|proxy| proxy.state != Err(Silence::NotYet)),
            lagging_alive: lagging_alive.iter().map(|proxy| told(proxy)).collect(),
            open: proxies
                .iter()
                .map(|proxy| Some(proxy.state.as_ref().ok()?.open_streams))
                .try_fold(Sides::default(), |sum: Sides<u64>, open| {
                    open.map(|open| Sides {
                        old: sum.old.saturating_add(open.old),
                        new: sum.new.saturating_add(open.new),
                    })
                }),
        }
    }

    /// Does nothing run through them, of either side, for certain?
    pub fn carry_nothing(&self) -> bool {
        self.open == Some(Sides::default())
    }

    /// Does nothing run on old, for certain?
    pub fn old_is_empty(&self) -> bool {
        self.open.is_some_and(|open| open.old == 0)
    }
}
