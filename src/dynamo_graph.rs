//! The components of a `DynamoGraphDeployment`, in both versions of its API: `services` (v1alpha1) and `components` (v1beta1);
//! and the labels of their pods.

use serde_json::Value as Json;

/// Dynamo's label with the name of the `DynamoGraphDeployment`.
pub const GRAPH: &str = "nvidia.com/dynamo-graph-deployment-name";
/// Dynamo's label with the name of the component.
pub const COMPONENT_NAME: &str = "nvidia.com/dynamo-component";
/// Dynamo's label with the type of the component.
pub const COMPONENT: &str = "nvidia.com/dynamo-component-type";
/// Dynamo's label with `prefill` or `decode`, if the type is `worker`.
pub const SUB_COMPONENT: &str = "nvidia.com/dynamo-sub-component-type";
/// Dynamo's label with the hash that identifies the generation of the workers.
pub const WORKER_HASH: &str = "nvidia.com/dynamo-worker-hash";
/// Dynamo's label with the namespace in which frontends find workers.
pub const DYNAMO_NAMESPACE: &str = "nvidia.com/dynamo-namespace";

/// A component of a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Component<'a> {
    /// Empty if it has none, which is invalid.
    pub name: &'a str,
    /// Its type, such as `worker` or `frontend`.
    pub kind: Option<&'a str>,
    /// Its subtype, such as `prefill`. Only `v1alpha1` has one.
    pub sub_kind: Option<&'a str>,
    /// Whether it is an entry of `services`, whose fields differ.
    pub is_service: bool,
    pub spec: &'a Json,
}

/// The components in the `spec` of a graph.
pub fn components(spec: &Json) -> impl Iterator<Item = Component<'_>> {
    let services = spec["services"].as_object().into_iter().flatten();
    let services = services.map(|(name, spec)| Component {
        name,
        kind: spec["componentType"].as_str(),
        sub_kind: spec["subComponentType"].as_str(),
        is_service: true,
        spec,
    });
    let components = spec["components"].as_array().into_iter().flatten();
    services.chain(components.map(|spec| Component {
        name: spec["name"].as_str().unwrap_or_default(),
        kind: spec["type"].as_str(),
        sub_kind: None,
        is_service: false,
        spec,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_versions_have_names_and_types() {
        let alpha = json!({"services": {
            "Frontend": {"componentType": "frontend"},
            "Prefill": {"componentType": "worker", "subComponentType": "prefill"},
        }});
        let beta = json!({"components": [{"name": "decode", "type": "decode"}]});
        let read = |spec: &Json| -> Vec<(String, Option<String>, Option<String>)> {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            { components(spec) }
                .map(|one| (one.name.to_owned(), owned(one.kind), owned(one.sub_kind)))
                .collect()
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            read(&alpha),
            [
                ("Frontend".to_owned(), some("frontend"), None),
                ("Prefill".to_owned(), some("worker"), some("prefill")),
            ]
        );
        assert_eq!(read(&beta), [("decode".to_owned(), some("decode"), None)]);
        assert_eq!(read(&Json::Null), []);
    }
}
