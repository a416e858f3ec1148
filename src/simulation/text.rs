//! A report for users: the timeline and the cost.

use std::fmt::Write;
use std::time::Duration;

use super::{SimulationEnd, SimulationReport};
use crate::printable::thousands;
use crate::scaling::Progress;

/// The report as text.
#[must_use]
pub fn text(report: &SimulationReport) -> String {
    let mut text = String::new();
    let width = report.rows.iter().map(|row| row.action.len()).max();
    let width = width.unwrap_or_default().max("ACTION".len());
    let mut line = |cells: [&str; 7]| {
        let [at, action, new, old, split, gpus, waits] = cells;
        let row = format!(
            "{at:>9}  {action:<width$}  {new:>7}  {old:>7}  {split:>5}  {gpus:>5}  {waits}"
        );
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", row.trim_end());
    };
    line([
        "TIME",
        "ACTION",
        "NEW",
        "OLD",
        "SPLIT",
        "GPUS",
        "THEN WAITING FOR",
    ]);
    for row in &report.rows {
        let ratio = |ready: u32, desired: u32| format!("{ready}/{desired}");
        let mut waits = row
            .waits
            .iter()
            .map(|waited| format!("{} ({})", waited.what, clock(waited.time)));
        line([
            &clock(row.at),
            &row.action,
            &ratio(row.ready.new, row.desired.new),
            &ratio(row.ready.old, row.desired.old),
            &format!("{}%", row.split.rounded_percent()),
            &row.gpus.to_string(),
            &waits.next().unwrap_or_default(),
        ]);
        for more in waits {
            line(["", "", "", "", "", "", &more]);
        }
    }
    text.push('\n');
    text += &summary(report);
    text
}

fn summary(report: &SimulationReport) -> String {
    let totals = &report.totals;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<14}{value}");
    };
    match &report.ended {
        SimulationEnd::At(progress) => line(
            "earliest end",
            format!("{} ({})", clock(totals.time), ending(*progress)),
        ),
        SimulationEnd::Never(progress, waits) => {
            line("never ends", format!("{}; waiting for:", ending(*progress)));
            for wait in waits {
                line("", wait.clone());
            }
        }
    }
    let more = totals.gpu_hours - totals.gpu_hours_of_old;
    line(
        "GPU-hours",
        format!(
            "{:.1} ({} than old alone would use in this time)",
            totals.gpu_hours,
            match more < 0.0 {
                true => format!("{:.1} less", -more),
                false => format!("{more:.1} more"),
            }
        ),
    );
    line(
        "peak GPUs",
        format!("{} (before: {})", totals.gpus_peak, totals.gpus_before),
    );
    line(
        "streams",
        format!(
            "{} started, {} moved, {} drained, {} cut",
            thousands(totals.streams_begun),
            thousands(totals.streams_moved),
            thousands(totals.streams_waited_for),
            thousands(totals.streams_cut)
        ),
    );
    for note in &report.notes {
        line("note", note.clone());
    }
    text
}

/// Describes the state of a rollout.
pub(super) const fn ending(progress: Progress) -> &'static str {
    match progress {
        Progress::Refused => "rejected before the first write",
        Progress::Forward => "on its way to new",
        Progress::Back => "on its way back to old",
        Progress::Held => "held by intent: Hold",
        Progress::Contested => "another client scales the workers",
        Progress::Stalled => "workers are not ready in time",
        Progress::Partition => "new has all units above the partition",
        Progress::Complete => "new serves everything",
        Progress::RolledBack => "old serves everything",
    }
}

/// Hours, minutes and seconds.
pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_on_a_clock() {
        for (seconds, expected) in [(0, "0:00"), (59, "0:59"), (241, "4:01"), (3725, "1:02:05")] {
            assert_eq!(clock(Duration::from_secs(seconds)), expected);
        }
    }
}
