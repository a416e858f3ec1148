//! Actions on the cluster.

use super::object::END;
use super::*;

impl Cluster {
    /// Does `action`, at most `writes` of its writes, each only if the object is as it was read. Whether all was done.
    pub fn apply(
        &mut self,
        action: &ScalingAction,
        read: &Versions,
        writes: usize,
        records: bool,
    ) -> bool {
        match action {
            ScalingAction::Split(split) => {
                if self.split_version != read.split || writes == 0 {
                    return false;
                }
                self.split = *split;
                self.split_version += 1;
                self.applied_since = self.tick;
            }
            ScalingAction::Grow { generation, sizes }
            | ScalingAction::Shrink { generation, sizes } => {
                return self.scale(*generation, sizes, read, writes, records);
            }
            ScalingAction::Mark { .. } => {}
            ScalingAction::Replace {
                generation,
                role,
                pods,
            } => {
                let version = self.generation(*generation)[role].version;
                if read.objects[&(*generation == Generation::New, *role)] != version || writes == 0
                {
                    return false;
                }
                let object = self
                    .generation_mut(*generation)
                    .get_mut(role)
                    .expect("the role exists");
                let before = object.leaving.len();
                object
                    .leaving
                    .retain(|pod, _| !pods.contains(&pod.to_string()));
                let replaced = before - object.leaving.len();
                object.ending.extend(vec![END; replaced]);
            }
            _ if self.service_version != read.service || writes == 0 => return false,
            ScalingAction::SaveSelector => self.selector_saved = true,
            ScalingAction::Retarget(generation) => self.service = *generation,
            ScalingAction::Retire(_) => self.retired = true,
        }
        if matches!(
            action,
            ScalingAction::SaveSelector | ScalingAction::Retarget(_) | ScalingAction::Retire(_)
        ) {
            self.service_version += 1;
        }
        true
    }

    fn scale(
        &mut self,
        generation: Generation,
        sizes: &Sizes,
        read: &Versions,
        writes: usize,
        records: bool,
    ) -> bool {
        let mut done = 0;
        for (role, size) in sizes {
            let object = &self.generation(generation)[role];
            if object.desired == *size {
                continue;
            }
            let is_as_read =
                read.objects[&(generation == Generation::New, *role)] == object.version;
            if done == writes || !is_as_read {
                return false;
            }
            self.resize(generation, *role, *size, true, records);
            done += 1;
        }
        true
    }

    /// Looks, acts and lets time pass until nothing is left to do, and returns the sizes on the way, new before old.
    pub fn run(&mut self, looks: usize) -> (ScalingDecision, Vec<String>) {
        let mut way = Vec::new();
        let mut waited = 0;
        for _ in 0..looks {
            let decision = decide(&self.settings, &self.read());
            match &decision.action {
                Some(action) => {
                    assert!(self.apply(action, &self.versions(), usize::MAX, true));
                    way.push(reported(action));
                    waited = 0;
                }
                None => waited += 1,
            }
            // Everything that takes time takes less than this.
            if waited > 60 {
                return (decision, way);
            }
            self.pass();
        }
        panic!(
            "no end after {looks} looks: {:?}",
            &way[..way.len().min(30)]
        );
    }
}

/// An action in few words.
fn reported(action: &ScalingAction) -> String {
    let sizes = |sizes: &Sizes| {
        let sizes: Vec<_> = sizes.values().map(u32::to_string).collect();
        sizes.join("/")
    };
    match action {
        ScalingAction::Split(split) => format!("{}:{}", split.old(), split.new_weight()),
        ScalingAction::Grow {
            generation,
            sizes: to,
        } => format!("{generation}+{}", sizes(to)),
        ScalingAction::Shrink {
            generation,
            sizes: to,
        } => format!("{generation}-{}", sizes(to)),
        ScalingAction::Mark { .. } => "mark".to_owned(),
        ScalingAction::Replace { pods, .. } => format!("replace{}", pods.len()),
        ScalingAction::SaveSelector => "save".to_owned(),
        ScalingAction::Retarget(generation) => format!("clients>{generation}"),
        ScalingAction::Retire(retire) => format!("{retire:?}"),
    }
}
