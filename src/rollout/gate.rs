//! The gate: can the new generation serve, and if not, what is in the way?
//!
//! Must not know the split nor the past.

use std::{collections::BTreeSet, fmt};

use super::{Answer, Capacity, Frontend, Frontends, Role};

/// What keeps a side from serving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Its frontend service has no ready endpoint.
    NoEndpoint,
    /// Its frontends cannot be asked what they serve, and why.
    NoAnswer(String),
    /// Its frontends have not been heard yet.
    NotYet,
    /// Nobody says what it should serve: old's frontends have not told their models.
    OldModelsUnknown,
    /// These models are not served there.
    ModelsMissing(Vec<String>),
    /// It lists so many models more than are asked for, and one that is missing may be among them.
    ListTooLong(usize),
    /// It serves no model at all, and nobody says which it should.
    NoModel,
    /// These roles have no ready worker.
    NoWorkers(Vec<Role>),
    /// Nothing is known of its workers.
    NothingKnown,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEndpoint => f.write_str("its frontend service has no ready endpoint"),
            Self::ModelsMissing(models) => {
                let (is, s) = if models.len() == 1 {
                    ("is", "")
                } else {
                    ("are", "s")
                };
                write!(f, "the model{s} {} {is} not served there", listed(models))
            }
            Self::NoAnswer(trouble) => {
                write!(f, "its frontend cannot be asked for its models: {trouble}")
            }
            Self::ListTooLong(count) => write!(
                f,
                "it lists {count} models more than are asked for, which are the first in the order of their names"
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

/// What new must serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredModels<'a> {
    /// These models; if there are none, one at least.
    Models(&'a BTreeSet<String>),
    /// What old serves, of which nothing has been heard yet.
    NotYet,
    /// What old serves, which nobody can say.
    Unknown,
}

/// What the gate is asked of.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The side's frontends.
    pub frontends: &'a Frontends,
    /// What they must serve.
    pub wanted: RequiredModels<'a>,
    /// The side's capacity.
    pub capacity: &'a Capacity,
    /// Does it have a share of the requests?
    pub has_share: bool,
    /// What the proxies see of it.
    pub by_proxies: ByProxies,
}

/// What the proxies see of a side, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByProxies {
    /// Can none of them be asked? Then who asks hears nobody, and knows nothing.
    pub are_unheard: bool,
    /// Are the requests of one of them answered there?
    pub serves: bool,
    /// Does one of them leave out an endpoint that has failed it?
    pub is_impaired: bool,
}

/// Whether a side can serve, and how many of its frontends do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// What keeps it from serving; nothing if it can.
    pub obstacles: Vec<Obstacle>,
    /// Frontends that are asked.
    pub asked: usize,
    /// Those of them that do not serve what is wanted.
    pub failing: usize,
    /// Why one of these does not.
    pub cause: Option<Obstacle>,
    /// Is it only taken to serve, because it did when it was last heard? Then it keeps what it has and gains nothing.
    pub is_presumed: bool,
}

/// Whether one frontend serves.
enum Verdict {
    Serves,
    Fails(Obstacle),
    Unknown,
}

/// Whether a side can serve what is `wanted`, and what keeps it from that.
///
/// A frontend that does not serve takes its part of the capacity with it, and only if all do not serve the gate is closed. One
/// that was not heard is no such frontend: as long as the side has a share it keeps it, and news alone takes it away. No
/// answer is news of the frontend if others were heard, or if the proxies can be asked and see nothing served there.
#[must_use]
pub fn gate(asked: Asked) -> Gate {
    let mut gate = Gate {
        obstacles: without_workers(asked.capacity),
        asked: asked.frontends.asked.len(),
        ..Gate::default()
    };
    if asked.frontends.endpoints == 0 {
        // Without one no model can be asked for: to name them all would only hide the cause.
        gate.obstacles.insert(0, Obstacle::NoEndpoint);
        return gate;
    }
    let mut unknown = 0;
    for frontend in &asked.frontends.asked {
        match asked.judge(frontend) {
            Verdict::Serves => {}
            Verdict::Unknown => unknown += 1,
            Verdict::Fails(why) => {
                gate.failing += 1;
                gate.cause.get_or_insert(why);
            }
        }
    }
    gate.is_presumed = unknown > 0 || gate.asked == 0;
    if gate.is_presumed && !asked.has_share {
        gate.obstacles.push(asked.open());
    } else if gate.asked > 0 && gate.failing == gate.asked {
        gate.obstacles.extend(asked.closed());
    }
    gate
}

