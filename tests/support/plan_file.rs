//! Plan files, changed in all the ways in which files are changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::upstream::Upstream;

/// A manifest with weight `old` for old and weight `new` for the servers at `target`. `more` are additional lines of the spec.
pub fn manifest(target: &str, old: u32, new: u32, more: &str) -> String {
    let more: String = more.lines().map(|line| format!("  {line}\n")).collect();
    format!(
        "apiVersion: nvidia.com/v1alpha1\nkind: DynamoUpdateConfig\nmetadata: {{name: test}}\nspec:\n  newFrontendService: \"{target}\"\n  weights: {{old: {old}, new: {new}}}\n{more}"
    )
}

/// A file in a directory of its own.
pub struct PlanFile {
    directory: TempDir,
    version: usize,
}

impl PlanFile {
    pub fn new(text: &str) -> Self {
        let file = Self::none();
        file.write(text);
        file
    }

    /// The path of a file that does not exist yet.
    pub fn none() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            version: 0,
        }
    }

    /// A file as in a ConfigMap volume: `plan.yaml -> ..data/plan.yaml`, `..data -> ..1`.
    pub fn config_map(text: &str) -> Self {
        let mut file = Self::none();
        file.swap(text);
        symlink("..data/plan.yaml", file.path()).unwrap();
        file
    }

    /// Updates the volume as the kubelet does: creates a new directory and renames the link to it.
    pub fn swap(&mut self, text: &str) {
        self.version += 1;
        let directory = self.directory.path();
        let name = format!("..{}", self.version);
        fs::create_dir(directory.join(&name)).unwrap();
        fs::write(directory.join(&name).join("plan.yaml"), text).unwrap();
        symlink(&name, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
        if self.version > 1 {
            let before = format!("..{}", self.version - 1);
            fs::remove_dir_all(directory.join(before)).unwrap();
        }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("plan.yaml")
    }

    pub fn as_str(&self) -> String {
        self.path().to_str().unwrap().to_owned()
    }

    /// Writes in place, as `cp` and some editors do.
    pub fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    /// Writes another file and renames it into place, as most editors do.
    pub fn replace(&self, text: &str) {
        let other = self.directory.path().join(".plan.yaml.swp");
        fs::write(&other, text).unwrap();
        fs::rename(other, self.path()).unwrap();
    }

    pub fn remove(&self) {
        fs::remove_file(self.path()).unwrap();
    }
}

/// A plan that sends practically every request to old, while new remains a failover target.
pub fn mostly_old(new: &Upstream, more: &str) -> PlanFile {
    PlanFile::new(&manifest(&new.url(), 999_999_999, 1, more))
}

/// Like `mostly_old`, with the generations swapped.
pub fn mostly_new(new: &Upstream, more: &str) -> PlanFile {
    PlanFile::new(&manifest(&new.url(), 1, 999_999_999, more))
}
