//! The gate: can the new generation serve, and if not, what is in the way?
//!
//! Must not know the split nor the past.

use std::{collections::BTreeSet, fmt};

use super::{Capacity, Frontends, Role};

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
pub enum Wanted<'a> {
    /// These models; if there are none, one at least.
    Models(&'a BTreeSet<String>),
    /// What old serves, of which nothing has been heard yet.
    NotYet,
    /// What old serves, which nobody can say.
    Unknown,
}

/// What keeps a side with these frontends and this capacity from serving what is `wanted`: nothing, if it can.
///
/// What is not heard yet of a side that `has_share` keeps it from nothing: it could serve when it was last heard, and what
/// it has now is taken from it only by news.
#[must_use]
pub fn gate(
    frontends: &Frontends,
    wanted: Wanted,
    capacity: &Capacity,
    has_share: bool,
) -> Vec<Obstacle> {
    let mut obstacles = without_workers(capacity);
    if frontends.endpoints == 0 {
        // Without one no model can be asked for: to name them all would only hide the cause.
        obstacles.insert(0, Obstacle::NoEndpoint);
        return obstacles;
    }
    let is_unheard = frontends.unheard || wanted == Wanted::NotYet;
    if is_unheard && has_share {
        return obstacles;
    }
    if let Some(trouble) = &frontends.trouble {
        obstacles.push(Obstacle::NoAnswer(trouble.clone()));
        return obstacles;
    }
    if is_unheard {
        obstacles.push(Obstacle::NotYet);
        return obstacles;
    }
    let Wanted::Models(models) = wanted else {
        obstacles.push(Obstacle::OldModelsUnknown);
        return obstacles;
    };
    let missing: Vec<String> = models.difference(&frontends.models).cloned().collect();
    if !missing.is_empty() {
        obstacles.push(Obstacle::ModelsMissing(missing));
        if frontends.left_out > 0 {
            obstacles.push(Obstacle::ListTooLong(frontends.left_out));
        }
    } else if frontends.models.is_empty() {
        obstacles.push(Obstacle::NoModel);
    }
    obstacles
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
