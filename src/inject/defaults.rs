//! What an API server adds to the values that inject writes, as opposed to what a person adds.

use serde_json::{Value as Json, json};

/// The defaults of one pod.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    /// Whether it uses the network of its node: its host ports are then its container ports.
    pub host_network: bool,
}

impl Defaults {
    /// Whether `now` is `written`, apart from defaults.
    pub fn is_unchanged(self, now: &Json, written: &Json) -> bool {
        match (now, written) {
            (Json::Object(now), Json::Object(written)) => {
                let is_kept = |(key, written): (&String, &Json)| {
                    now.get(key)
                        .is_some_and(|now| self.is_unchanged(now, written))
                };
                let is_host_port = |key: &str, value: &Json| {
                    self.host_network
                        && key == "hostPort"
                        && now.get("containerPort") == Some(value)
                };
                let is_no_addition = |(key, value): (&String, &Json)| {
                    written.contains_key(key) || is_default(key, value) || is_host_port(key, value)
                };
                written.iter().all(is_kept) && now.iter().all(is_no_addition)
            }
            (Json::Array(now), Json::Array(written)) => {
                let mut items = now.iter().zip(written);
                now.len() == written.len()
                    && items.all(|(now, written)| self.is_unchanged(now, written))
            }
            (now, written) => now == written,
        }
    }
}

/// Whether a member that was not written is what Kubernetes sets in its place (`pkg/apis/core/v1/defaults.go`).
fn is_default(key: &str, value: &Json) -> bool {
    let default = match key {
        // Ports.
        "protocol" => json!("TCP"),
        // Probes and hooks.
        "scheme" => json!("HTTP"),
        "timeoutSeconds" | "successThreshold" => json!(1),
        "periodSeconds" => json!(10),
        "failureThreshold" => json!(3),
        // References of variables.
        "apiVersion" => json!("v1"),
        // Containers.
        "terminationMessagePath" => json!("/dev/termination-log"),
        "terminationMessagePolicy" => json!("File"),
        "imagePullPolicy" => {
            return ["Always", "IfNotPresent"]
                .iter()
                .any(|policy| value == policy);
        }
        _ => Json::Null,
    };
    let is_empty = match value {
        Json::Null => true,
        Json::Array(list) => list.is_empty(),
        Json::Object(map) => map.is_empty(),
        _ => false,
    };
    is_empty || *value == default
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: Defaults = Defaults {
        host_network: false,
    };

    #[test]
    fn defaults_are_no_change() {
        let written = json!({"httpGet": {"path": "/readyz", "port": 9464}, "periodSeconds": 2});
        let now = json!({
            "httpGet": {"path": "/readyz", "port": 9464, "scheme": "HTTP"},
            "periodSeconds": 2, "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3,
        });
        assert!(POD.is_unchanged(&now, &written));
        let port = json!({"name": "frontend", "containerPort": 8080});
        let now = json!({"name": "frontend", "containerPort": 8080, "protocol": "TCP"});
        assert!(POD.is_unchanged(&now, &port));
        let now = json!({"name": "frontend", "containerPort": 8080, "hostPort": 8080});
        let host_network = true;
        assert!(Defaults { host_network }.is_unchanged(&now, &port));
    }

    #[test]
    fn what_a_person_adds_is_a_change() {
        let written = json!({"name": "frontend", "containerPort": 8080});
        for (key, value) in [
            ("hostPort", json!(8080)),
            ("protocol", json!("UDP")),
            ("failureThreshold", json!(17)),
            ("periodSeconds", json!(2)),
            ("unknown", json!(true)),
        ] {
            let mut now = written.clone();
            now[key] = value;
            assert!(!POD.is_unchanged(&now, &written), "{now}");
            assert!(!POD.is_unchanged(&written, &now), "{now}");
        }
    }
}
