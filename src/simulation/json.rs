//! A report for programs.

use serde_json::{Value as Json, json};

use super::{Row, Sample, SimulationEnd, SimulationReport, text::ending};
use crate::rollout::PerGeneration;

/// The report as JSON. Times are in seconds.
#[must_use]
pub fn json(report: &SimulationReport) -> Json {
    let totals = &report.totals;
    let (ends, progress, waits) = match &report.ended {
        SimulationEnd::At(progress) => (true, progress, &[][..]),
        SimulationEnd::Never(progress, waits) => (false, progress, waits.as_slice()),
    };
    json!({
        "ends": ends,
        "progress": format!("{progress:?}"),
        "message": ending(*progress),
        "waitingFor": waits,
        "earliestEndSeconds": ends.then_some(totals.time.as_secs()),
        "gpuHours": totals.gpu_hours,
        "gpuHoursOfOldAlone": totals.gpu_hours_of_old,
        "gpusBefore": totals.gpus_before,
        "peakGpus": totals.gpus_peak,
        "streams": {
            "begun": totals.streams_begun,
            "moved": totals.streams_moved,
            "waitedFor": totals.streams_waited_for,
            "cut": totals.streams_cut,
        },
        "requestsRefused": totals.requests_refused,
        "notes": report.notes,
        "timeline": report.rows.iter().map(row).collect::<Vec<_>>(),
        "samples": report.samples.iter().map(sample).collect::<Vec<_>>(),
    })
}

fn row(row: &Row) -> Json {
    let waits = row.waits.iter();
    let waits = waits.map(|waited| json!({"for": waited.what, "seconds": waited.time.as_secs()}));
    json!({
        "atSeconds": row.at.as_secs(),
        "action": row.action,
        "asked": generations(row.desired),
        "ready": generations(row.ready),
        "weights": {"old": row.split.old(), "new": row.split.new_weight()},
        "gpus": row.gpus,
        "thenWaits": waits.collect::<Vec<_>>(),
    })
}

fn sample(sample: &Sample) -> Json {
    json!({
        "atSeconds": sample.at.as_secs(),
        "asked": generations(sample.desired),
        "ready": generations(sample.ready),
        "weights": {"old": sample.split.old(), "new": sample.split.new_weight()},
        "gpus": sample.gpus,
    })
}

fn generations(units: PerGeneration<u32>) -> Json {
    json!({"old": units.old, "new": units.new})
}
