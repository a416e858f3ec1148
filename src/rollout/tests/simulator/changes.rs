//! Random changes in a history: workers, proxies, frontends, settings and time.

use super::*;

impl Simulation {
    /// Advances the time and applies random changes.
    pub(super) fn pass(&mut self) {
        if self.draw.one_in(100) {
            let jump = self.draw.below(2_000_000_000_000);
            self.fixture.now = Timestamp::from_unix_millis(jump);
            self.past.clear();
        }
        let milliseconds = self.draw.below(4000);
        self.fixture.wait(Duration::from_millis(milliseconds));
        self.trial();
        for _ in 0..self.draw.below(3) {
            match self.draw.below(10) {
                0..=4 => self.worker(),
                5..=8 => self.proxy(),
                _ => self.rarity(),
            }
        }
        if self.listed.one_in(8) {
            // A person moves the clients to new.
            self.fixture.clients_left();
        }
        let seen = self.fixture.seen.clone();
        for proxy in &mut self.fixture.seen.proxies {
            // Most proxies apply a change immediately.
            if let Some(state) = proxy.state.as_mut().ok().filter(|_| !self.draw.one_in(8)) {
                state.follow(&seen);
                // The proxy has a cap of its own, or reports an earlier plan as the later one.
                state.leaves_old &= !self.draw.one_in(40);
                state.old_drains &= !self.draw.one_in(40);
            }
        }
    }

    /// A worker appears or disappears in either generation, or a whole generation fails.
    fn worker(&mut self) {
        let (role, full) = self.roles[self.draw.below(self.roles.len() as u64) as usize];
        let generations = &mut self.fixture.seen.workers;
        let is_old = self.draw.one_in(2);
        let generation = if is_old {
            &mut generations.old
        } else {
            &mut generations.new
        };
        if self.draw.one_in(12) {
            generation
                .values_mut()
                .for_each(|workers| workers.ready = 0);
            return;
        }
        let workers = generation.entry(role).or_default();
        match self.draw.below(8) {
            0 if is_old => workers.desired = self.draw.below(u64::from(full) + 1) as u32,
            0 => workers.desired = self.draw.below(u64::from(full) + 2) as u32,
            1 => (workers.desired, workers.ready) = (0, 0),
            2..=3 => workers.ready = workers.ready.saturating_sub(1),
            _ => workers.ready = workers.desired.min(workers.ready + 1),
        }
    }

    /// Changes the state of a proxy.
    fn proxy(&mut self) {
        let count = self.fixture.seen.proxies.len() as u64;
        if count == 0 || self.draw.one_in(40) {
            // All disappear, or come back.
            let count = self.draw.below(4);
            let names = (0..count).map(|i| self::proxy(&format!("p{i}")));
            self.fixture.seen.proxies = names.collect();
            return;
        }
        let generation = self.fixture.seen.resource_generation;
        let proxy = &mut self.fixture.seen.proxies[self.draw.below(count) as usize];
        match self.draw.below(9) {
            0 => proxy.ready = !proxy.ready,
            1 => proxy.state = Err(NoReport::NoAnswer),
            2 => proxy.state = Err(NoReport::NotYet),
            3 => proxy.state = Err(NoReport::NoPort("crossfade".to_owned())),
            // It follows another update.
            4 => {
                if let Ok(state) = &mut proxy.state {
                    state.applied = 0;
                }
            }
            _ => {
                let open_streams = PerGeneration {
                    old: self.draw.below(3),
                    new: self.draw.below(3),
                };
                let applied = generation.saturating_sub(self.draw.below(2));
                proxy.state = Ok(ProxyState {
                    applied,
                    leaves_old: self.draw.one_in(2),
                    old_drains: self.draw.one_in(2),
                    may_reach_old: [Some(0), Some(0), Some(1), None][self.draw.below(4) as usize],
                    open_streams,
                    quiet_for: [
                        Some(seconds(10)),
                        Some(seconds(100)),
                        Some(seconds(9)),
                        None,
                    ][self.draw.below(4) as usize],
                    moving: self.draw.below(2),
                    new_serves: [Experience::None, Experience::Good, Experience::Bad]
                        [self.draw.below(3) as usize],
                    new_is_impaired: self.draw.one_in(3),
                });
            }
        }
    }

