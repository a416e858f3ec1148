//! How an update identifies a pod, and which permissions the pod's service account needs.

use super::super::Refused;
use super::super::path::below;
use super::super::server::Server;
use super::super::workload::Maker;
use super::Injection;

impl Injection<'_, '_> {
    /// The name by which an update finds the pod, which Dynamo's pods carry as a label.
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
            return Err(self.refuse(
                "it has no name by which updates could refer to it: set --deployment NAME",
            ));
        };
        let is_plain = self.workload.maker == Maker::Kubernetes;
        if !is_plain || self.frontend.server != Server::Dynamo {
            if is_plain && label.is_none() {
                self.note.add_detail(format!(
                    "an update counts its pods as workers by spec.workers.old: {{kind: {}, name: {}}}",
                    self.workload.name.split('/').next().unwrap_or_default(),
                    self.workload.deployment.as_deref().unwrap_or("NAME"),
                ));
            }
            return Ok(name);
        }
        let place = |label: &str| below(&self.workload.labels, [label]);
        match label {
            None => {
                self.editor.put(&place(GRAPH), name.as_str().into())?;
                self.note.add_detail(format!("its pods get the label {GRAPH}: {name}; the pods of its workers need it as well"));
            }
            Some(label) if label != name => {
                return Err(self.refuse(format!(
                    "--deployment says {name}, but its label {GRAPH} says {label}"
                )));
            }
            Some(_) => {}
        }
        if labels[COMPONENT].is_null() {
            self.editor.put(&place(COMPONENT), "frontend".into())?;
        }
        Ok(name)
    }

    /// Tells what the pod's service account must be allowed.
    pub(super) fn account(&mut self) {
        let spec = self.spec();
        let own = spec["serviceAccountName"]
            .as_str()
            .or(spec["serviceAccount"].as_str());
        let account = match (
            own,
            self.workload.maker,
            self.workload.deployment.as_deref(),
        ) {
            (Some(own), ..) => own.to_owned(),
            (None, Maker::Operator { .. }, Some(name)) => format!("{name}-k8s-service-discovery"),
            _ => "default".to_owned(),
        };
        let namespace = self.workload.namespace.as_deref();
        let namespace = namespace
            .map(|name| format!(" -n {name}"))
            .unwrap_or_default();
        self.note.add_detail(format!(
            "its service account '{account}' needs permission to read updates, once per namespace: crossfade rbac {account} | kubectl apply{namespace} -f -"
        ));
    }
}
