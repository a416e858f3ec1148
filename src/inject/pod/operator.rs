//! What Dynamo's operator adds to a frontend's container from other parts of a graph.
//!
//! In `v1alpha1`, the variables of the graph and then those of the component (`envs`) replace those of the container, and the
//! probes of the component replace the container's. In `v1beta1`, the variables of the container replace those of the graph (`env`).

use serde_json::{Value as Json, json};

use super::{Injection, Path, Refused, Step, below};
use crate::inject::path::get;
use crate::inject::workload::PodCreator;

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

impl Injection<'_, '_> {
    pub(super) fn effective(&self) -> Effective {
        let mut container = self.container().clone();
        if container.is_null() {
            container = json!({});
        }
        let own = self.of(&["env"]);
        let written = list(self.root, &own);
        let own_places = |path: &Path, count: usize| -> Vec<_> {
            (0..count).map(|index| Some(below(path, [index]))).collect()
        };
        let mut variables = own_places(&own, written.len());
        let Some(main_apart) = self.of_component() else {
            return Effective {
                container,
                variables,
                own,
            };
        };
        let spec = below(&self.workload.object, ["spec"]);
        let name = if main_apart { "envs" } else { "env" };
        let of_graph = list(self.root, &below(&spec, [name]));
        if !main_apart {
            let shared = vec![None; of_graph.len()];
            let variables = [shared, variables].concat();
            let all = of_graph.into_iter().chain(written);
            set_variables(&mut container, all.collect());
            return Effective {
                container,
                variables,
                own,
            };
        }
        let own = below(&self.workload.base, [name]);
        let of_component = list(self.root, &own);
        variables.extend(vec![None; of_graph.len()]);
        variables.extend(own_places(&own, of_component.len()));
        let all = written.into_iter().chain(of_graph).chain(of_component);
        set_variables(&mut container, all.collect());
        let component = get(self.root, &self.workload.base).unwrap_or(&Json::Null);
        for probe in PROBES.iter().filter(|probe| component[**probe].is_object()) {
            container[*probe] = component[*probe].clone();
        }
        if let Some(secret) = component["envFromSecret"].as_str() {
            container["envFrom"] = json!([{"secretRef": {"name": secret}}]);
        }
        Effective {
            container,
            variables,
            own,
        }
    }

    /// Whether the operator creates the container for a component, and whether the manifest contains it separately.
    fn of_component(&self) -> Option<bool> {
        match self.workload.creator {
            PodCreator::Operator { main_apart } if self.frontend.name == "main" => Some(main_apart),
            _ => None,
        }
    }

    /// Adds the container that the operator creates to the list of containers, if it is missing there, so that it can be edited.
    pub(super) fn write_out_main(&mut self) -> Result<(), Refused> {
        let is_there = get(self.root, &self.frontend.path).is_some();
        if is_there || self.of_component() != Some(false) {
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
        let of_component = below(&self.workload.base, [probe]);
        let is_there = get(self.root, &of_component).is_some_and(Json::is_object);
        match self.of_component() == Some(true) && is_there && PROBES.contains(&probe) {
            true => of_component,
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
    ) -> Result<(), Refused> {
        let [Step::Key(key), Step::Item(index), rest @ ..] = path else {
            return self.exchange_below(path, from, to);
        };
        if key != "env" {
            return self.exchange_below(path, from, to);
        }
        match effective.variables.get(*index) {
            Some(Some(place)) => {
                let path = [place.clone(), rest.to_vec()].concat();
                self.editor.swap(&path, from, to)
            }
            // The other components keep their value.
            _ => {
                let name = effective.container["env"][*index]["name"].clone();
                let value = json!({"name": name, "value": to});
                self.editor.push(&effective.own, value)
            }
        }
    }

    fn exchange_below(&mut self, path: &[Step], from: &str, to: &str) -> Result<(), Refused> {
        let path = [self.frontend.path.clone(), path.to_vec()].concat();
        self.editor.swap(&path, from, to)
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
