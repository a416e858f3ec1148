//! How an update identifies a pod, and which permissions the pod's service account needs.

use super::super::Refused;
use super::super::path::below;
use super::super::server::Server;
use super::super::workload::PodCreator;
use super::Injection;

/// The label of pods that have none of Dynamo's (`deploy/network-policy`).
pub(in crate::inject) const PROXY: &str = "crossfade/proxy";

impl Injection<'_, '_> {
    /// The name by which an update finds the pod; Dynamo's pods have it as a label.
    pub(super) fn labels(&mut self) -> Result<String, Refused> {
        const GRAPH: &str = "nvidia.com/dynamo-graph-deployment-name";
        const COMPONENT: &str = "nvidia.com/dynamo-component-type";
        let labels = self
            .editor
            .get(&self.workload.labels)
            .cloned()
            .unwrap_or_default();
        let label = labels[GRAPH].as_str().map(str::to_owned);
        let given = self.options.deployment.clone();
        let name = given
            .clone()
            .or(label.clone())
            .or(self.workload.deployment.clone());
        let Some(name) = name else {
            return Err(
                self.refuse("it has no name that updates could refer to: set --deployment NAME")
            );
        };
        if given.is_some() && !is_label_value(&name) {
            return Err(self.refuse(format!("--deployment: {}", no_label(&name))));
        }
        if self.workload.creator != PodCreator::Kubernetes {
            let of_graph = self.workload.deployment.as_ref();
            return match of_graph {
                Some(graph) if *graph != name => Err(self.refuse(format!(
                    "--deployment is {name}, but Dynamo's operator labels its pods with the name of the graph, {graph}"
                ))),
                _ => Ok(name),
            };
        }
        let is_dynamo = self.frontend.server == Server::Dynamo;
        if !is_dynamo && label.is_none() {
            self.note.add_detail(format!(
                "to count its pods as workers, set spec.workers.old (or .new, if it is the new generation): {{kind: {}, name: {}}} in the update",
                self.workload.name.split('/').next().unwrap_or_default(),
                self.workload.deployment.as_deref().unwrap_or("NAME"),
            ));
        }
        if !is_dynamo && label.is_none() && self.is_found_by_name(&name) {
            self.label_for_policies()?;
            return Ok(name);
        }
        if !is_label_value(&name) {
            return Err(self.refuse(format!(
                "{}, by which the controller finds its pods: set another name with --deployment",
                no_label(&name)
            )));
        }
        let place = |label: &str| below(&self.workload.labels, [label]);
        match label {
            None => {
                self.editor.put(&place(GRAPH), name.as_str().into())?;
                let workers = match is_dynamo {
                    true => "the pods of its workers need it as well",
                    false => "the controller uses it to find them",
                };
                self.note
                    .add_detail(format!("its pods get the label {GRAPH}: {name}; {workers}"));
            }
            Some(label) if label != name => {
                return Err(self.refuse(format!(
                    "--deployment is {name}, but its label {GRAPH} is {label}"
                )));
            }
            Some(_) => {}
        }
        if labels[COMPONENT].is_null() {
            self.editor.put(&place(COMPONENT), "frontend".into())?;
            self.note
                .add_detail(format!("its pods get the label {COMPONENT}: frontend"));
        }
        Ok(name)
    }

    /// Adds a label to pods that have none of Dynamo's.
    fn label_for_policies(&mut self) -> Result<(), Refused> {
        let place = below(&self.workload.labels, [PROXY]);
        if self.editor.get(&place).is_some() {
            return Ok(());
        }
        self.note
            .add_detail(match self.editor.is_alone(&self.workload.labels) {
                true => {
                    self.editor.put(&place, "true".into())?;
                    format!(
                        "its pods get the label {PROXY}, so that a NetworkPolicy can select them"
                    )
                }
                false => format!(
                    "its pods do not get the label {PROXY}, by which a NetworkPolicy could select them, because their labels have \
                     a YAML anchor or alias"
                ),
            });
        Ok(())
    }

    /// Whether the controller finds the pods by the selector of the Deployment with this name.
    fn is_found_by_name(&self, name: &str) -> bool {
        let object = super::super::path::get(self.root, &self.workload.object);
        object.is_some_and(|object| {
            let selector = object["spec"]["selector"]["matchLabels"].as_object();
            object["kind"] == "Deployment"
                && object["metadata"]["name"] == name
                && selector.is_some_and(|labels| !labels.is_empty())
        })
    }

    /// Reports the permissions that the pod's service account needs.
    pub(super) fn account(&mut self) {
        let account = self.workload.account(self.root);
        let namespace = self.workload.namespace.as_deref();
        let namespace = namespace
            .map(|name| format!(" -n {name}"))
            .unwrap_or_default();
        self.note.add_detail(format!(
            "its service account '{account}' needs permission to read updates, once per namespace: crossfade rbac {account} | kubectl apply{namespace} -f -"
        ));
    }
}

/// Whether this is a valid value of a label.
fn is_label_value(value: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    value.len() <= 63
        && is_end(value.chars().next())
        && is_end(value.chars().next_back())
        && value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn no_label(name: &str) -> String {
    format!(
        "'{name}' is not a valid value of a label (at most 63 letters, digits, '-', '_', and '.', with a letter or \
         digit at both ends)"
    )
}
