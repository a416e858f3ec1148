//! The ports that the containers of a pod declare.

use serde_json::Value as Json;

/// The ports of all containers of a pod's `spec`, including the init containers: a sidecar may be one of them.
pub fn declared_ports(spec: &Json) -> impl Iterator<Item = &Json> {
    let lists = ["initContainers", "containers"].into_iter();
    let containers = lists.flat_map(|list| spec[list].as_array().into_iter().flatten());
    containers.flat_map(|container| container["ports"].as_array().into_iter().flatten())
}

/// The declared ports with this name: several containers may have one.
pub fn named_ports<'a>(spec: &'a Json, name: &'a str) -> impl Iterator<Item = &'a Json> {
    declared_ports(spec).filter(move |port| port["name"] == name)
}

/// The number of a declared port, if it is one.
#[must_use]
pub fn container_port(port: &Json) -> Option<u16> {
    port["containerPort"].as_u64()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_of_sidecars_count() {
        let spec = json!({
            "containers": [{"ports": [{"containerPort": 8000}]}, {"name": "without ports"}],
            "initContainers": [{"ports": [{"name": "crossfade", "containerPort": 9464}]}],
        });
        let all: Vec<_> = declared_ports(&spec).filter_map(container_port).collect();
        assert_eq!(all, [9464, 8000]);
        let named: Vec<_> = named_ports(&spec, "crossfade")
            .filter_map(container_port)
            .collect();
        assert_eq!(named, [9464]);
        assert_eq!(container_port(&json!({"containerPort": 70_000})), None);
    }
}
