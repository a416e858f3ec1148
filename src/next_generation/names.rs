//! The hash of a generation, and names that contain it.

use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::xxh3_64;

use super::{change::without, parts::Parts};

/// Maximum length of an object's name that must also be a label value.
const MAX_NAME: usize = 63;

/// The fields of an object that are not hashed: they can change without a second generation, or differ between generations.
const NOT_HASHED: [&str; 4] = ["replicas", "minAvailable", "labels", "annotations"];

/// Creates names for the next generation.
#[derive(Debug)]
pub(super) struct Names {
    /// The hash of the next generation.
    pub hash: String,
    /// The hashes of the generations to which the manifests belong.
    earlier: Vec<String>,
}

impl Names {
    /// Names for the generation after `from`.
    ///
    /// # Errors
    /// When it would be the same as `from`.
    pub fn of(from: &Parts, to: &Parts) -> Result<Self, String> {
        let earlier = [from.hash(), to.hash()].into_iter().flatten();
        let mut earlier: Vec<_> = earlier.map(|hash| format!("-{hash}")).collect();
        earlier.dedup();
        let mut names = Self {
            hash: String::new(),
            earlier,
        };
        names.hash = names.hash_of(to);
        match from.hash() == Some(&*names.hash) {
            true => Err(
                "the edit does not change the pods: both generations would have the same names"
                    .to_owned(),
            ),
            false => Ok(names),
        }
    }

    /// A hash of the pods' specification in eight hex digits, independent of the generation of the manifests.
    fn hash_of(&self, parts: &Parts) -> String {
        let workers = parts.workers.iter();
        let workers: Vec<_> = workers
            .map(|worker| json!([worker.role, hashed(&worker.object["spec"]["template"])]))
            .collect();
        let graph = parts.graph.as_ref().map(|graph| hashed(&graph["spec"]));
        let frontend = hashed(&parts.frontend["spec"]["template"]);
        let mut text = json!([graph, frontend, workers]).to_string();
        for earlier in &self.earlier {
            text = text.replace(&**earlier, "");
        }
        format!("{:08x}", xxh3_64(text.as_bytes()) >> 32)
    }

    /// `name` without the hash of an earlier generation.
    pub fn base<'a>(&self, name: &'a str) -> &'a str {
        let mut stems = self
            .earlier
            .iter()
            .filter_map(|earlier| name.strip_suffix(&**earlier));
        stems.next().unwrap_or(name)
    }

    /// The next generation's counterpart of `name`.
    pub fn next(&self, name: &str) -> String {
        let base = self.base(name);
        let most = MAX_NAME - self.hash.len() - 1;
        let base: String = base.chars().take(most).collect();
        let base = base.trim_end_matches(['-', '.', '_']);
        format!("{base}-{}", self.hash)
    }

    /// The same for a text in an object, if it is one.
    pub fn next_in(&self, value: &Json) -> Json {
        value
            .as_str()
            .map_or_else(|| value.clone(), |name| self.next(name).into())
    }
}

fn hashed(json: &Json) -> Json {
    without(json, &NOT_HASHED)
}
