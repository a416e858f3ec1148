//! Verdicts on single API classes.

use std::collections::BTreeMap;

use super::{Attempts, Counts};

/// Fewer requests of a rare API class are too few to tell a failing class from chance.
const MIN_OF_RARE_CLASS: u64 = 5;

/// An API class in which new fails most requests, with its counts. If a class is rare among the requests (less than a tenth) and
/// old fails most of its requests as well, it needs no verdict: otherwise, a single client with requests that no server accepts
/// could keep any update from passing.
pub(super) fn fails_most(counts: &Counts) -> Option<(Box<str>, Counts)> {
    let mut classes: BTreeMap<&str, Counts> = BTreeMap::new();
    for (stratum, generations) in &counts.0 {
        let of_class = classes.entry(&stratum.class).or_default();
        of_class.0.insert(stratum.clone(), generations.clone());
    }
    let [_, all] = counts.outcomes();
    let found = classes.into_iter().find(|(_, of_class)| {
        let [old, new] = of_class.outcomes();
        let fails_most =
            |generation: Attempts| generation.failed.saturating_mul(2) > generation.decided;
        let is_rare = new.decided.saturating_mul(10) < all.decided;
        let matters = !is_rare || (new.decided >= MIN_OF_RARE_CLASS && !fails_most(old));
        matters && fails_most(new)
    });
    found.map(|(class, of_class)| (class.into(), of_class))
}
