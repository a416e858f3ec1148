//! Counts of both sides, and looks at them.

use std::time::Duration;

use crate::analysis::{Counts, Memory, Report, Rules, Side};

/// Looks at `counts`, five seconds each.
pub fn looks(rules: &Rules, counts: impl IntoIterator<Item = Counts>) -> Report {
    let mut memory = Memory::default();
    let mut report = memory.look(rules, Counts::default(), Duration::ZERO);
    for (number, counts) in (1..).zip(counts) {
        report = memory.look(rules, counts, Duration::from_secs(5 * number));
    }
    report
}

/// The counts, changed by `change`.
pub fn changed(mut counts: Counts, change: impl Fn(&mut [Side; 2])) -> Counts {
    counts.0.values_mut().for_each(change);
    counts
}
