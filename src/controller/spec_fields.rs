//! The fields of an update's spec, each read separately, even if the spec as a whole is invalid.
//!
//! [`ParsedUpdate`](super::parsed::ParsedUpdate) is the typed form of a valid update. This form is for code that must not
//! overlook an update because of another invalid field: the index, precedence, and display.

use std::collections::BTreeMap;

use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::resource::requested_split;
use crate::split::Weights;

/// A spec of an update.
#[derive(Clone, Copy)]
pub(super) struct SpecFields<'a>(&'a Json);

/// The workers of a generation, as a spec refers to them.
#[derive(Clone, Copy)]
pub(super) struct WorkerFields<'a>(&'a Json);

impl<'a> SpecFields<'a> {
    /// The spec of `update`.
    pub fn of(update: &'a DynamicObject) -> Self {
        Self(&update.data["spec"])
    }

    /// A spec without its object.
    pub const fn of_spec(spec: &'a Json) -> Self {
        Self(spec)
    }

    /// The last valid spec, if the status of `update` contains one.
    pub fn last_valid(update: &'a DynamicObject) -> Self {
        Self(&update.data["status"]["lastValid"]["spec"])
    }

    fn text(self, field: &str) -> Option<&'a str> {
        self.0[field].as_str()
    }

    fn read<T: DeserializeOwned>(self, field: &str) -> Option<T> {
        serde_json::from_value(self.0[field].clone()).ok()
    }

    pub fn source(self) -> Option<&'a str> {
        self.text("sourceDeployment")
    }

    pub fn target(self) -> Option<&'a str> {
        self.text("targetDeployment")
    }

    pub fn client_service(self) -> Option<&'a str> {
        self.text("clientService")
    }

    pub fn new_frontend_service(self) -> Option<&'a str> {
        self.text("newFrontendService")
    }

    /// The targets in `newFrontendService`, as they are written.
    pub fn targets(self) -> impl Iterator<Item = &'a str> {
        let targets = self.new_frontend_service().unwrap_or_default();
        targets.split(',').map(str::trim)
    }

    /// Whether it names a Dynamo namespace of new.
    pub fn names_dynamo_namespace(self) -> bool {
        !self.0["newDynamoNamespace"].is_null()
    }

    /// The workers of `generation`: `old` or `new`.
    pub fn workers(self, generation: &str) -> WorkerFields<'a> {
        WorkerFields(&self.0["workers"][generation])
    }

    /// The split, before any cap.
    pub fn split(self) -> Option<Weights> {
        requested_split(self.read("weights"), self.read("trafficSplitPercent"))
    }

    /// The split as an exact ratio, if the spec gives it in this form.
    pub fn weights(self) -> Option<Weights> {
        requested_split(self.read("weights"), None)
    }

    /// `maxTrafficSplitPercent`
    pub fn cap_percent(self) -> Option<u8> {
        self.read("maxTrafficSplitPercent")
    }
}

impl<'a> WorkerFields<'a> {
    pub fn name(self) -> Option<&'a str> {
        self.0["name"].as_str()
    }

    pub fn revision(self) -> Option<&'a str> {
        self.0["revision"].as_str()
    }

    /// Whether workers are counted by `DynamoWorkerMetadata`.
    pub fn are_counted_by_metadata(self) -> bool {
        self.0["kind"] == "DynamoWorkerMetadata"
    }

    /// The labels of the workers' pods; empty if they are not selected by labels.
    pub fn selector(self) -> BTreeMap<String, String> {
        serde_json::from_value(self.0["selector"].clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrong_field_hides_no_other() {
        let spec = json!({
            "sourceDeployment": "a", "targetDeployment": 7, "newFrontendService": "b:80, https://c",
            "weights": {"old": 3, "new": 1}, "maxTrafficSplitPercent": "many",
            "workers": {"new": {"name": "b", "selector": {"app": "b"}}, "old": []},
        });
        let fields = SpecFields::of_spec(&spec);
        assert_eq!((fields.source(), fields.target()), (Some("a"), None));
        assert_eq!(fields.targets().collect::<Vec<_>>(), ["b:80", "https://c"]);
        assert_eq!(fields.split(), Weights::new(3, 1).ok());
        assert_eq!(fields.cap_percent(), None);
        assert_eq!(fields.workers("new").name(), Some("b"));
        assert_eq!(fields.workers("new").selector()["app"], "b");
        assert!(fields.workers("old").selector().is_empty());
    }

    #[test]
    fn the_split_is_given_by_weights_or_in_percent() {
        let split = |spec: &Json| SpecFields::of_spec(spec).split();
        assert_eq!(split(&json!({})), None);
        assert_eq!(
            split(&json!({"trafficSplitPercent": 25})),
            Weights::new(3, 1).ok()
        );
        assert_eq!(split(&json!({"weights": {"old": 0, "new": 0}})), None);
    }
}
