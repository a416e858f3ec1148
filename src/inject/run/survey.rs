//! Compares all workloads of a text before one of them is edited: which ones a given port alone does not identify.

use serde_json::Value as Json;

use super::Run;
use crate::inject::documents::{content, split};
use crate::inject::pod::{Basis, Frontend, choose, port};
use crate::inject::record::ANNOTATION;
use crate::inject::tree::Tree;
use crate::inject::workload::{Found, Workload, find};
use crate::inject::{Error, MAX_BYTES, Options, path, sidecar};

/// What the workloads of a text have in common.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The strongest reason for which one of them has a frontend.
    strongest: Option<Basis>,
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
        let (Some(given), None) = (options.port, &options.container) else {
            return Ok(());
        };
        if text.len() > MAX_BYTES {
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
                if has_sidecar(&json, &workload) {
                    self.survey.strongest = Some(Basis::Recognized);
                } else if let Ok(Some(frontend)) = choose(&json, &workload, options) {
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
        candidates.retain(|candidate| Some(candidate.basis) >= strongest);
        match candidates.len() {
            0 | 1 => Ok(()),
            _ => Err(Error::Ambiguous {
                port: given,
                objects: candidates
                    .into_iter()
                    .map(|candidate| candidate.name)
                    .collect(),
            }),
        }
    }
}

impl Survey {
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
    let annotations = path::get(root, &workload.annotations);
    let is_recorded = annotations.is_some_and(|all| all.get(ANNOTATION).is_some());
    let mut containers = workload.everywhere(root).into_iter();
    is_recorded || containers.any(|(_, container)| container["name"] == sidecar::NAME)
}
