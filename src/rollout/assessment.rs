//! Evaluates an observation against settings and memory: capacities, the gate and the proxies. Does not depend on the
//! rules.

use std::collections::BTreeMap;

use super::{
    Capacity, Credit, Memory, Observation, PerGeneration, Ratio, Role, Timestamp, UpdateSettings,
    Workers, capacity,
    gate::{Gate, GateInput, RequiredModels, gate},
    proxies::ProxySummary,
    registered,
};

pub(super) struct Assessment<'a> {
    pub settings: &'a UpdateSettings,
    pub seen: &'a Observation,
    pub now: Timestamp,
    pub capacity: PerGeneration<Capacity>,
    /// Whether workers of old were ever found, or old has a component now, even one scaled to 0.
    pub old_was_found: bool,
    /// Whether new can serve.
    pub gate: Gate,
    /// Whether the required models are unknown because old's frontends cannot be queried.
    pub wanted_is_unknown: bool,
    pub proxies: ProxySummary,
    /// When the ack timeout of the last change expires.
    pub ack_deadline: Timestamp,
}

impl<'a> Assessment<'a> {
    pub fn of(
        settings: &'a UpdateSettings,
        memory: &Memory,
        seen: &'a Observation,
        now: Timestamp,
    ) -> Self {
        let known = registered::known(&seen.workers, &seen.frontends, memory.registered_count);
        let capacity = capacity::of_both(&known, &memory.full_sizes, &settings.full_sizes);
        let has_share = has_share(settings, memory, seen, &capacity.new);
        let last_change = memory.change.map_or(now, |change| change.since);
        let proxies = ProxySummary::of(&seen.proxies, seen.resource_generation);
        let wanted = wanted(settings, memory, seen);
        Self {
            settings,
            seen,
            now,
            gate: gate_of_new(seen, wanted, &capacity.new, &proxies, has_share),
            wanted_is_unknown: wanted == RequiredModels::Unknown,
            old_was_found: !memory.full_sizes.is_empty() || !seen.workers.old.is_empty(),
            capacity,
            proxies,
            ack_deadline: last_change.after(settings.ack_timeout),
        }
    }

    /// Takes the whole share from new. Returns whether that changes anything: if new is only presumed to serve, it cannot serve
    /// without a share.
    pub fn take_share(&mut self, memory: &Memory) -> bool {
        let before = self.gate.obstacles.len();
        let wanted = wanted(self.settings, memory, self.seen);
        self.gate = gate_of_new(self.seen, wanted, &self.capacity.new, &self.proxies, false);
        self.gate.obstacles.len() != before
    }

    /// Whether each generation can serve right now.
    pub fn serves(&self) -> PerGeneration<bool> {
        PerGeneration {
            old: self.capacity.old.serves,
            new: self.gate.obstacles.is_empty(),
        }
    }

    /// The capacity that can be credited. New's is 0 behind a closed gate, and reduced by the fraction of its frontends
    /// that fail.
    pub fn usable(&self) -> PerGeneration<Ratio> {
        let gate = &self.gate;
        let share_of_new = match gate.failing {
            0 => self.capacity.new.share,
            failing => {
                let serving = gate.queried.saturating_sub(failing);
                self.capacity
                    .new
                    .share
                    .part(serving as u64, gate.queried as u64)
            }
        };
        PerGeneration {
            old: self.capacity.old.share,
            new: if self.serves().new {
                share_of_new
            } else {
                Ratio::ZERO
            },
        }
    }

    /// Whether gains may count: every ready proxy has applied the last change or the ack timeout has expired, and the
    /// settings are not `losses_only`.
    pub fn may_gain(&self) -> bool {
        let is_applied = self.proxies.lagging.is_empty() || self.time_is_up();
        is_applied && !self.settings.losses_only
    }

