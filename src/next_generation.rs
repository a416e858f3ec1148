//! Creates the next generation, to run next to the current one, from the current and the edited manifests: text in, text and an
//! explanation out.
//!
//! Two generations are distinguished by the names of their objects, by the labels that select their pods, and by the Dynamo
//! namespace in which frontends find workers. Each of these gets a hash of the pods' specification as its suffix, so the same
//! edit always produces the same objects, and applying them twice changes nothing.

mod change;
mod deployments;
mod dynamo_namespace;
mod graph;
mod labels;
mod names;
mod parts;
mod rollout;
mod services;

use serde_json::Value as Json;

use self::{change::Change, names::Names, parts::Parts};
use crate::dynamo_graph::{COMPONENT, DYNAMO_NAMESPACE, GRAPH, SUB_COMPONENT};
use crate::inject::{self, Options};

/// The label with the generation of an object.
pub const GENERATION: &str = "crossfade/generation";

/// The request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The current manifests.
    pub from: &'a str,
    /// The edited ones.
    pub to: &'a str,
    /// The image of crossfade.
    pub image: Option<&'a str>,
    /// The Service that clients connect to, if it is not found automatically.
    pub client_service: Option<&'a str>,
    /// Create a generation even if a rolling update is enough.
    pub anyway: bool,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextGeneration {
    /// The objects to apply. Empty if a rolling update is enough.
    pub text: String,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Why there is no next generation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{which}: {source}")]
    Manifests {
        which: &'static str,
        source: inject::Error,
    },
    #[error("{0}")]
    Refused(String),
    #[error("the sidecar cannot be added: {0}")]
    Sidecar(inject::Error),
}

impl From<String> for Error {
    fn from(message: String) -> Self {
        Self::Refused(message)
    }
}

/// An object and the comment printed above it.
struct GeneratedObject {
    comment: String,
    object: Json,
}

/// Creates the next generation, and the rollout that moves to it.
///
/// # Errors
/// When the manifests cannot be read, or two generations of them could not be kept separate.
pub fn plan(request: &Request<'_>) -> Result<NextGeneration, Error> {
    let from = read("--from", request.from)?;
    let to = read("--to", request.to)?;
    let mut notes = Vec::new();
    let change = change::between(&from, &to)?;
    if let Some(why) = change.rolling_update()
        && !request.anyway
    {
        notes.push(why.to_owned());
        return Ok(NextGeneration {
            text: String::new(),
            notes,
        });
    }
    let names = Names::of(&from, &to)?;
    let mut made = new_objects(&from, &to, &change, &mut notes);
    match &to.graph {
        Some(_) => graph::generation(request, &from, &to, &names, &mut made, &mut notes)?,
        None => deployments::generation(request, &from, &to, &names, &mut made, &mut notes)?,
    }
    let text: String = made.iter().map(document).collect();
    let report = inject::inject(&text, &Options::default(), request.image);
    let report = report.map_err(Error::Sidecar)?;
    for note in &report.notes {
        notes.extend(
            note.warnings
                .iter()
                .map(|warning| format!("{}: {warning}", note.object)),
        );
    }
    Ok(NextGeneration {
        text: report.text,
        notes,
    })
}

/// The parts of a text, without sidecars that were injected.
fn read(which: &'static str, text: &str) -> Result<Parts, Error> {
    let wrong = |source| Error::Manifests { which, source };
    let plain = inject::uninject(text).map_err(wrong)?.text;
    let as_written = inject::manifests(text).map_err(wrong)?;
    let plain = inject::manifests(&plain).map_err(wrong)?;
    let objects = |manifests: Vec<inject::Manifest<'_>>| {
        let objects = manifests.into_iter().flat_map(|manifest| manifest.objects);
        objects.collect::<Vec<_>>()
    };
    Ok(Parts::of(which, objects(plain), &objects(as_written))?)
}

/// Objects that only the edited manifests have: the new generation may need them.
fn new_objects(
    from: &Parts,
    to: &Parts,
    change: &Change,
    notes: &mut Vec<String>,
) -> Vec<GeneratedObject> {
    for name in &change.edited_others {
        notes.push(format!(
            "{name} changes, and both generations use it: rename the edited one; otherwise, old also changes when its pods restart"
        ));
    }
    for autoscaler in &from.autoscalers {
        notes.push(format!(
            "{autoscaler} scales workers: remove it before the rollout, which pauses while another client scales the workers"
        ));
    }
    let is_new = |object: &&Json| {
        !from
            .others
            .iter()
            .any(|other| parts::is_same(other, object))
    };
    let new = to.others.iter().filter(is_new);
    new.map(|object| GeneratedObject {
        comment: "As in the edited manifests.".to_owned(),
        object: parts::cleaned(object),
    })
    .collect()
}

fn document(made: &GeneratedObject) -> String {
    format!("---\n# {}\n{}", made.comment, inject::yaml(&made.object))
}

#[cfg(test)]
mod tests;
