//! Compares all workloads of a text before one of them is edited: which of them the user means.

use serde_json::Value as Json;

use super::Run;
use crate::inject::documents::{content, split};
use crate::inject::pod::{Basis, Frontend, choose, port};
use crate::inject::record::ANNOTATION;
use crate::inject::tree::Tree;
use crate::inject::workload::{Found, Workload, find};
use crate::inject::{Error, MAX_BYTES, Options, path, sidecar, undo};

/// What the workloads of a text have in common.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The strongest reason for which one of them has a frontend.
    strongest: Option<Basis>,
    /// The containers that the user has named in earlier injections.
    named: Vec<String>,
}

/// A workload without a sidecar that may have a frontend.
struct Candidate {
    name: String,
    basis: Basis,
    /// Whether it listens on the given port.
    has_port: bool,
}

impl Run {
    /// Compares the workloads of `text`.
    ///
    /// # Errors
    /// When a given port matches several of them, and nothing else tells which one has the frontend.
    pub fn survey(&mut self, text: &str, options: &Options) -> Result<(), Error> {
        // Any other text is not read twice.
        let is_relevant = options.port.is_some() || text.contains(ANNOTATION);
        if options.container.is_some() || !is_relevant || text.len() > MAX_BYTES {
            return Ok(());
        }
        let mut candidates = Vec::new();
        for document in split(text.trim_start_matches('\u{feff}')) {
            // What cannot be read is reported when it is edited.
            let tree = Tree::read(content(document.text)).ok().flatten();
            let Some(json) = tree.and_then(|tree| tree.json().ok()) else {
                continue;
            };
            for found in find(&json) {
                let Found::Workload(workload) = found else {
                    continue;
                };
                if let Ok(Some(record)) = undo::record(&json, &workload) {
                    self.survey.named.extend(record.options.container);
                }
                if has_sidecar(&json, &workload) {
                    self.survey.strongest = Some(Basis::Recognized);
                } else if let Some(given) = options.port
                    && let Ok(Some(frontend)) = choose(&json, &workload, options)
                {
                    candidates.push(Candidate {
                        name: format!("{} (container '{}')", workload.name, frontend.name),
                        basis: frontend.basis,
                        has_port: has_port(&json, &workload, &frontend, given),
                    });
                }
            }
        }
        let strongest = candidates.iter().filter(|candidate| candidate.has_port);
        let strongest = strongest.map(|candidate| candidate.basis).max();
        self.survey.strongest = self.survey.strongest.max(strongest);
        if strongest.is_none_or(|basis| basis == Basis::Recognized)
            || self.survey.strongest > strongest
        {
            return Ok(());
        }
        let port = options.port.unwrap_or_default();
        candidates.retain(|candidate| Some(candidate.basis) >= strongest);
        match candidates.len() {
            0 | 1 => Ok(()),
            _ => Err(Error::Ambiguous {
                port,
                objects: candidates
                    .into_iter()
                    .map(|candidate| candidate.name)
                    .collect(),
            }),
        }
    }
}

impl Survey {
    /// Why a workload is left unchanged, because the user has named a container that it does not have.
    pub fn not_named(&self, root: &Json, workload: &Workload, options: &Options) -> Option<String> {
        let has = |name: &String| {
            let options = Options {
                container: Some(name.clone()),
                ..Options::default()
            };
            let mut containers = workload.containers(root).into_iter();
            containers.any(|(_, container)| container["name"] == name.as_str())
                || !matches!(choose(root, workload, &options), Ok(None))
        };
        let is_by_hand = has_sidecar(root, workload) && !is_recorded(root, workload);
        match &options.container {
            Some(name) if !has(name) && !is_by_hand => Some(format!(
                "left as it is: it has no container '{name}' (--frontend-container)"
            )),
            None if !self.named.is_empty()
                && !has_sidecar(root, workload)
                && !self.named.iter().any(has) =>
            {
                Some(format!(
                    "left as it is: the frontend was chosen with --frontend-container {}, which is not a container of it; to add \
                     crossfade to it as well, name its container",
                    self.named[0]
                ))
            }
            _ => None,
        }
    }

    /// Why a workload is left unchanged although it may have a frontend.
    pub fn reason_against(&self, frontend: &Frontend, options: &Options) -> Option<String> {
        let is_weaker = self.strongest > Some(frontend.basis);
        is_weaker.then(|| {
            let port = options.port.unwrap_or_default();
            format!(
                "left as it is: only its port could make it the frontend (--port {port}), and another object runs a known server or \
                 has crossfade already; if it is one too, name its container with --frontend-container {}",
                frontend.name
            )
        })
    }
}

/// Whether a frontend may listen on the given port.
fn has_port(root: &Json, workload: &Workload, frontend: &Frontend, given: u16) -> bool {
    let container = path::get(root, &frontend.path).unwrap_or(&Json::Null);
    let mut declared = container["ports"].as_array().into_iter().flatten();
    frontend.basis < Basis::Recognized
        || declared.any(|entry| entry["containerPort"] == given)
        || port(root, workload, &Options::default()) == Some(given)
}

/// Whether crossfade is already in the pods.
fn has_sidecar(root: &Json, workload: &Workload) -> bool {
    let mut containers = workload.everywhere(root).into_iter();
    is_recorded(root, workload)
        || containers.any(|(_, container)| container["name"] == sidecar::NAME)
}

/// Whether inject has added it.
fn is_recorded(root: &Json, workload: &Workload) -> bool {
    let annotations = path::get(root, &workload.annotations);
    annotations.is_some_and(|all| all.get(ANNOTATION).is_some())
}
