//! Tests the rules as tables, as properties and in long random histories, all on a simulated cluster.

#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulator;
#[cfg(test)]
mod tables;

use std::time::Duration;

use super::*;
use crate::split::Weights;

/// The only model.
const MODEL: &str = "llama";

/// A controller, and a simulated cluster that applies its decisions.
#[derive(Clone, Debug)]
struct Fixture {
    settings: UpdateSettings,
    memory: Memory,
    seen: Observation,
    now: Timestamp,
}

fn ratio(old: u32, new: u32) -> Weights {
    Weights::new(old, new).expect("valid")
}

fn percent(percent: u8) -> Weights {
    Weights::percent(percent).expect("valid")
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn frontends() -> Frontends {
    Frontends {
        endpoints: 1,
        queried: vec![frontend(QueryResult::Responded)],
        left_out: 0,
        error: None,
    }
}

/// A frontend that served the model when it was last heard.
fn frontend(answer: QueryResult) -> Frontend {
    Frontend {
        models: [MODEL.to_owned()].into(),
        left_out: 0,
        registered: Registered::default(),
        answer,
        namespaces: [].into(),
        has_more_namespaces: false,
    }
}

fn not_queried() -> QueryResult {
    QueryResult::NotQueried("Too many open files".to_owned())
}

fn no_response() -> QueryResult {
    QueryResult::NoResponse("timed out".to_owned())
}

fn proxy(name: &str) -> ObservedProxy {
    ObservedProxy {
        name: name.to_owned(),
        ready: true,
        state: Ok(ProxyState {
            applied: 1,
            leaves_old: false,
            old_drains: false,
            may_reach_old: Some(0),
            open_streams: PerGeneration::default(),
            quiet_for: Some(seconds(3600)),
            moving: 0,
            new_serves: Experience::None,
            new_is_impaired: false,
        }),
    }
}

impl ProxyState {
    /// Applies the resource.
    fn follow(&mut self, seen: &Observation) {
        self.applied = seen.resource_generation;
        self.leaves_old = seen.split.is_all_new();
        self.old_drains = seen.old_draining;
    }
}

impl Fixture {
    /// All of `roles` are ready in old and none in new, and every request goes to old.
    fn of(roles: &[(Role, u32)]) -> Self {
        let workers = |ready: fn(u32) -> u32| {
            let workers = roles.iter().map(move |(role, desired)| {
                let ready = ready(*desired);
                (
                    *role,
                    Workers {
                        ready,
                        desired: *desired,
                    },
                )
            });
            workers.collect()
        };
        Self {
            settings: UpdateSettings::of("old to new"),
            memory: Memory::default(),
            seen: Observation {
                resource_generation: 1,
                split: Weights::ALL_OLD,
                split_is_ours: false,
                split_is_incomplete: false,
                old_draining: false,
                superseded_by: None,
                workers: PerGeneration {
                    old: workers(|desired| desired),
                    new: workers(|_| 0),
                },
                frontends: PerGeneration {
                    old: frontends(),
                    new: frontends(),
                },
                proxies: vec![proxy("a"), proxy("b")],
                clients: Clients {
                    bypasses: Some(Vec::new()),
                    ..Clients::default()
                },
                updates_to_old: Some(Vec::new()),
                sees_elsewhere: true,
                is_being_deleted: false,
                goes_back: Some(false),
                is_current: true,
                lengths: Lengths::default(),
                trial_result: None,
            },
            now: Timestamp::from_unix_millis(1_700_000_000_000),
        }
    }

    /// Four workers per generation that serve every role.
    fn of_four() -> Self {
        Self::of(&[(Role::Worker, 4)])
    }

    /// Four workers per generation, of which `old` and `new` are ready, after the split has settled.
    fn settled(old: u32, new: u32) -> Self {
        let mut fixture = Self::of_four();
        fixture.settle();
        fixture.old_ready(old).new_ready(new).settle();
        fixture
    }

    fn old_ready(&mut self, ready: u32) -> &mut Self {
        self.count(Role::Worker, Some(ready), None)
    }

    fn new_ready(&mut self, ready: u32) -> &mut Self {
        self.count(Role::Worker, None, Some(ready))
    }

    /// Scales old down: both ready and desired are `to`.
    fn scale_old(&mut self, to: u32) -> &mut Self {
        let workers = Workers {
            ready: to,
            desired: to,
        };
        self.seen.workers.old.insert(Role::Worker, workers);
        self
    }

    fn count(&mut self, role: Role, old: Option<u32>, new: Option<u32>) -> &mut Self {
        let generations = &mut self.seen.workers;
        for (workers, ready) in [(&mut generations.old, old), (&mut generations.new, new)] {
            if let Some(ready) = ready {
                workers.entry(role).or_default().ready = ready;
            }
        }
        self
    }

    fn wait(&mut self, duration: Duration) -> &mut Self {
        self.now = self.now.after(duration);
        self
    }

    fn peek(&self) -> Decision {
        step(&self.settings, &self.memory, &self.seen, self.now)
    }

    /// Decides and applies the decision, without the proxies.
    fn step(&mut self) -> Decision {
        let decision = self.peek();
        self.write(&decision);
        self.memory = decision.memory.clone();
        decision
    }

    fn write(&mut self, decision: &Decision) {
        for action in &decision.actions {
            match action {
                Action::SetSplit(desired) => {
                    let seen = &mut self.seen;
                    seen.resource_generation += 1;
                    seen.split = desired.split;
                    seen.old_draining = desired.old_draining;
                    seen.split_is_ours = true;
                    seen.split_is_incomplete = false;
                }
                Action::RecordFailure(memory) => self.memory = (**memory).clone(),
            }
        }
    }

    /// A user edits the split.
    fn edit(&mut self, split: Weights) -> &mut Self {
        self.seen.split = split;
        self.seen.split_is_ours = false;
        self.seen.resource_generation += 1;
        self
    }

    /// Every proxy that answers applies the resource.
    fn applied(&mut self) -> &mut Self {
        let seen = self.seen.clone();
        let proxies = self.seen.proxies.iter_mut();
        for state in proxies.filter_map(|proxy| proxy.state.as_mut().ok()) {
            state.follow(&seen);
        }
        self
    }

    /// Client traffic reaches new, and nothing else routes to old.
    fn clients_left(&mut self) -> &mut Self {
        self.seen.clients = Clients {
            reach_new: Some(true),
            reach_old: Some(false),
            other_ways: Some(Vec::new()),
            deleted_with_old: Some(Vec::new()),
            bypasses: Some(Vec::new()),
        };
        self
    }

    fn open(&mut self, proxy: usize, old: u64, new: u64) -> &mut Self {
        let state = self.seen.proxies[proxy].state.as_mut();
        state.expect("it answers").open_streams = PerGeneration { old, new };
        self
    }

    /// Steps until nothing changes.
    fn settle(&mut self) -> Decision {
        for _ in 0..4 {
            self.step();
            self.applied().wait(seconds(60));
        }
        self.step()
    }

    /// The split after one step.
    fn next(&mut self) -> Weights {
        self.step();
        self.seen.split
    }
}
