//! Lets crossfade, which does not run as root, listen on a low port.

use serde_json::json;

use super::super::path::below;
use super::{Injection, Refused};

/// The first port of the pod's network on which any user may listen.
const SYSCTL: &str = "net.ipv4.ip_unprivileged_port_start";
/// Ports below this one need root or that sysctl.
const UNPRIVILEGED: u16 = 1024;

impl Injection<'_, '_> {
    pub(super) fn allow(&mut self, port: u16) -> Result<(), Refused> {
        if port >= UNPRIVILEGED {
            return Ok(());
        }
        let sysctls = below(&self.workload.spec, ["securityContext", "sysctls"]);
        let list = self.editor.get(&sysctls).and_then(|list| list.as_array());
        let mut list = list.into_iter().flatten();
        if let Some(set) = list.find(|sysctl| sysctl["name"] == SYSCTL) {
            let first = set["value"].as_str().unwrap_or_default();
            if first.parse().is_ok_and(|first: u16| first > port) {
                return Err(self.refuse(format!(
                    "its sysctl {SYSCTL} is {first}, but crossfade does not run as root and must listen on port {port}: lower it to \
                     {port}"
                )));
            }
            return Ok(());
        }
        if self.workload.is_on_host_network(self.root) {
            self.note.warn(format!(
                "hostNetwork: crossfade does not run as root, and can listen on port {port} only if the node's {SYSCTL} allows it"
            ));
            return Ok(());
        }
        self.editor
            .push(&sysctls, json!({"name": SYSCTL, "value": port.to_string()}))?;
        self.note.add_detail(format!(
            "sysctl {SYSCTL}: {port}, because crossfade does not run as root and listens on port {port}"
        ));
        Ok(())
    }
}
