//! The sidecar's container, as in deploy/sidecar.

use serde_json::{Value as Json, json};

use super::resources::Resources;

/// Name of the container, of its volume, and of its admin port.
pub(super) const NAME: &str = "crossfade";
/// How long it continues to accept requests after the pod has been removed from the endpoints, in seconds.
pub(super) const SETTLE: u64 = 10;
/// The time that a pod needs beyond settling and draining, in seconds.
const SPARE: u64 = 20;
/// The default of `--drain`, in seconds.
pub(super) const DRAIN: u64 = 870;

/// Candidate ports for the frontend behind crossfade; the first free one is used.
pub(super) const FRONTEND_PORTS: [u16; 3] = [8080, 18080, 28080];

/// The parts of a sidecar that vary.
pub(super) struct Sidecar<'a> {
    pub image: &'a str,
    pub native: bool,
    pub deployment: &'a str,
    /// The port that clients connect to, with its name and its port on the node, if any.
    pub port: u16,
    pub port_name: &'a str,
    pub host_port: Option<&'a HostPort>,
    /// Whether the frontend listens on IPv6, as in a cluster without IPv4.
    pub ipv6: bool,
    /// Where the frontend listens now.
    pub frontend: u16,
    pub admin: u16,
    pub drain: u64,
    pub resources: &'a Resources,
}

/// A host port that leads to a container.
pub(super) struct HostPort {
    pub port: u64,
    /// The address of the node, if not all addresses.
    pub ip: Option<String>,
}

/// The minimum grace period of the pod, in seconds.
pub(super) fn grace(drain: u64) -> u64 {
    SETTLE + drain + SPARE
}

impl Sidecar<'_> {
    pub fn container(&self) -> Json {
        let mut container = json!({"name": NAME, "image": self.image, "args": ["proxy"]});
        if self.native {
            container["restartPolicy"] = "Always".into();
        }
        let variable = |name: &str, value: String| json!({"name": name, "value": value});
        let (all, local) = match self.ipv6 {
            // This includes IPv4.
            true => ("[::]", "[::1]"),
            false => ("0.0.0.0", "127.0.0.1"),
        };
        container["env"] = json!([
            variable("CROSSFADE_LISTEN", format!("{all}:{}", self.port)),
            variable("CROSSFADE_OLD", format!("{local}:{}", self.frontend)),
            variable("CROSSFADE_ADMIN", format!("{all}:{}", self.admin)),
            variable("CROSSFADE_KUBE", "true".to_owned()),
            variable("CROSSFADE_KUBE_DEPLOYMENT", self.deployment.to_owned()),
            // With the default, so that a server-side apply of the same manifest conflicts with no earlier client-side one.
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}},
            variable("CROSSFADE_STATE_DIR", "/var/lib/crossfade".to_owned()),
            variable("CROSSFADE_SETTLE", SETTLE.to_string()),
            variable("CROSSFADE_DRAIN", self.drain.to_string()),
            variable("CROSSFADE_MAX_CONNECTIONS", "8192".to_owned()),
            variable("CROSSFADE_MAX_REQUESTS", "8192".to_owned()),
        ]);
        let mut port = json!({"name": self.port_name, "containerPort": self.port});
        if let Some(host_port) = self.host_port {
            port["hostPort"] = host_port.port.into();
            if let Some(ip) = &host_port.ip {
                port["hostIP"] = ip.as_str().into();
            }
        }
        container["ports"] = json!([port, {"name": NAME, "containerPort": self.admin}]);
        container["readinessProbe"] = json!({
            "httpGet": {"path": "/readyz", "port": NAME},
            "periodSeconds": 2,
            "failureThreshold": 2,
        });
        container["livenessProbe"] = json!({
            "httpGet": {"path": "/livez", "port": NAME},
            "periodSeconds": 10,
            "failureThreshold": 3,
        });
        if self.native {
            // It gets SIGTERM only after the frontend is gone; a plain container gets it together with the frontend's hook.
            let command = json!({"command": ["/crossfade", "drain"]});
            container["lifecycle"] = json!({"preStop": {"exec": command}});
        }
        container["volumeMounts"] = json!([{"name": NAME, "mountPath": "/var/lib/crossfade"}]);
        container["resources"] = self.resources.json();
        container["securityContext"] = json!({
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        container
    }
}

/// The volume in which crossfade stores its plan.
pub(super) fn volume() -> Json {
    json!({"name": NAME, "emptyDir": {"sizeLimit": "16Mi"}})
}

/// The readiness probe, in place of the frontend's: the pod can serve requests from either generation.
pub(super) fn readiness(admin: u16) -> Json {
    json!({"httpGet": {"path": "/readyz", "port": admin}, "periodSeconds": 2})
}

/// Ends once the sidecar's last stream has ended.
pub(super) fn pre_stop(admin: u16) -> Json {
    json!({"httpGet": {"path": "/drained", "port": admin}})
}