    /// The analysis has a result, of this trial or an earlier one; rarely, a user requests a retry.
    fn trial(&mut self) {
        let (fixture, draw) = (&mut self.fixture, &mut self.draw);
        let trial = &fixture.memory.trial;
        if draw.one_in(200) {
            fixture.settings.retry = Some(draw.below(1000).to_string());
        }
        if draw.one_in(400) {
            fixture.settings.trial = draw.below(1000).to_string();
        }
        fixture.seen.trial_result = match draw.below(200) {
            0..40 => None,
            roll => Some(TrialResult {
                trial: if draw.one_in(8) {
                    Timestamp::default()
                } else {
                    trial.since
                },
                step: trial.at_step_since.filter(|_| !draw.one_in(8)),
                verdict: match roll {
                    199 => TrialVerdict::Fail,
                    100.. => TrialVerdict::Pass,
                    _ => TrialVerdict::Inconclusive,
                },
                reason: String::new(),
                sentence: roll.to_string(),
            }),
        };
    }

    /// Changes frontends, models and settings, or edits the split.
    fn rarity(&mut self) {
        let percentage = percent(self.draw.below(101) as u8);
        let cap = self.draw.below(120) as u8;
        let (fixture, draw, listed) = (&mut self.fixture, &mut self.draw, &mut self.listed);
        let seen = &mut fixture.seen;
        match draw.below(16) {
            0 => seen.frontends.new.endpoints = draw.below(2) as u32,
            1 => seen.frontends.new = any_frontends(draw),
            2..=3 => seen.frontends.new = frontends(),
            4 => fixture.settings.paused = draw.one_in(3),
            14 => fixture.settings.drain_old = draw.one_in(3),
            5 => fixture.settings.cap_percent = Some(cap).filter(|cap| *cap < 100),
            6 => seen.superseded_by = draw.one_in(4).then(|| "other".to_owned()),
            7 => {
                let mut any =
                    || [None, Some(true), Some(false), Some(true)][draw.below(4) as usize];
                seen.clients.reach_new = any();
                seen.clients.reach_old = any().map(|reaches| !reaches);
                let way = |is_one: bool| {
                    if is_one {
                        vec!["a Service".to_owned()]
                    } else {
                        Vec::new()
                    }
                };
                seen.clients.other_ways = any().map(|is_none| way(!is_none));
                seen.clients.bypasses = any().map(|is_none| way(!is_none));
                seen.clients.deleted_with_old = match listed.below(8) {
                    0 => None,
                    1 => Some(vec!["the Service of the clients".to_owned()]),
                    _ => Some(Vec::new()),
                };
                seen.is_current = !draw.one_in(8);
                seen.sees_elsewhere = !draw.one_in(8);
                seen.is_being_deleted = draw.one_in(8);
                seen.goes_back = Some(draw.one_in(8)).filter(|_| !draw.one_in(8));
                seen.updates_to_old = match draw.below(8) {
                    0 => None,
                    1 => Some(vec!["another".to_owned()]),
                    _ => Some(Vec::new()),
                };
            }
            // A user writes the unchanged split and so becomes its owner.
            8 => seen.split_is_ours = false,
            9 => seen
                .frontends
                .new
                .queried
                .iter_mut()
                .for_each(|one| one.answer = any_answer(draw)),
            10 => seen.frontends.old.queried = vec![frontend(any_answer(draw))],
            _ => _ = fixture.edit(percentage),
        }
        let generations = &mut fixture.seen.frontends;
        for (generation, own) in [(&mut generations.old, "v1"), (&mut generations.new, "v2")] {
            for one in &mut generation.queried {
                list_namespaces(one, own, listed);
            }
        }
        fixture.seen.resource_generation += 1;
    }
}

/// One to four frontends that may or may not serve the model and may or may not answer.
fn any_frontends(draw: &mut Draw) -> Frontends {
    let queried = (0..=draw.below(4)).map(|_| {
        let mut one = frontend(any_answer(draw));
        if draw.one_in(3) {
            one.models.clear();
        }
        one
    });
    Frontends {
        endpoints: 1,
        queried: queried.collect(),
        left_out: usize::from(draw.one_in(8)),
        error: None,
    }
}

/// A frontend lists the workers of its own namespace, or none, or also those of the other generation.
fn list_namespaces(one: &mut Frontend, own: &str, draw: &mut Draw) {
    let all = ["v1", "v2"].into_iter();
    let listed = all.filter(|name| match *name == own {
        true => !draw.one_in(4),
        false => draw.one_in(12),
    });
    one.namespaces = listed.map(str::to_owned).collect();
    one.has_more_namespaces = draw.one_in(24);
    one.left_out = usize::from(draw.one_in(24));
}

fn any_answer(draw: &mut Draw) -> QueryResult {
    match draw.below(8) {
        0 => QueryResult::NotYet,
        1 => not_queried(),
        2 => no_response(),
        3 => QueryResult::Bad("503".to_owned()),
        _ => QueryResult::Responded,
    }
}
