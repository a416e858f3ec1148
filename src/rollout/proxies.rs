//! What the proxies say together.
//!
//! Must not know what waits for it.

use super::{Proxy, Sides};

/// Those that have applied the resource's last change, those that lag, and what runs through them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proxies {
    /// The ready ones that lag or do not answer, sorted: they hold back a move.
    pub lagging: Vec<String>,
    /// All alive that lag or do not answer, sorted: they hold back the end.
    pub lagging_alive: Vec<String>,
    /// Open streams. None if one does not answer.
    pub open: Option<Sides<u64>>,
}

impl Proxies {
    pub fn of(proxies: &[Proxy], generation: u64) -> Self {
        let mut lagging_alive: Vec<&Proxy> = proxies
            .iter()
            .filter(|proxy| proxy.state.is_none_or(|state| state.applied < generation))
            .collect();
        lagging_alive.sort_by(|a, b| a.name.cmp(&b.name));
        let told = |proxy: &&&Proxy| match proxy.state {
            Some(_) => proxy.name.clone(),
            None => format!("{} (does not answer)", proxy.name),
        };
        Self {
            lagging: lagging_alive
                .iter()
                .filter(|proxy| proxy.ready)
                .map(|proxy| told(&proxy))
                .collect(),
            lagging_alive: lagging_alive.iter().map(|proxy| told(&proxy)).collect(),
            open: proxies
                .iter()
                .map(|proxy| proxy.state.map(|state| state.open_streams))
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
