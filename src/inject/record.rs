//! The changes of an injection to a pod, recorded in an annotation of the pod so that they can be undone. Paths start at the
//! object that creates the pods; list items appear in them as `[name]` or `[#index]`.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// The annotation.
pub const ANNOTATION: &str = "crossfade/injected";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Record {
    /// The version of the program that wrote it.
    pub version: String,
    /// The port on which the frontend listened before.
    pub port: u16,
    /// The options, reused by the next injection.
    #[serde(skip_serializing_if = "super::Options::is_default")]
    pub options: super::Options,
    /// Values that were added.
    pub added: Vec<String>,
    /// Their parents that were also added: removed once they are empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub made: Vec<String>,
    /// Replaced parts of texts and numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub swapped: Vec<Swapped>,
    /// Values that were replaced as a whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<Replaced>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Swapped {
    pub path: String,
    pub from: String,
    pub to: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Replaced {
    pub path: String,
    /// The original text after the colon.
    pub was: String,
    /// The column of the key; `None` in flow style.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// The original value, if the text has an alias: the anchor is elsewhere, and not in what a cluster returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Json>,
}
