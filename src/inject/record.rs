//! The changes of an injection to a pod, recorded in an annotation of the pod so that they can be undone. Paths start at the
//! object that creates the pods; list items appear in them as `[name]` or `[#index]`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::tree::Tree;

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
    /// What was added at these paths: a value that has changed since is kept. Crossfade's own container and volume are not listed,
    /// because they are removed in any case.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, Json>,
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
    /// How many occurrences of `from` were replaced, all of them; one if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<usize>,
    /// Whether `to` is the whole value, and not a part of a text.
    #[serde(default, skip_serializing_if = "is_false")]
    pub whole: bool,
    /// The item before it in a list of texts, such as the flag of a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde requires it")]
fn is_false(value: &bool) -> bool {
    !value
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
    /// The value that replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Json>,
}

impl Replaced {
    /// The original value; `None` if it used an alias.
    pub fn original(&self) -> Option<Json> {
        let read = match self.column {
            Some(column) => in_block(&self.was, column),
            None => in_flow(&self.was),
        };
        read.or_else(|| self.value.clone())
    }
}

/// The value of a key at `column` in block style, if `after` is the text after its colon.
pub(super) fn in_block(after: &str, column: usize) -> Option<Json> {
    value_of_k(&format!("{}k:{after}\n", " ".repeat(column)))
}

/// The same for a quoted key in flow style.
pub(super) fn in_flow(after: &str) -> Option<Json> {
    value_of_k(&format!("{{\"k\":{after}\n}}"))
}

fn value_of_k(text: &str) -> Option<Json> {
    let tree = Tree::read(text).ok().flatten()?;
    tree.json().ok()?.get("k").cloned()
}

impl Record {
    /// The record without what is derived from the manifest itself: the values, which earlier versions did not record, and the
    /// parents, which remain if others have added to them.
    pub fn without_values(mut self) -> Self {
        self.values.clear();
        self.made.clear();
        for swapped in &mut self.swapped {
            (swapped.whole, swapped.after) = (false, None);
        }
        for replaced in &mut self.replaced {
            replaced.new = None;
        }
        self
    }
}