impl Asked<'_> {
    fn judge(&self, frontend: &Frontend) -> Verdict {
        let missing: Vec<String> = match self.wanted {
            RequiredModels::Models(models) => {
                models.difference(&frontend.models).cloned().collect()
            }
            RequiredModels::NotYet | RequiredModels::Unknown => Vec::new(),
        };
        let is_known = matches!(self.wanted, RequiredModels::Models(_));
        let serves = is_known && missing.is_empty() && !frontend.models.is_empty();
        match &frontend.answer {
            Answer::Heard | Answer::NotYet if serves => Verdict::Serves,
            Answer::Heard if !missing.is_empty() => {
                Verdict::Fails(Obstacle::ModelsMissing(missing))
            }
            Answer::Heard if frontend.models.is_empty() => Verdict::Fails(Obstacle::NoModel),
            Answer::Heard | Answer::NotYet | Answer::Unasked(_) => Verdict::Unknown,
            Answer::Bad(why) => Verdict::Fails(Obstacle::NoAnswer(why.clone())),
            Answer::Silent(why) if self.is_silence_of_frontend() => {
                Verdict::Fails(Obstacle::NoAnswer(why.clone()))
            }
            Answer::Silent(_) => Verdict::Unknown,
        }
    }

    /// Does silence speak against the frontend that is silent, and not against who asks?
    fn is_silence_of_frontend(&self) -> bool {
        let mut others = self.frontends.asked.iter();
        let some_answer =
            others.any(|other| matches!(other.answer, Answer::Heard | Answer::Bad(_)));
        let proxies = self.by_proxies;
        match proxies.serves {
            true => some_answer && proxies.is_impaired,
            false => some_answer || !proxies.are_unheard,
        }
    }

    /// What keeps a side from serving of which not all is known.
    fn open(&self) -> Obstacle {
        match (self.frontends.trouble(), self.wanted) {
            (Some(trouble), _) => Obstacle::NoAnswer(trouble.to_owned()),
            (None, RequiredModels::Unknown) => Obstacle::OldModelsUnknown,
            (None, _) => Obstacle::NotYet,
        }
    }

    /// What keeps a side from serving none of whose frontends does.
    fn closed(&self) -> Vec<Obstacle> {
        let each = self.frontends.asked.iter();
        let heard = each.filter(|frontend| frontend.answer == Answer::Heard);
        let common = heard.clone().map(|frontend| frontend.models.clone());
        let common = common.reduce(|all, models| all.intersection(&models).cloned().collect());
        let (Some(common), RequiredModels::Models(models)) = (common, self.wanted) else {
            return vec![self.open()];
        };
        let missing: Vec<String> = models.difference(&common).cloned().collect();
        if missing.is_empty() {
            return vec![Obstacle::NoModel];
        }
        let left_out = heard.map(|frontend| frontend.left_out).max().unwrap_or(0);
        let too_long = (left_out > 0).then_some(Obstacle::ListTooLong(left_out));
        let mut obstacles = vec![Obstacle::ModelsMissing(missing)];
        obstacles.extend(too_long);
        obstacles
    }
}

/// What of its workers keeps a side from serving.
pub(super) fn without_workers(capacity: &Capacity) -> Vec<Obstacle> {
    if capacity.serves {
        Vec::new()
    } else if capacity.roles.is_empty() {
        vec![Obstacle::NothingKnown]
    } else {
        vec![Obstacle::NoWorkers(capacity.missing().collect())]
    }
}

/// At most three of `names`, and how many more there are.
pub(super) fn listed<T: fmt::Display>(names: &[T]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = names.iter().take(SHOWN).map(T::to_string).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
