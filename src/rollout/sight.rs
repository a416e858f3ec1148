//! An observation, understood: capacities, the gate and the proxies, by what is remembered and wanted.
//!
//! Must not know the rules.

use std::collections::BTreeMap;

use super::{
    Capacity, Credit, Memory, Moment, Observation, Obstacle, Ratio, Role, Settings, Sides, Workers,
    capacity,
    gate::{Wanted, gate},
    proxies::Proxies,
};

pub(super) struct Sight<'a> {
    pub settings: &'a Settings,
    pub seen: &'a Observation,
    pub now: Moment,
    pub capacity: Sides<Capacity>,
    /// Was ever a worker of old found, or an object that has none?
    pub old_was_found: bool,
    /// What keeps new from serving.
    pub obstacles: Vec<Obstacle>,
    /// Is new only taken to serve, because it did when it was last heard? Then it keeps what it has and gains nothing.
    pub is_presumed: bool,
    pub proxies: Proxies,
    /// When the ready proxies are waited for no longer.
    pub ack_deadline: Moment,
}

impl<'a> Sight<'a> {
    pub fn of(settings: &'a Settings, memory: &Memory, seen: &'a Observation, now: Moment) -> Self {
        let capacity = capacity::of_both(&seen.workers, &memory.full_sizes, &settings.full_sizes);
        let wanted = wanted(settings, memory, seen);
        let has_share = has_share(settings, memory, seen, &capacity.new);
        let last_change = memory.change.map_or(now, |change| change.since);
        Self {
            settings,
            seen,
            now,
            obstacles: gate(&seen.frontends.new, wanted, &capacity.new, has_share),
            is_presumed: seen.frontends.new.unheard || wanted == Wanted::NotYet,
            old_was_found: !memory.full_sizes.is_empty() || !seen.workers.old.is_empty(),
            capacity,
            proxies: Proxies::of(&seen.proxies, seen.resource_generation),
            ack_deadline: last_change.after(settings.ack_timeout),
        }
    }

    /// Can each side serve at this moment?
    pub fn serves(&self) -> Sides<bool> {
        Sides {
            old: self.capacity.old.serves,
            new: self.obstacles.is_empty(),
        }
    }

    /// The capacity that is there to be credited: none behind a closed gate.
    pub fn usable(&self) -> Sides<Ratio> {
        let behind_gate = self.capacity.new.share;
        Sides {
            old: self.capacity.old.share,
            new: if self.serves().new {
                behind_gate
            } else {
                Ratio::ZERO
            },
        }
    }

    /// Has every ready proxy applied the last change, or had its time to?
    pub fn may_gain(&self) -> bool {
        self.proxies.lagging.is_empty() || self.time_is_up()
    }

    /// Do ready proxies lag though they had their time? Who gives them none is not told; nor is who does not rule, as the
    /// proxies do not follow it.
    pub fn is_lagging(&self) -> bool {
        let had_time = self.time_is_up() && !self.settings.ack_timeout.is_zero();
        had_time && self.proxies.lagging_is_sure && self.seen.superseded_by.is_none()
    }

    fn time_is_up(&self) -> bool {
        self.now >= self.ack_deadline
    }

    /// Takes what is usable now into the `credit` of each side; which side lost?
    ///
    /// At the first sight old is credited with all it has, and new with what its share so far implies: an update that is
    /// taken over half-way goes on from there.
    pub fn credit(&self, credit: Option<Sides<Credit>>) -> (Sides<Credit>, Sides<bool>) {
        let usable = self.usable();
        let mut credit = credit.unwrap_or_else(|| Sides {
            old: Credit::of(usable.old),
            new: Credit::of(Ratio::implied(self.seen.split, usable.old).unwrap_or(usable.new)),
        });
        let usable_new = match self.is_presumed {
            true => usable.new.min(credit.new.capacity),
            false => usable.new,
        };
        let lost = Sides {
            old: credit.old.see(usable.old, self.now),
            new: credit.new.see(usable_new, self.now),
        };
        if self.may_gain() {
            credit.old.gain(self.now, self.settings.stable);
            credit.new.gain(self.now, self.settings.stable);
        }
        (credit, lost)
    }

    /// Does anybody want a worker of new, so that being without is a fault and not a way back?
    pub fn new_is_wanted(&self) -> bool {
        let workers = self.seen.workers.new.values();
        workers.into_iter().any(|workers| workers.desired > 0)
    }

    /// Does anybody still want old, so that being without workers is an outage and not the end?
    pub fn old_is_wanted(&self) -> bool {
        let wanted = |role: &Role| is_wanted(&self.seen.workers.old, *role);
        let mut roles = self.capacity.old.roles.keys();
        roles.len() > 0 && roles.all(wanted)
    }

    /// Is old without workers because nobody wants it any more? Where nothing was ever found under its name, that may be
    /// mistyped.
    pub fn old_is_given_up(&self) -> bool {
        self.old_was_found && !self.old_is_wanted()
    }
}

/// Does new have a part in the split that it earned before, or that a person holds?
fn has_share(settings: &Settings, memory: &Memory, seen: &Observation, new: &Capacity) -> bool {
    let credit = memory.credit.as_ref();
    let earned = !new.share.is_zero() && credit.is_none_or(|credit| !credit.new.capacity.is_zero());
    !seen.split.is_all_old() && (settings.paused || earned)
}

/// What new must serve: what is stated, or what old serves or served.
fn wanted<'a>(settings: &'a Settings, memory: &'a Memory, seen: &Observation) -> Wanted<'a> {
    let old = &seen.frontends.old;
    match &settings.models {
        Some(models) => Wanted::Models(models),
        None if !memory.models.is_empty() || old.endpoints == 0 => Wanted::Models(&memory.models),
        None if old.unheard => Wanted::NotYet,
        None if old.trouble.is_some() => Wanted::Unknown,
        // It serves none.
        None => Wanted::Models(&memory.models),
    }
}

fn is_wanted(workers: &BTreeMap<Role, Workers>, role: Role) -> bool {
    workers
        .get(&role)
        .is_some_and(|workers| workers.desired > 0)
}
