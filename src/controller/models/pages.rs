//! Reads what a frontend reports of its models: the list, and the page about each.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::Deserialize;

use crate::rollout::Registered;

/// Maximum length of the name of a model or of a Dynamo namespace, in bytes. Longer ones are ignored.
const MAX_ID: usize = 512;

/// The page of a model.
#[derive(Default, Deserialize)]
pub(super) struct Page {
    /// By name of the Dynamo namespace.
    #[serde(default)]
    namespaces: BTreeMap<String, Namespace>,
}

#[derive(Deserialize)]
struct Namespace {
    #[serde(default)]
    worker_types: BTreeMap<String, WorkerType>,
}

#[derive(Deserialize)]
struct WorkerType {
    workers: u32,
}

impl Page {
    /// The page; empty if it reports no workers.
    pub fn read(status: StatusCode, page: &[u8]) -> Self {
        // A frontend that is not ready reports its namespaces, too.
        let has_page = status.is_success() || status == StatusCode::SERVICE_UNAVAILABLE;
        match has_page {
            true => serde_json::from_slice(page).unwrap_or_default(),
            false => Self::default(),
        }
    }

    /// The workers, summed over all Dynamo namespaces.
    pub fn registered(&self) -> Registered {
        let types = self.namespaces.values();
        let types = types.flat_map(|namespace| &namespace.worker_types);
        let mut found = Registered::default();
        for (name, WorkerType { workers }) in types {
            let count = match name.as_str() {
                "prefill" => &mut found.prefill,
                _ => &mut found.others,
            };
            *count = Some(count.unwrap_or(0).saturating_add(*workers));
        }
        found
    }

    /// The Dynamo namespaces that have workers.
    pub fn with_workers(self) -> impl Iterator<Item = String> {
        let namespaces = self.namespaces.into_iter();
        namespaces.filter_map(|(name, namespace)| {
            let mut types = namespace.worker_types.values();
            let has_workers = types.any(|of_type| of_type.workers > 0);
            (has_workers && name.len() <= MAX_ID).then_some(name)
        })
    }
}

/// The workers of all models. A worker that serves several models is counted once for each, so the sum is never too low.
/// Unknown if the page of any model does not report workers.
pub(super) fn in_all(pages: &[Registered]) -> Registered {
    let has_page = |page: &Registered| page.prefill.is_some() || page.others.is_some();
    if !pages.iter().all(has_page) {
        return Registered::default();
    }
    let sum = |of: fn(&Registered) -> Option<u32>| {
        let counts = pages.iter().filter_map(of);
        counts.reduce(u32::saturating_add)
    };
    Registered {
        prefill: sum(|page| page.prefill),
        others: sum(|page| page.others),
    }
}

/// The model names of a list, sorted. Leaves out names that are too long.
pub(super) fn ids(list: &[u8]) -> Vec<String> {
    #[derive(Default, Deserialize)]
    struct List {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: Option<String>,
    }
    let list: List = serde_json::from_slice(list).unwrap_or_default();
    let ids = list.data.into_iter().filter_map(|model| model.id);
    let mut ids: Vec<String> = ids.filter(|id| id.len() <= MAX_ID).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// A model name as part of a path. Keeps slashes (`org/model`) and escapes all other special characters.
pub(super) fn in_path(model: &str) -> String {
    let mut path = String::with_capacity(model.len());
    for byte in model.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:@".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path += &format!("%{byte:02X}");
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_models_name_makes_a_path() {
        assert_eq!(in_path("Qwen/Qwen3-0.6B"), "Qwen/Qwen3-0.6B");
        assert_eq!(in_path("a b?c#d\u{e9}"), "a%20b%3Fc%23d%C3%A9");
    }

    #[test]
    fn workers_are_counted_by_the_pages_of_all_models_and_only_if_all_of_them_say() {
        let page = |types: serde_json::Value| {
            let page =
                json!({"model": "m", "ready": true, "namespaces": {"a": {"worker_types": types}}});
            Page::read(StatusCode::OK, page.to_string().as_bytes()).registered()
        };
        let of = |prefill, others| Registered { prefill, others };
        let whole = page(json!({"aggregated": {"workers": 2, "needs": []}}));
        assert_eq!(whole, of(None, Some(2)));
        let halves = page(json!({"prefill": {"workers": 3}, "decode": {"workers": 1}}));
        assert_eq!(halves, of(Some(3), Some(1)));
        let none = page(json!({}));
        for silent in [&b"{}"[..], b"", b"[", br#"{"namespaces": 7}"#] {
            assert_eq!(Page::read(StatusCode::OK, silent).registered(), none);
        }
        assert_eq!(Page::read(StatusCode::NOT_FOUND, b"{}").registered(), none);
        assert_eq!(in_all(&[whole, halves]), of(Some(3), Some(3)));
        assert_eq!(in_all(&[whole, none]), none);
        assert_eq!(in_all(&[]), none);
    }

    #[test]
    fn a_namespace_without_workers_is_not_used() {
        let types = |workers: u32| json!({"worker_types": {"aggregated": {"workers": workers}}});
        let page = json!({"namespaces": {"a": types(1), "b": types(0), "c": {}, "d": types(2)}});
        let page = Page::read(StatusCode::OK, page.to_string().as_bytes());
        assert_eq!(page.with_workers().collect::<Vec<_>>(), ["a", "d"]);
    }

    #[test]
    fn entries_without_a_usable_id_are_skipped() {
        let long = "x".repeat(MAX_ID + 1);
        let list =
            json!({"data": [{"id": "b"}, {"id": "a", "more": [1]}, {"id": "b"}, {}, {"id": long}]});
        assert_eq!(ids(list.to_string().as_bytes()), ["a", "b"]);
        assert_eq!(ids(b"["), [""; 0]);
    }
}
