//! The gate: whether the new generation can serve, and if not, why.

use std::{collections::BTreeSet, fmt};

use super::{Capacity, Frontend, Frontends, QueryResult, Role};

/// What prevents a generation from serving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Its frontend service has no ready endpoint.
    NoEndpoint,
    /// Its frontends cannot be queried for their models, and why.
    NoAnswer(String),
    /// Its frontends have not answered yet.
    NotYet,
    /// It is unknown which models it should serve: old's frontends have not listed theirs.
    OldModelsUnknown,
    /// It does not serve these models.
    ModelsMissing(Vec<String>),
    /// It lists this many models beyond those that are queried, and a missing one may be among them.
    ListTooLong(usize),
    /// It serves no model, although any model would do.
    NoModel,
    /// These roles have no ready worker.
    NoWorkers(Vec<Role>),
    /// Nothing is known about its workers.
    NothingKnown,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEndpoint => f.write_str("its frontend service has no ready endpoint"),
            Self::ModelsMissing(models) => {
                let s = if models.len() == 1 { "" } else { "s" };
                write!(f, "it does not serve the model{s} {}", listed(models))
            }
            Self::NoAnswer(error) => {
                write!(f, "its frontend cannot be queried for models: {error}")
            }
            Self::ListTooLong(count) => write!(
                f,
                "it lists {count} more models than the controller checks (the first in alphabetical order)"
            ),
            Self::NotYet => f.write_str("its frontends have not responded yet"),
            Self::OldModelsUnknown => f.write_str(
                "no frontend of old has listed its models: make sure that the controller can reach it, or list them in spec.models",
            ),
            Self::NoModel => f.write_str("it serves no model"),
            Self::NoWorkers(roles) => {
                f.write_str("it has no ready ")?;
                for (i, role) in roles.iter().enumerate() {
                    let and = if i > 0 { " and no ready " } else { "" };
                    match role {
                        Role::Worker => write!(f, "{and}worker")?,
                        half => write!(f, "{and}{half} worker")?,
                    }
                }
                Ok(())
            }
            Self::NothingKnown => f.write_str("it has no workers"),
        }
    }
}

/// The models that new must serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredModels<'a> {
    /// These models; if empty, at least one model.
    Models(&'a BTreeSet<String>),
    /// The models that old serves are still unknown.
    NotYet,
    /// The models that old serves cannot be determined.
    Unknown,
}

/// The inputs of [`gate`].
#[derive(Clone, Copy, Debug)]
pub struct GateInput<'a> {
    /// The generation's frontends.
    pub frontends: &'a Frontends,
    /// The models that they must serve.
    pub wanted: RequiredModels<'a>,
    /// The generation's capacity.
    pub capacity: &'a Capacity,
    /// Whether the generation has a share of the requests.
    pub has_share: bool,
    /// The observations of the proxies.
    pub by_proxies: ByProxies,
}

/// The combined observations of all proxies of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByProxies {
    /// Whether no proxy responds. In that case, the controller itself may be disconnected, and a missing response proves nothing.
    pub none_responds: bool,
    /// Whether the requests of at least one proxy are answered there.
    pub serves: bool,
    /// Whether at least one proxy excludes an endpoint there, or has none.
    pub is_impaired: bool,
}

/// The result of [`gate()`]: whether a generation can serve, and how many of its frontends do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// What prevents it from serving; empty if it can serve.
    pub obstacles: Vec<Obstacle>,
    /// How many frontends are queried.
    pub queried: usize,
    /// How many of them do not serve what is required.
    pub failing: usize,
    /// Why one of them fails.
    pub cause: Option<Obstacle>,
    /// Whether the generation is only presumed to serve, because a frontend is in an unknown state or none is queried. In that
    /// case, it keeps what it has but gains nothing.
    pub is_presumed: bool,
}

/// The state of one frontend.
enum FrontendState {
    Serves,
    Fails(Obstacle),
    Unknown,
}

