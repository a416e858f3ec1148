//! Plans that change while crossfade serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::engine::Engine;
use super::measure::{count, nanos, now};

/// A plan in a file, for crossfade.
pub struct Plan {
    pub path: PathBuf,
    target: String,
}

impl Plan {
    pub fn new(directory: &Path, engine: &Engine) -> Self {
        let plan = Self {
            path: directory.join("plan.yaml"),
            target: format!("http://{}", engine.upstreams()[1]),
        };
        plan.write(false);
        plan
    }

    /// Puts in place a plan by which practically all goes to the new generation, or to the old.
    fn write(&self, new: bool) {
        let (old, new) = if new {
            (1, 999_999_999)
        } else {
            (999_999_999, 1)
        };
        let text = format!(
            "apiVersion: nvidia.com/v1alpha1\nkind: DynamoUpdateConfig\nmetadata: {{name: bench}}\nspec:\n  newFrontendService: \"{}\"\n  weights: {{old: {old}, new: {new}}}\n",
            self.target
        );
        let other = self.path.with_extension("next");
        let written = fs::write(&other, text).and_then(|()| fs::rename(&other, &self.path));
        written.expect("a directory of ours can be written to");
    }

    /// Changes the plan twice a second and returns how many milliseconds each took to be in force.
    pub fn changes(&self, engine: &mut Engine, window: Duration) -> Result<Vec<f64>, String> {
        engine.meters.on = true;
        let mut times = Vec::new();
        let mut new = true;
        let until = now() + nanos(window);
        while now() < until {
            let begun = now();
            self.write(new);
            engine.meters.watch = Some((new, begun));
            engine.run(begun + 500_000_000, |_| false);
            let seen = engine
                .meters
                .seen
                .take()
                .ok_or("a plan did not come into force in 500 ms")?;
            times.push(count(seen - begun) / 1e6);
            new = !new;
        }
        engine.meters.on = false;
        Ok(times)
    }
}
