//! The full size of both generations, and the units in which a rollout moves them.

use std::collections::BTreeMap;

use crate::rollout::{PerGeneration, Role};
use crate::split::Generation;

/// A number of replicas for each role.
pub type Sizes = BTreeMap<Role, u32>;

/// The full size of each generation, which a rollout moves in a number of units.
///
/// There are as many units as the largest role has replicas. With `u` units, a role has its proportional share, rounded up:
/// prefill 4 and decode 2 go through 1/1, 2/1, 3/2, 4/2. For two roles, this is the largest remainder method; with more roles, it
/// differs in that no role is ever left without a replica. The number of units can be computed from the resulting sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    units: u32,
    full: PerGeneration<Sizes>,
}

impl Shape {
    /// The shape of two generations, or `None` if one of them has no role or a role of size 0.
    #[must_use]
    pub fn of(full: PerGeneration<Sizes>) -> Option<Self> {
        let is_whole = |sizes: &Sizes| !sizes.is_empty() && sizes.values().all(|size| *size > 0);
        if !is_whole(&full.old) || !is_whole(&full.new) {
            return None;
        }
        let all = full.old.values().chain(full.new.values());
        let units = all.copied().max()?;
        Some(Self { units, full })
    }

    /// The number of units of a whole generation.
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// The full size of a generation.
    #[must_use]
    pub const fn full(&self, generation: Generation) -> &Sizes {
        self.full.of(generation)
    }

    /// The sizes of the roles of `generation` at this number of units.
    #[must_use]
    pub fn sizes(&self, generation: Generation, units: u32) -> Sizes {
        let size = |full: u32| {
            let part = u64::from(units) * u64::from(full);
            part.div_ceil(u64::from(self.units)) as u32
        };
        let roles = self.full(generation).iter();
        roles.map(|(role, full)| (*role, size(*full))).collect()
    }

    /// The number of whole units in `sizes`: the highest number whose sizes they reach in every role. At most a whole
    /// generation.
    #[must_use]
    pub fn whole(&self, generation: Generation, sizes: &Sizes) -> u32 {
        let of = |role: &Role, full: u32| {
            let size = sizes.get(role).copied().unwrap_or_default();
            u64::from(size) * u64::from(self.units) / u64::from(full)
        };
        let roles = self.full(generation).iter();
        let least = roles.map(|(role, full)| of(role, *full)).min();
        least.unwrap_or_default().min(u64::from(self.units)) as u32
    }

    /// The number of units that `sizes` occupy: the lowest number whose sizes reach them in every role. Can be more than a whole
    /// generation.
    #[must_use]
    pub fn covering(&self, generation: Generation, sizes: &Sizes) -> u32 {
        let of = |role: &Role, full: u32| {
            let size = u64::from(sizes.get(role).copied().unwrap_or_default());
            // The lowest number of units `u` with ⌈u · full ÷ units⌉ ≥ size.
            match size {
                0 => 0,
                size => (size - 1) * u64::from(self.units) / u64::from(full) + 1,
            }
        };
        let roles = self.full(generation).iter();
        let most = roles.map(|(role, full)| of(role, *full)).max();
        u32::try_from(most.unwrap_or_default()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(old: &[(Role, u32)], new: &[(Role, u32)]) -> Shape {
        let sizes = |roles: &[(Role, u32)]| roles.iter().copied().collect();
        Shape::of(PerGeneration {
            old: sizes(old),
            new: sizes(new),
        })
        .unwrap()
    }

    #[test]
    fn roles_keep_their_proportion_to_within_one_replica() {
        let roles = [(Role::Prefill, 4), (Role::Decode, 2)];
        let shape = shape(&roles, &roles);
        let sizes = (0..=4).map(|units| {
            let sizes = shape.sizes(Generation::New, units);
            (sizes[&Role::Prefill], sizes[&Role::Decode])
        });
        assert_eq!(
            sizes.collect::<Vec<_>>(),
            [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2)]
        );
    }

    #[test]
    fn units_are_read_back_from_the_sizes_that_they_gave() {
        for prefill in 1..=9 {
            for decode in 1..=9 {
                let old = [(Role::Prefill, prefill), (Role::Decode, decode)];
                let shape = shape(&old, &[(Role::Worker, 5)]);
                for generation in Generation::ALL {
                    for units in 0..=shape.units() {
                        let sizes = shape.sizes(generation, units);
                        // Several numbers of units have the same sizes if the other generation has more units.
                        let (least, most) = (
                            shape.covering(generation, &sizes),
                            shape.whole(generation, &sizes),
                        );
                        assert!(least <= units && units <= most, "{sizes:?}");
                        assert_eq!(shape.sizes(generation, least), sizes);
                        assert_eq!(shape.sizes(generation, most), sizes);
                    }
                }
            }
        }
    }

    #[test]
    fn half_written_sizes_are_fewer_whole_units_than_they_take_up() {
        let roles = [(Role::Prefill, 4), (Role::Decode, 2)];
        let shape = shape(&roles, &roles);
        let half = [(Role::Prefill, 3), (Role::Decode, 1)].into();
        assert_eq!(shape.whole(Generation::Old, &half), 2);
        assert_eq!(shape.covering(Generation::Old, &half), 3);
        let lone = [(Role::Prefill, 3)].into();
        assert_eq!(shape.whole(Generation::Old, &lone), 0);
        let more = [(Role::Prefill, 6), (Role::Decode, 2)].into();
        assert_eq!(shape.whole(Generation::Old, &more), 4);
        assert_eq!(shape.covering(Generation::Old, &more), 6);
    }

    #[test]
    fn a_generation_without_a_size_has_no_proportions() {
        let one: Sizes = [(Role::Worker, 1)].into();
        for wrong in [Sizes::new(), [(Role::Worker, 0)].into()] {
            let (old, new) = (one.clone(), wrong);
            assert_eq!(Shape::of(PerGeneration { old, new }), None);
        }
    }
}
