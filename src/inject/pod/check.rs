//! What speaks against crossfade in front of a container, or must be known about it.

use serde_json::Value as Json;

use super::ports::is_mentioned;
use super::{Injection, Ports};
use crate::inject::Refused;
use crate::inject::path::{Step, get};
use crate::inject::server::{half, is_on_socket, nodes, speaks_tls};
use crate::inject::workload::truth;

impl Injection<'_, '_> {
    pub(super) fn check(&mut self, container: &Json) -> Result<(), Refused> {
        for list in ["command", "args"] {
            let path = self.of(&[list]);
            let given = get(self.root, &path).unwrap_or(&Json::Null);
            // Kubernetes would reject the pod.
            if !given.is_null() && !given.is_array() {
                let message = format!("{list} must be a list");
                return Err(Refused::of(&path, message));
            }
        }
        if self.spec()["os"]["name"] == "windows" {
            return Err(self.refuse("its pods run on Windows, and crossfade is for Linux"));
        }
        let scheme = |probe: &&str| container[*probe]["httpGet"]["scheme"] == "HTTPS";
        let probes = ["readinessProbe", "livenessProbe", "startupProbe"];
        if speaks_tls(container) || probes.iter().any(scheme) {
            return Err(self.refuse(
                "it speaks TLS to its clients: let crossfade terminate TLS instead (--tls-cert and --tls-key of the proxy), \
                 and remove the certificate from the frontend first",
            ));
        }
        if is_on_socket(self.frontend.server, container) {
            return Err(self.refuse(
                "it listens only on a Unix socket (--uds), but crossfade connects to a port: remove --uds",
            ));
        }
        if self.workload.is_on_host_network(self.root) {
            self.note.warn(
                "hostNetwork: its ports, including the admin port, are those of the node, and no NetworkPolicy restricts \
                 them; clients can bypass crossfade there, so an update never reports that old can be deleted",
            );
            if self.spec()["dnsPolicy"] != "ClusterFirstWithHostNet" {
                self.note.warn(
                    "hostNetwork without dnsPolicy: ClusterFirstWithHostNet: the pod uses the name servers of the node, so \
                     crossfade cannot resolve the new frontend's Service: set this dnsPolicy",
                );
            }
        }
        if let Some(nodes) = nodes(container) {
            return Err(self.refuse(format!(
                "it is one of {nodes} nodes that form one server (--nnodes), of which only the first one serves clients, so the \
                 others would never become ready with a sidecar: run crossfade proxy in pods of its own instead"
            )));
        }
        if let Some(half) = half(container) {
            self.note.warn(format!(
                "it is one half of a server that separates prefill from decode ({half}): a router pairs such instances, and a split \
                 before one of them would send half of a pair to new: add crossfade to the router instead"
            ));
        }
        if truth(&self.spec()["automountServiceAccountToken"]) == Some(false) {
            self.note.warn("automountServiceAccountToken is false: crossfade cannot read updates until it is true or removed");
        }
        Ok(())
    }

    /// Reports other containers that mention the port on which crossfade listens now.
    pub(super) fn mentioned(&mut self, ports: &Ports) {
        let everywhere = self.workload.everywhere(self.root).into_iter();
        let is_other = |path: &[Step], container: &Json| {
            let is_init = matches!(path, [.., Step::Key(list), _] if list == "initContainers");
            // Any other one ends before crossfade and the frontend start.
            path != self.frontend.path.as_slice()
                && (!is_init || container["restartPolicy"] == "Always")
        };
        let others = everywhere.filter(|(path, container)| is_other(path, container));
        let others = others.filter(|(_, container)| is_mentioned(container, ports.port));
        let names: Vec<_> = others
            .filter_map(|(_, container)| Some(format!("'{}'", container["name"].as_str()?)))
            .collect();
        if !names.is_empty() {
            self.note.warn(format!(
                "the command line or a variable of {} mentions {}, the port on which crossfade listens now: if it connects to that port of \
                 this pod, new may answer its requests; write {} there if they must reach this frontend",
                names.join(" and "),
                ports.port,
                ports.frontend
            ));
        }
    }
}