    /// Whether to report that ready proxies still lag after the ack timeout. Never with a timeout of 0, and never for a
    /// superseded update, which the proxies do not follow.
    pub fn is_lagging(&self) -> bool {
        let had_time = self.time_is_up() && !self.settings.ack_timeout.is_zero();
        had_time && self.proxies.lagging_is_sure && self.seen.superseded_by.is_none()
    }

    fn time_is_up(&self) -> bool {
        self.now >= self.ack_deadline
    }

    /// Updates the `credit` of each generation with the usable capacity, and returns which generation lost capacity.
    ///
    /// On the first assessment, old is credited with everything it has and new with what its current share implies, so
    /// that an update taken over half-way continues from there.
    pub fn credit(
        &self,
        credit: Option<PerGeneration<Credit>>,
    ) -> (PerGeneration<Credit>, PerGeneration<bool>) {
        let usable = self.usable();
        let mut credit = credit.unwrap_or_else(|| PerGeneration {
            old: Credit::of(usable.old),
            new: Credit::of(Ratio::implied(self.seen.split, usable.old).unwrap_or(usable.new)),
        });
        let usable_new = match self.gate.is_presumed {
            true => usable.new.min(credit.new.capacity),
            false => usable.new,
        };
        let lost = PerGeneration {
            old: credit.old.observe(usable.old, self.now),
            new: credit.new.observe(usable_new, self.now),
        };
        if self.may_gain() {
            credit.old.gain(self.now, self.settings.stable);
            credit.new.gain(self.now, self.settings.stable);
        }
        (credit, lost)
    }

    /// The number of ready workers of new that none of its frontends has registered.
    pub fn unregistered(&self) -> u32 {
        let roles = self.capacity.new.roles.iter();
        let missing = roles.map(|(role, counted)| {
            let ready = self.seen.workers.new.get(role);
            ready.map_or(0, |workers| workers.ready.saturating_sub(counted.ready))
        });
        missing.sum()
    }

    /// Whether any worker of new is desired, so that having none ready is a fault and not a rollback.
    pub fn new_is_wanted(&self) -> bool {
        let workers = self.seen.workers.new.values();
        workers.into_iter().any(|workers| workers.desired > 0)
    }

    /// Whether every role that old needs is still desired, so that having no workers is an outage and not the end.
    pub fn old_is_wanted(&self) -> bool {
        let wanted = |role: &Role| is_wanted(&self.seen.workers.old, *role);
        let mut roles = self.capacity.old.roles.keys();
        roles.len() > 0 && roles.all(wanted)
    }

    /// Whether old has no workers because they are no longer desired. False if nothing was ever found under old's name,
    /// because the name may be mistyped.
    pub fn old_is_given_up(&self) -> bool {
        self.old_was_found && !self.old_is_wanted()
    }
}

fn gate_of_new(
    seen: &Observation,
    wanted: RequiredModels<'_>,
    capacity: &Capacity,
    proxies: &ProxySummary,
    has_share: bool,
) -> Gate {
    gate(GateInput {
        frontends: &seen.frontends.new,
        wanted,
        capacity,
        has_share,
        by_proxies: proxies.see_new,
    })
}

/// Whether new has a share of the split that it earned earlier or that a pause holds.
fn has_share(
    settings: &UpdateSettings,
    memory: &Memory,
    seen: &Observation,
    new: &Capacity,
) -> bool {
    let credit = memory.credit.as_ref();
    let earned = !new.share.is_zero() && credit.is_none_or(|credit| !credit.new.capacity.is_zero());
    !seen.split.is_all_old() && (settings.paused || earned)
}

/// The models that new must serve: the stated ones, or those that old serves or served.
fn wanted<'a>(
    settings: &'a UpdateSettings,
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
        None if old.error().is_some() => RequiredModels::Unknown,
        // Old serves no model.
        None => RequiredModels::Models(&memory.models),
    }
}

fn is_wanted(workers: &BTreeMap<Role, Workers>, role: Role) -> bool {
    workers
        .get(&role)
        .is_some_and(|workers| workers.desired > 0)
}
