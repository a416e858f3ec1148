//! What Dynamo's operator adds to a frontend's container from other parts of a graph.
//!
//! In `v1alpha1`, the variables of the graph and then those of the component (`envs`) replace those of the container, and the
//! probes of the component replace the container's. In `v1beta1`, the variables of the container replace those of the graph (`env`).

use serde_json::{Value as Json, json};

use super::{Frontend, Injection, Path, Refused, Step, below};
use crate::inject::path::get;
use crate::inject::workload::{PodCreator, Workload};

/// The probes that a `v1alpha1` component itself can have.
const PROBES: [&str; 2] = ["livenessProbe", "readinessProbe"];

/// The effective container, and where its parts are written.
pub(super) struct Effective {
    pub container: Json,
    /// The path of each variable; none if it belongs to the graph, and so also to other components.
    variables: Vec<Option<Path>>,
    /// The list in which a variable overrides all others of the same name.
    pub own: Path,
}

impl Effective {
    pub fn of(root: &Json, workload: &Workload, frontend: &Frontend) -> Self {
        let mut container = get(root, &frontend.path).cloned().unwrap_or_default();
        if container.is_null() {
            container = json!({});
        }
        let own = below(&frontend.path, ["env"]);
        let written = list(root, &own);
        let own_places = |path: &Path, count: usize| -> Vec<_> {
            (0..count).map(|index| Some(below(path, [index]))).collect()
        };
        let mut variables = own_places(&own, written.len());
        let Some(main_apart) = of_component(workload, frontend) else {
            return Self {
                container,
                variables,
                own,
            };
        };
        let spec = below(&workload.object, ["spec"]);
        let name = if main_apart { "envs" } else { "env" };
        let of_graph = list(root, &below(&spec, [name]));
        if !main_apart {
            let shared = vec![None; of_graph.len()];
            let variables = [shared, variables].concat();
            let all = of_graph.into_iter().chain(written);
            set_variables(&mut container, all.collect());
            return Self {
                container,
                variables,
                own,
            };
        }
        let own = below(&workload.base, [name]);
        let of_component = list(root, &own);
        variables.extend(vec![None; of_graph.len()]);
        variables.extend(own_places(&own, of_component.len()));
        let all = written.into_iter().chain(of_graph).chain(of_component);
        set_variables(&mut container, all.collect());
        let component = get(root, &workload.base).unwrap_or(&Json::Null);
        for probe in PROBES.iter().filter(|probe| component[**probe].is_object()) {
            container[*probe] = component[*probe].clone();
        }
        if component["resources"].is_object() {
            container["resources"] = component["resources"].clone();
        }
        if let Some(secret) = component["envFromSecret"].as_str() {
            container["envFrom"] = json!([{"secretRef": {"name": secret}}]);
        }
        Self {
            container,
            variables,
            own,
        }
    }
}

/// Whether the operator creates the container for a component, and whether the manifest contains it separately.
fn of_component(workload: &Workload, frontend: &Frontend) -> Option<bool> {
    match workload.creator {
        PodCreator::Operator { main_apart } if frontend.name == "main" => Some(main_apart),
        _ => None,
    }
}

impl Injection<'_, '_> {
    /// Adds the container that the operator creates to the list of containers, if it is missing there, so that it can be edited.
    pub(super) fn write_out_main(&mut self) -> Result<(), Refused> {
        let is_there = get(self.root, &self.frontend.path).is_some();
        if is_there || of_component(self.workload, self.frontend) != Some(false) {
            return Ok(());
        }
        let (_, list) = self
            .frontend
            .path
            .split_last()
            .unwrap_or((&Step::Item(0), &[]));
        self.editor.push_named(list, &self.frontend.name)?;
        self.note.add_detail(format!(
            "container '{}' is added to the manifest with the changes; Dynamo's operator adds the rest, as before",
            self.frontend.name
        ));
        Ok(())
    }

    /// The path of a probe of the container, whether it exists or not.
    pub(super) fn probe(&self, probe: &str) -> Path {
        let apart = below(&self.workload.base, [probe]);
        let is_there = get(self.root, &apart).is_some_and(Json::is_object);
        match of_component(self.workload, self.frontend) == Some(true)
            && is_there
            && PROBES.contains(&probe)
        {
            true => apart,
            false => self.of(&[probe]),
        }
    }

    /// Replaces a part of the text at a path below the effective container.
    pub(super) fn exchange(
        &mut self,
        effective: &Effective,
        path: &[Step],
        from: &str,
        to: &str,
        times: usize,
    ) -> Result<(), Refused> {
        let [Step::Key(key), Step::Item(index), rest @ ..] = path else {
            return self.exchange_below(path, from, to, times);
        };
        if key != "env" {
            return self.exchange_below(path, from, to, times);
        }
        match effective.variables.get(*index) {
            Some(Some(place)) => {
                let path = [place.clone(), rest.to_vec()].concat();
                self.editor.swap_all(&path, from, to, times)
            }
            // The other components keep their value.
            _ => {
                let variable = &effective.container["env"][*index];
                let value = variable["value"].as_str().unwrap_or_default();
                let value = value.replacen(from, to, times);
                let value = json!({"name": variable["name"], "value": value});
                self.editor.push(&effective.own, value)
            }
        }
    }

    fn exchange_below(
        &mut self,
        path: &[Step],
        from: &str,
        to: &str,
        times: usize,
    ) -> Result<(), Refused> {
        let path = [self.frontend.path.clone(), path.to_vec()].concat();
        self.editor.swap_all(&path, from, to, times)
    }
}

fn list(root: &Json, path: &[Step]) -> Vec<Json> {
    let list = get(root, path).and_then(Json::as_array);
    list.cloned().unwrap_or_default()
}

fn set_variables(container: &mut Json, variables: Vec<Json>) {
    // A value that is not a list is rejected where it is edited.
    let is_list = container["env"].is_null() || container["env"].is_array();
    if container.is_object() && is_list && !variables.is_empty() {
        container["env"] = variables.into();
    }
}
