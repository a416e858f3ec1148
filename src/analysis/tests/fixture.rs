//! Counts of both sides, and looks at them.

use std::time::Duration;

use crate::analysis::{Counts, Margins, Memory, Report, Side};

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
pub fn changed(mut counts: Counts, change: impl Fn(&mut [Side; 2])) -> Counts {
    counts.0.values_mut().for_each(change);
    counts
}
