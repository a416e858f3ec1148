//! Counts of both generations, and looks at them.

use std::time::Duration;

use crate::analysis::{Counts, GenerationCounts, Margins, Memory, Report};

/// Looks at `counts`, five seconds each.
pub fn looks(margins: &Margins, counts: impl IntoIterator<Item = Counts>) -> Report {
    let mut memory = Memory::default();
    let mut report = memory.look(margins, Counts::default(), Duration::ZERO);
    for (number, counts) in (1..).zip(counts) {
        report = memory.look(margins, counts, Duration::from_secs(5 * number));
    }
    report
}

/// The counts, changed by `change`.
pub fn changed(mut counts: Counts, change: impl Fn(&mut [GenerationCounts; 2])) -> Counts {
    counts.0.values_mut().for_each(change);
    counts
}
