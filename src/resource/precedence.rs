//! Decides which of several updates of one deployment is in force.
//!
//! The oldest one is in force, unless a newer one names it in `supersedes`; the newer one then replaces it, and may be superseded
//! itself. The decision depends only on the set of updates, not on the order of their arrival.

/// The fields of an update that decide its precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender<'a> {
    /// `metadata.name`, which is unique in a namespace.
    pub name: &'a str,
    /// `metadata.creationTimestamp`, in seconds since 1970. Of two updates of the same second, the one whose name sorts first
    /// counts as older.
    pub created: i64,
    /// `spec.supersedes`
    pub supersedes: Option<&'a str>,
}

impl<'a> Contender<'a> {
    fn age(&self) -> (i64, &'a str) {
        (self.created, self.name)
    }

    /// Whether this update replaces `other`: it names it in `supersedes` and is younger.
    fn replaces(&self, other: &Self) -> bool {
        self.supersedes == Some(other.name) && self.age() > other.age()
    }
}

/// The standing of an update among those of its deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its plan is in force.
    Active,
    /// It would be active, but the update at this index names it in `supersedes`.
    SupersededBy(usize),
    /// It has no effect: it is neither active nor was it replaced.
    Conflicts,
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precedence {
    /// The index of the active update.
    pub active: usize,
    /// The standing of each contender, in their order.
    pub standings: Vec<Standing>,
}

/// Decides which of `contenders` is active; `None` if there are none.
///
/// Only a younger update can replace an older one, which rules out cycles: `supersedes` has no effect on a younger update. If
/// several name the same update, the oldest of them replaces it.
#[must_use]
pub fn resolve(contenders: &[Contender<'_>]) -> Option<Precedence> {
    let oldest =
        |places: &mut dyn Iterator<Item = usize>| places.min_by_key(|at| contenders[*at].age());
    let mut standings = vec![Standing::Conflicts; contenders.len()];
    let mut active = oldest(&mut (0..contenders.len()))?;
    while let Some(successor) = oldest(
        &mut (0..contenders.len()).filter(|at| contenders[*at].replaces(&contenders[active])),
    ) {
        standings[active] = Standing::SupersededBy(successor);
        active = successor;
    }
    standings[active] = Standing::Active;
    Some(Precedence { active, standings })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn active<'a>(
        contenders: &[(&'a str, i64, Option<&'a str>)],
    ) -> Option<(&'a str, Vec<Standing>)> {
        let contenders: Vec<_> = contenders
            .iter()
            .map(|&(name, created, supersedes)| Contender {
                name,
                created,
                supersedes,
            })
            .collect();
        resolve(&contenders)
            .map(|precedence| (contenders[precedence.active].name, precedence.standings))
    }

    #[test]
    fn the_older_one_is_active_unless_the_younger_names_it() {
        use Standing::{Active, Conflicts, SupersededBy};
        for (contenders, wanted, standings) in [
            (&[("a", 1, None)][..], "a", vec![Active]),
            (
                &[("a", 1, None), ("b", 2, None)],
                "a",
                vec![Active, Conflicts],
            ),
            (
                &[("b", 1, None), ("a", 2, None)],
                "b",
                vec![Active, Conflicts],
            ),
            // Same second: by name.
            (
                &[("b", 1, None), ("a", 1, None)],
                "a",
                vec![Conflicts, Active],
            ),
            (
                &[("a", 1, None), ("b", 2, Some("a"))],
                "b",
                vec![SupersededBy(1), Active],
            ),
            (
                &[("a", 1, None), ("b", 1, Some("a"))],
                "b",
                vec![SupersededBy(1), Active],
            ),
            // A chain.
            (
                &[("c", 3, Some("b")), ("a", 1, None), ("b", 2, Some("a"))],
                "c",
                vec![Active, SupersededBy(2), SupersededBy(0)],
            ),
            // A broken chain: c names an update that is not in force.
            (
                &[("a", 1, None), ("b", 2, None), ("c", 3, Some("b"))],
                "a",
                vec![Active, Conflicts, Conflicts],
            ),
            // Two candidates: the older one.
            (
                &[("a", 1, None), ("b", 2, Some("a")), ("c", 3, Some("a"))],
                "b",
                vec![SupersededBy(1), Active, Conflicts],
            ),
            // An older update cannot replace a younger one, so there is no cycle.
            (
                &[("a", 1, Some("b")), ("b", 2, None)],
                "a",
                vec![Active, Conflicts],
            ),
            (
                &[("a", 1, Some("b")), ("b", 2, Some("a"))],
                "b",
                vec![SupersededBy(1), Active],
            ),
            // An update that names itself, and one that does not exist.
            (&[("a", 1, Some("a"))], "a", vec![Active]),
            (
                &[("a", 1, Some("gone")), ("b", 2, Some("gone"))],
                "a",
                vec![Active, Conflicts],
            ),
        ] {
            assert_eq!(
                active(contenders),
                Some((wanted, standings)),
                "{contenders:?}"
            );
        }
        assert_eq!(active(&[]), None);
    }

    fn contenders() -> impl Strategy<Value = Vec<(usize, i64, Option<usize>)>> {
        prop::collection::btree_map(0usize..8, (0i64..4, prop::option::of(0usize..8)), 1..8)
            .prop_map(|map| {
                map.into_iter()
                    .map(|(name, (at, over))| (name, at, over))
                    .collect()
            })
    }

    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

    proptest! {
        #[test]
        fn exactly_one_update_is_active_in_any_order(contenders in contenders(), turn in 0usize..8) {
            let named: Vec<_> = contenders
                .iter()
                .map(|&(name, at, over)| (NAMES[name], at, over.map(|over| NAMES[over])))
                .collect();
            let (name, standings) = active(&named).unwrap();
            prop_assert_eq!(standings.iter().filter(|standing| **standing == Standing::Active).count(), 1);
            let mut turned = named.clone();
            turned.rotate_left(turn % named.len());
            prop_assert_eq!(active(&turned).unwrap().0, name);
            turned.reverse();
            prop_assert_eq!(active(&turned).unwrap().0, name);
        }

        #[test]
        fn an_update_that_names_no_other_does_not_displace_the_active_one(contenders in contenders(), late in 4i64..9) {
            let mut named: Vec<_> = contenders
                .iter()
                .map(|&(name, at, over)| (NAMES[name], at, over.map(|over| NAMES[over])))
                .collect();
            let (before, _) = active(&named).unwrap();
            named.push(("z", late, None));
            prop_assert_eq!(active(&named).unwrap().0, before);
            named.last_mut().unwrap().2 = Some(before);
            prop_assert_eq!(active(&named).unwrap().0, "z");
        }
    }
}
