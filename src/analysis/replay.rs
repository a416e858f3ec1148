//! Analyses what proxies remember of the last minutes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Counts, Margins, Memory, Report};

/// The time that one look covers.
const STEP: Duration = Duration::from_secs(60);

/// Replays, minute by minute, the counts of each proxy at several times: their ages and the counts, oldest first. Counts from
/// before the oldest of them are ignored.
pub fn replay(
    memory: &mut Memory,
    margins: &Margins,
    past: Vec<Vec<(Duration, Counts)>>,
) -> Report {
    let ages = past.iter().flatten().map(|(age, _)| *age);
    let oldest = ages.max().unwrap_or_default();
    let mut minutes: BTreeMap<u64, Counts> = BTreeMap::new();
    for proxy in &past {
        for pair in proxy.windows(2) {
            let [(_, before), (age, counts)] = pair else {
                continue;
            };
            if let Some(since) = counts.since(before) {
                let minute = age.as_secs() / STEP.as_secs();
                minutes.entry(minute).or_default().add(&since);
            }
        }
    }
    let mut report = memory.look(margins, Counts::default(), Duration::ZERO);
    for (minute, counts) in minutes.into_iter().rev() {
        let ago = STEP.saturating_mul(u32::try_from(minute).unwrap_or(u32::MAX));
        report = memory.look(margins, counts, oldest.saturating_sub(ago));
    }
    report
}