/// Checks whether a generation can serve what is `wanted`, and what prevents it.
///
/// A failing frontend reduces the capacity by its share; the gate closes only if all of them fail. A frontend in an unknown state
/// does not count as failing: the generation keeps its share until there is positive evidence against it. Whether a missing
/// response counts as a failure depends on the proxies. If this generation serves at least one of them, it counts only if
/// another frontend responded and a proxy excludes an endpoint. Otherwise, it counts if another frontend or any proxy
/// responded.
#[must_use]
pub fn gate(input: GateInput) -> Gate {
    let mut gate = Gate {
        obstacles: without_workers(input.capacity),
        queried: input.frontends.queried.len(),
        ..Gate::default()
    };
    if input.frontends.endpoints == 0 {
        // Without an endpoint, no model can be queried. Listing all of them as missing would hide the cause.
        gate.obstacles.insert(0, Obstacle::NoEndpoint);
        return gate;
    }
    let mut unknown = 0;
    for frontend in &input.frontends.queried {
        match input.classify(frontend) {
            FrontendState::Serves => {}
            FrontendState::Unknown => unknown += 1,
            FrontendState::Fails(why) => {
                gate.failing += 1;
                gate.cause.get_or_insert(why);
            }
        }
    }
    gate.is_presumed = unknown > 0 || gate.queried == 0;
    if gate.is_presumed && !input.has_share {
        gate.obstacles.push(input.open());
    } else if gate.queried > 0 && gate.failing == gate.queried {
        gate.obstacles.extend(input.closed());
    }
    gate
}

impl GateInput<'_> {
    fn classify(&self, frontend: &Frontend) -> FrontendState {
        let missing: Vec<String> = match self.wanted {
            RequiredModels::Models(models) => {
                models.difference(&frontend.models).cloned().collect()
            }
            RequiredModels::NotYet | RequiredModels::Unknown => Vec::new(),
        };
        let is_known = matches!(self.wanted, RequiredModels::Models(_));
        let serves = is_known && missing.is_empty() && !frontend.models.is_empty();
        match &frontend.answer {
            QueryResult::Responded | QueryResult::NotYet if serves => FrontendState::Serves,
            QueryResult::Responded if !missing.is_empty() => {
                FrontendState::Fails(Obstacle::ModelsMissing(missing))
            }
            QueryResult::Responded if frontend.models.is_empty() => {
                FrontendState::Fails(Obstacle::NoModel)
            }
            QueryResult::Responded | QueryResult::NotYet | QueryResult::NotQueried(_) => {
                FrontendState::Unknown
            }
            QueryResult::Bad(why) => FrontendState::Fails(Obstacle::NoAnswer(why.clone())),
            QueryResult::NoResponse(why) if self.is_fault_of_frontend() => {
                FrontendState::Fails(Obstacle::NoAnswer(why.clone()))
            }
            QueryResult::NoResponse(_) => FrontendState::Unknown,
        }
    }

    /// Whether the frontend is at fault for a missing response, and not the controller's network.
    fn is_fault_of_frontend(&self) -> bool {
        let mut others = self.frontends.queried.iter();
        let some_answer = others
            .any(|other| matches!(other.answer, QueryResult::Responded | QueryResult::Bad(_)));
        let proxies = self.by_proxies;
        match proxies.serves {
            true => some_answer && proxies.is_impaired,
            false => some_answer || !proxies.none_responds,
        }
    }

    /// The obstacle of a generation whose frontends are not all known.
    fn open(&self) -> Obstacle {
        match (self.frontends.error(), self.wanted) {
            (Some(error), _) => Obstacle::NoAnswer(error.to_owned()),
            (None, RequiredModels::Unknown) => Obstacle::OldModelsUnknown,
            (None, _) => Obstacle::NotYet,
        }
    }

    /// The obstacles of a generation all of whose frontends fail.
    fn closed(&self) -> Vec<Obstacle> {
        let each = self.frontends.queried.iter();
        let responding = each.filter(|frontend| frontend.answer == QueryResult::Responded);
        let common = responding.clone().map(|frontend| frontend.models.clone());
        let common = common.reduce(|all, models| all.intersection(&models).cloned().collect());
        let (Some(common), RequiredModels::Models(models)) = (common, self.wanted) else {
            return vec![self.open()];
        };
        let missing: Vec<String> = models.difference(&common).cloned().collect();
        if missing.is_empty() {
            return vec![Obstacle::NoModel];
        }
        let left_out = responding
            .map(|frontend| frontend.left_out)
            .max()
            .unwrap_or(0);
        let too_long = (left_out > 0).then_some(Obstacle::ListTooLong(left_out));
        let mut obstacles = vec![Obstacle::ModelsMissing(missing)];
        obstacles.extend(too_long);
        obstacles
    }
}

/// The obstacles that arise from a generation's workers.
pub(super) fn without_workers(capacity: &Capacity) -> Vec<Obstacle> {
    if capacity.serves {
        Vec::new()
    } else if capacity.roles.is_empty() {
        vec![Obstacle::NothingKnown]
    } else {
        vec![Obstacle::NoWorkers(capacity.missing().collect())]
    }
}

/// At most three of `names`, and the number of the rest.
pub(super) fn listed<T: fmt::Display>(names: &[T]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = names.iter().take(SHOWN).map(T::to_string).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
