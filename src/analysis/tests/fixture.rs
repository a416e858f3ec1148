//! Counts of both sides, and looks at them.

use std::time::Duration;

use crate::analysis::{Attempts, Counts, Memory, Report, Rules, Side, Stratum};

/// Looks at `counts`, five seconds each.
pub fn looks(rules: &Rules, counts: impl IntoIterator<Item = Counts>) -> Report {
    let mut memory = Memory::default();
    let mut report = memory.look(rules, Counts::default(), Duration::ZERO);
    for (number, counts) in (1..).zip(counts) {
        report = memory.look(rules, counts, Duration::from_secs(5 * number));
    }
    report
}

/// Requests of both sides, and how many of new's failed.
pub fn requests(old: u64, new: u64, failed: u64) -> Counts {
    let side = |started, failed| {
        Side::from(Attempts {
            started,
            ended: started,
            completed: started - failed,
            decided: started,
            failed,
            ..Attempts::default()
        })
    };
    let class = "chat".into();
    Counts(
        [(
            Stratum { class, size: 1 },
            [side(old, 0), side(new, failed)],
        )]
        .into(),
    )
}

/// The same, changed by `change`.
pub fn changed(mut counts: Counts, change: impl Fn(&mut [Side; 2])) -> Counts {
    counts.0.values_mut().for_each(change);
    counts
}
