//! An observation, understood: capacities, the gate and the proxies, by what is remembered and wanted.
//!
//! Must not know the rules.

use std::collections::BTreeMap;

use super::{
    Capacity, Credit, Memory, Observation, Ratio, Role, Settings, Sides, Timestamp, Workers,
    capacity,
    gate::{Asked, Gate, RequiredModels, gate},
    proxies::Proxies,
    registered,
};

pub(super) struct Assessment<'a> {
    pub settings: &'a Settings,
    pub seen: &'a Observation,
    pub now: Timestamp,
    pub capacity: Sides<Capacity>,
    /// Was ever a worker of old found, or an object that has none?
    pub old_was_found: bool,
    /// Whether new can serve.
    pub gate: Gate,
    /// Is it unknown what new must serve, because nobody can say what old does?
    pub wanted_is_unknown: bool,
    pub proxies: Proxies,
    /// When the ready proxies are waited for no longer.
    pub ack_deadline: Timestamp,
}

impl<'a> Assessment<'a> {
    pub fn of(
        settings: &'a Settings,
        memory: &Memory,
        seen: &'a Observation,
        now: Timestamp,
    ) -> Self {
        let known = registered::known(&seen.workers, &seen.frontends, memory.registered_count);
        let capacity = capacity::of_both(&known, &memory.full_sizes, &settings.full_sizes);
        let wanted = wanted(settings, memory, seen);
        let has_share = has_share(settings, memory, seen, &capacity.new);
        let last_change = memory.change.map_or(now, |change| change.since);
        let proxies = Proxies::of(&seen.proxies, seen.resource_generation);
        let asked = Asked {
            frontends: &seen.frontends.new,
            wanted,
            capacity: &capacity.new,
            has_share,
            by_proxies: proxies.see_new,
        };
        Self {
            settings,
            seen,
            now,
            gate: gate(asked),
            wanted_is_unknown: wanted == RequiredModels::Unknown,
            old_was_found: !memory.full_sizes.is_empty() || !seen.workers.old.is_empty(),
            capacity,
            proxies,
            ack_deadline: last_change.after(settings.ack_timeout),
        }
    }

    /// Can each side serve at this moment?
    pub fn serves(&self) -> Sides<bool> {
        Sides {
            old: self.capacity.old.serves,
            new: self.gate.obstacles.is_empty(),
        }
    }

    /// The capacity that is there to be credited: none behind a closed gate, and only a part of it behind frontends of which
    /// not all serve.
    pub fn usable(&self) -> Sides<Ratio> {
        let gate = &self.gate;
        let behind_gate = match gate.failing {
            0 => self.capacity.new.share,
            failing => {
                let serving = gate.asked.saturating_sub(failing);
                self.capacity
                    .new
                    .share
                    .part(serving as u64, gate.asked as u64)
            }
        };
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
        let is_applied = self.proxies.lagging.is_empty() || self.time_is_up();
        is_applied && !self.settings.losses_only
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
    /// At the first assessment old is credited with all it has, and new with what its share so far implies: an update that is
    /// taken over half-way goes on from there.
    pub fn credit(&self, credit: Option<Sides<Credit>>) -> (Sides<Credit>, Sides<bool>) {
        let usable = self.usable();
        let mut credit = credit.unwrap_or_else(|| Sides {
            old: Credit::of(usable.old),
            new: Credit::of(Ratio::implied(self.seen.split, usable.old).unwrap_or(usable.new)),
        });
        let usable_new = match self.gate.is_presumed {
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

    /// How many workers of new are ready that none of its frontends knows of.
    pub fn unregistered(&self) -> u32 {
        let roles = self.capacity.new.roles.iter();
        let missing = roles.map(|(role, counted)| {
            let ready = self.seen.workers.new.get(role);
            ready.map_or(0, |workers| workers.ready.saturating_sub(counted.ready))
        });
        missing.sum()
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
fn wanted<'a>(
    settings: &'a Settings,
    memory: &'a Memory,
    seen: &Observation,
) -> RequiredModels<'a> {
    let old = &seen.frontends.old;
    match &settings.models {
        Some(models) => RequiredModels::Models(models),
        None if !memory.models.is_empty() || old.endpoints == 0 => {
            RequiredModels::Models(&memory.models)
        }
        None if old.has_open() => RequiredModels::NotYet,
        None if old.trouble().is_some() => RequiredModels::Unknown,
        // It serves none.
        None => RequiredModels::Models(&memory.models),
    }
}

fn is_wanted(workers: &BTreeMap<Role, Workers>, role: Role) -> bool {
    workers
        .get(&role)
        .is_some_and(|workers| workers.desired > 0)
}
